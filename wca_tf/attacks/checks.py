"""What goes into an attack and what comes out of it, checked by code that is not the attack's, in NumPy."""

import numpy as np
import tensorflow as tf

from wca_tf.data.examples import check_labels
from wca_tf.errors import InputError

# Rounding of x + δ to float32.
TOLERANCE = 1e-6


def check_inputs(images: tf.Tensor, labels: np.ndarray, indices: np.ndarray, num_classes: int | None) -> None:
    """Raise InputError unless images are float32 [B, H, W, channels] in [0, 1], with a label and an index for each."""
    if images.dtype != tf.float32 or images.shape.rank != 4:
        raise InputError(f"expected float32 images [B, H, W, channels], received {images.dtype.name} {images.shape}")
    if not bool(tf.reduce_all((images >= 0) & (images <= 1))):  # NaN fails both comparisons
        raise InputError("expected images in [0, 1], received values outside, NaN or Inf")
    for name, numbers in (("labels", labels), ("indices", indices)):
        if numbers.shape != (len(images),) or not np.issubdtype(numbers.dtype, np.integer):
            raise InputError(
                f"expected {len(images)} whole numbers as {name}, received {numbers.dtype} {numbers.shape}"
            )
    check_labels(labels, num_classes if num_classes is not None else int(labels.max()) + 1)


def check_result(adversarial: tf.Tensor, images: tf.Tensor, norm: str, epsilon: float) -> None:
    """Raise RuntimeError when adversarial images are farther than `epsilon` from `images`, or out of [0, 1]."""
    result = adversarial.numpy().astype(np.float64)
    perturbation = (result - images.numpy()).reshape(len(result), -1)
    distance = np.linalg.norm(perturbation, np.inf if norm == "linf" else 2, axis=1).max(initial=0)
    inside = (result >= 0).all() and (result <= 1).all()
    if not inside or not distance <= epsilon * (1 + TOLERANCE) + TOLERANCE:
        raise RuntimeError(f"the attack left its ball: {norm} distance {distance} for epsilon {epsilon}")
