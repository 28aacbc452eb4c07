"""Export of a WCA-Net as a SavedModel for TF Serving, or any other runtime that loads one."""
