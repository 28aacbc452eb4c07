"""The configuration of an export: frozen, checked on construction, and free of TensorFlow."""

import dataclasses
from pathlib import Path

from wca_tf.core.errors import InputError
from wca_tf.core.options import check_options, flag
from wca_tf.data.config import MAX_PIXELS_HELP

MANIFEST = Path("assets.extra", "manifest.json")  # of an exported version


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """An export of a trained model, for serving."""

    model_dir: str = flag("", "directory of a trained model")
    export_dir: str = flag("", "where versions of the served model go: the directory that TF Serving watches")
    version: int = flag(1, "number of the version, a directory of its own; one that exists is never replaced")
    max_image_pixels: int = flag(2**24, f"{MAX_PIXELS_HELP}; of image_bytes")

    export_random: str = flag(
        "normal",
        "where the noise comes from: normal, TensorFlow's own kernel; uniform, for runtimes that lack it (OpenVINO), "
        "where the noise is Gaussian and the same for all images",
        ("normal", "uniform"),
    )

    def __post_init__(self) -> None:
        check_options(self, "--")
        if not self.export_dir:
            raise InputError("expected --export_dir=DIR, where the version goes")
