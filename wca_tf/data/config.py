"""The configuration of the data: frozen and checked on construction. This module does not import TensorFlow."""

import dataclasses
import os

from wca_tf.core.errors import InputError
from wca_tf.core.options import check_options, flag
from wca_tf.data.resizing import Size

DATASET_HELP = "digits, any TFDS image classification set by name, or folder:PATH (see docs/howto/train.md)"

MAX_PIXELS_HELP = "largest number of pixels of an image file; a small file of more can take gigabytes to decode"

SHORTER_SIDE_HELP = (
    "resize images so that their shorter side has so many pixels, then cut out the centre of --image_size: 256 with "
    "--image_size=224 is usual for ImageNet; 0 stretches images to the square"
)

IN_MEMORY = ("auto", "true", "false")
IN_MEMORY_HELP = (
    "true: read all images into memory; false: read and decode each when it is used; auto: true where they take a "
    "quarter of the free memory at most. The results are the same"
)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The dataset, and where its files are."""

    dataset: str = flag("digits", DATASET_HELP)
    tfds_data_dir: str = flag(
        os.environ.get("TFDS_DATA_DIR", os.path.join("~", "tensorflow_datasets")),
        "where TFDS data are, or go with --download",
        identity=False,
    )
    download: bool = flag(False, "fetch the TFDS set when it is absent; without it nothing is fetched", identity=False)
    image_size: int = flag(
        0, "resize images to this height and width; 0 keeps the size they have", minimum=0, maximum=10_000
    )
    shorter_side: int = flag(0, SHORTER_SIDE_HELP, minimum=0, maximum=10_000)
    max_image_pixels: int = flag(64_000_000, MAX_PIXELS_HELP, identity=False)
    in_memory: str = flag("auto", IN_MEMORY_HELP, IN_MEMORY, identity=False)

    def __post_init__(self) -> None:
        check_options(self, "--")
        if self.shorter_side and not 0 < self.image_size <= self.shorter_side:
            raise InputError(
                f"expected --shorter_side with an --image_size from 1 to it, received {self.shorter_side} with "
                f"--image_size={self.image_size}"
            )

    @property
    def size(self) -> Size:
        """The size that images get."""
        return Size(self.image_size, self.shorter_side)

    @property
    def crops_files(self) -> bool:
        """Whether the images of training are cut out of files that are larger; they then stay on disk."""
        return False
