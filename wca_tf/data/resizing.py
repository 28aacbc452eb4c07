"""Images of one size from images of several."""

from __future__ import annotations

from typing import NamedTuple

from wca_tf.core.lazily import tf

AREAS, RATIOS = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random crop (Szegedy et al., CVPR 2015, section 6)
ATTEMPTS = 10


class Size(NamedTuple):
    """The size that images get.

    Attributes:
        side: height and width; 0 keeps the size that they have.
        shorter_side: what the shorter side gets before the centre is cut out; 0 stretches images to the square.
    """

    side: int = 0
    shorter_side: int = 0

    def of(self, images: tf.Tensor) -> tf.Tensor:
        """Return images [..., H, W, channels] in this size."""
        if self.shorter_side:
            return _centre(images, self.shorter_side, self.side)
        return resize(images, (self.side, self.side)) if self.side else images


def resize(images: tf.Tensor, size: tuple[int, int] | tf.Tensor) -> tf.Tensor:
    """Return images [..., height, width, channels], resized bilinearly with antialiasing.

    uint8 images stay uint8; all others become float32.
    """
    resized = tf.image.resize(images, size, antialias=True)
    return tf.saturate_cast(tf.round(resized), tf.uint8) if images.dtype == tf.uint8 else resized


def _centre(images: tf.Tensor, shorter_side: int, side: int) -> tf.Tensor:
    """Resize so that the shorter side is `shorter_side`, and return the square of `side` in the middle.

    Sides and offsets are rounded as in torchvision's Resize and CenterCrop.
    """
    sides = tf.shape(images)[-3:-1]
    sides = tf.maximum(shorter_side, sides * shorter_side // tf.reduce_min(sides))
    top, left = tf.unstack(tf.cast(tf.round((sides - side) / 2), tf.int32))
    return resize(images, sides)[..., top : top + side, left : left + side, :]


def random_resized_crop(image: tf.Tensor, seed: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Cut a random rectangle out of an image, and resize it: the usual augmentation for ImageNet.

    Its area is from 8 to 100 % of the image's, its width over its height from 3/4 to 4/3 (Szegedy et al., CVPR 2015,
    section 6). Where 10 attempts find no such rectangle, it is the whole image.

    Args:
        image: [H, W, channels].
        seed: int32 [2], which decides the rectangle.
        size: the height and width of the result.
    """
    begin, shape, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(image),
        tf.zeros([1, 0, 4]),
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=RATIOS,
        area_range=AREAS,
        max_attempts=ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    return resize(tf.slice(image, begin, shape), size)
