"""Export of a trained net as a SavedModel for TF Serving, or for any other runtime that loads SavedModels."""
