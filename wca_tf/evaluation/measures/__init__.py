"""The measures of an evaluation, with a module for each."""
