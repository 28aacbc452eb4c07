"""Training of nets of the study on a GPU without TensorFlow: a port of `bin/train` to JAX."""
