"""Work on several devices and machines, with the results of one (docs/howto/train.md). Free of TensorFlow."""
