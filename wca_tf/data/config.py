"""The configuration of the data: frozen and checked on construction. This module does not import TensorFlow."""

import dataclasses
import os

from wca_tf.core.options import check_options, flag

DATASET_HELP = "digits, any TFDS image classification set by name, or folder:PATH (see docs/howto/train.md)"

MAX_PIXELS_HELP = "largest number of pixels of an image file; a small file of more can take gigabytes to decode"


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
    max_image_pixels: int = flag(64_000_000, MAX_PIXELS_HELP, identity=False)

    def __post_init__(self) -> None:
        check_options(self, "--")
