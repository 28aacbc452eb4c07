"""Several devices and machines that compute what one does (docs/scale.md). This file is free of TensorFlow."""
