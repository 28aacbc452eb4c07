"""The mathematics of Gaussian logits. These modules do not depend on any model."""
