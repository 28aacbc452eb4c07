"""Training runs: their configuration, the training, and the files that they leave on disk."""
