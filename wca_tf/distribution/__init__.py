"""Work on several devices and machines, with the results of one (docs/scale.md). This file imports no TensorFlow."""
