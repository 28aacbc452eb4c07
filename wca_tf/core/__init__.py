"""The modules that all others use: errors, files, paths, seeds, and declared options."""
