"""Checks of the arguments and of the result of an attack, by code that is not the attack's.

The result is checked in NumPy.
"""

from __future__ import annotations

from typing import Any

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import np, tf
from wca_tf.data.examples import as_arrays, check_labels

# Allows for the rounding of x + δ to float32.
TOLERANCE = 1e-6


def as_attackable(images: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return images, uint8 or float32, and labels as arrays; raise InputError for images of another type."""
    images, labels = as_arrays(images, labels)
    if images.dtype != np.uint8 and not np.issubdtype(images.dtype, np.floating):
        raise InputError(f"expected uint8 images, or float images in [0, 1], received {images.dtype}")
    return images if images.dtype == np.uint8 else images.astype(np.float32), labels


def check_inputs(images: tf.Tensor, labels: np.ndarray, indices: np.ndarray) -> None:
    """Raise InputError unless images are float32 [B, H, W, channels] in [0, 1], with a label and an index for each."""
    if images.dtype != tf.float32 or images.shape.rank != 4:
        raise InputError(f"expected float32 images [B, H, W, channels], received {images.dtype.name} {images.shape}")
    if not bool(tf.reduce_all((images >= 0) & (images <= 1))):  # NaN fails both comparisons
        raise InputError("expected images in [0, 1], received values outside, NaN or Inf")
    for name, numbers in (("labels", labels), ("indices", indices)):
        _check_whole_numbers(name, numbers, len(images))


def check_targets(targeted: bool, targets: tf.Tensor | None, labels: np.ndarray, num_classes: int) -> np.ndarray | None:
    """Return the targets as an array; `None` for an attack that is not targeted.

    Raises:
        InputError: a targeted attack has no targets, or any other attack has some; the targets are not whole numbers
            [B], not classes, or equal to the labels.
    """
    if targeted != (targets is not None):
        needs = "a targeted attack expects targets=[B classes], received no targets"
        raise InputError(needs if targeted else "an attack with targeted=False expects no targets, received some")
    if targets is None:
        return None
    wanted = np.asarray(targets)
    _check_whole_numbers("targets", wanted, len(labels))
    check_labels(wanted, num_classes)
    if (wanted == labels).any():
        raise InputError("expected targets other than the labels, received a label as its own target")
    return wanted


def check_result(adversarial: tf.Tensor, images: tf.Tensor, norm: str = "", epsilon: float = 0.0) -> None:
    """Raise RuntimeError when adversarial images are out of [0, 1], or farther than `epsilon` from `images`.

    Args:
        norm: "linf", "l2", "l0" (pixels that changed in any channel), or "" for an attack without a limit.
    """
    result = adversarial.numpy().astype(np.float64)
    if result.shape != images.shape or not ((result >= 0) & (result <= 1)).all():
        raise RuntimeError("the attack's images are not in [0, 1]")
    if not norm:
        return
    perturbation = result - images.numpy()
    if norm == "l0":
        perturbation = np.any(perturbation != 0, axis=3)
    order = {"linf": np.inf, "l2": 2, "l0": 0}[norm]
    distance = np.linalg.norm(perturbation.reshape(len(result), -1), order, axis=1).max(initial=0)
    if not distance <= epsilon * (1 + TOLERANCE) + TOLERANCE:
        raise RuntimeError(f"the attack left its reach: {norm} distance {distance}, at most {epsilon}")


def _check_whole_numbers(name: str, numbers: np.ndarray, count: int) -> None:
    if numbers.shape != (count,) or not np.issubdtype(numbers.dtype, np.integer):
        raise InputError(f"expected {count} whole numbers as {name}, received {numbers.dtype} {numbers.shape}")
