"""Checks of the functions of a `FunctionNet` on a probe: the gradient, and the independence of the noise of images."""

import numpy as np
from scipy import stats

from wca_tf.core.errors import InputError, NonFiniteError
from wca_tf.nets.function_net import FunctionNet

DIRECTIONS = 3
STEPS = (1e-2, 1e-3, 3e-4, 1e-4)  # of finite differences, as shares of the range of the pixels
TOLERANCE = 0.05  # relative
MOST = 0.75  # of the directions of images must agree: a step may meet a corner of a ReLU net
ROUNDING = 8 * float(np.finfo(np.float32).eps)
BATCHES = 24  # that tell whether the noise of images is independent
COPIES = 16, 128  # of an image in each of them: for large and for small images
PIXEL_VALUES = 2**19  # in a batch of copies
WRONG = 1e-6  # the largest probability of an error about noise that is independent


def check_pullback(net: FunctionNet, images: np.ndarray) -> None:
    """Compare the pullback of a net with central differences along random directions, of the same draw.

    Args:
        net: the net.
        images: [B, H, W, channels] in its own pixels.

    Raises:
        InputError: the two differ by more than 5 %, for more than a quarter of the directions, at every size of a step;
            or the pullback has another shape.
        NonFiniteError: the pullback gives NaN or Inf.
    """
    rng = np.random.default_rng(0)
    low, scale = images.min(), float(np.ptp(images))
    images = (low + 0.1 * scale + 0.8 * (images - low)).astype(np.float32)  # a step stays near the range
    upstream = rng.standard_normal((len(images), net.num_classes)).astype(np.float32)
    gradient = net.gradient(images, 1, upstream)
    if not np.isfinite(gradient).all():
        raise NonFiniteError("expected a finite gradient of the pullback, received NaN or Inf on the probe")
    directions = rng.standard_normal((DIRECTIONS, *images.shape)).astype(np.float32)
    expected = np.einsum("bhwc,dbhwc->db", gradient.astype(np.float64), directions)
    differences = []
    for step in STEPS:
        found, error = _differences(net, images, step * scale * directions, upstream)
        found, error = found / (step * scale), error / (step * scale)
        size = max(np.linalg.norm(expected), np.linalg.norm(found))
        difference = np.quantile(np.abs(found - expected), MOST) * np.sqrt(found.size)
        if difference <= TOLERANCE * size + error:
            return
        differences.append(difference / size)
    raise InputError(
        "expected a pullback that gives the gradient of Σ upstream · logits under the same seed, received one that "
        f"differs from finite differences by {100 * min(differences):.0f} %; say surrogate=True if it is meant to"
    )


def _differences(
    net: FunctionNet, images: np.ndarray, moves: np.ndarray, upstream: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return half the change of Σ upstream · logits [directions, B] from −move to +move, and its rounding error."""

    def objective(at: np.ndarray) -> np.ndarray:
        return (net.outputs(at, 1).astype(np.float64) * upstream).sum(axis=1)

    ends = np.array([[objective(images + move), objective(images - move)] for move in moves])
    return (ends[:, 0] - ends[:, 1]) / 2, float(ROUNDING * np.linalg.norm(ends))


def check_independent(net: FunctionNet, images: np.ndarray) -> None:
    """Raise InputError where the noise of the images of a batch is not independent, by copies of an image in a batch.

    Of independent noise, the variance of a batch's mean is that of one copy over their number. In 128 copies, which
    images up to 36×36×3 have, noise is found of which images share 4 % of the variance; in 16, a third.

    Args:
        net: the net.
        images: [B, H, W, channels] in its own pixels; the first is copied.
    """
    count = int(np.clip(PIXEL_VALUES // images[0].size, *COPIES))
    copies = np.repeat(images[:1], count, axis=0)
    logits = np.stack([net.outputs(copies, seed) for seed in range(BATCHES)]).astype(np.float64)
    within = logits.var(axis=1, ddof=1).mean(axis=0)
    between = count * logits.mean(axis=1).var(axis=0, ddof=1)
    ratio = np.divide(between, within, out=np.full_like(between, np.inf), where=within > 0)[between > 0]
    degrees = BATCHES - 1, BATCHES * (count - 1)
    probability = min(stats.f.sf(ratio, *degrees).min(initial=1), stats.f.cdf(ratio, *degrees).min(initial=1))
    if probability < WRONG / net.num_classes:
        raise InputError(
            "expected noise that is independent from image to image of a batch, as independent_noise=True says, "
            "received noise that images share"
        )
