"""The flag files of the paper's nets, from the experiments' settings. Free of TensorFlow.

`python -m wca_tf.experiments.flag_files` writes them into configs/, below the comments that each begins with.
"""

from pathlib import Path
from typing import Any

from wca_tf.experiments.settings import train_changes
from wca_tf.experiments.variants import PAPER
from wca_tf.runs.config import TrainConfig

VARIANTS = ("none", "isotropic", "anisotropic")
FILE_NAMES = {"cifar10_wide": "cifar10_wide_resnet34_10"}  # where a file is not named after its data set
DATASETS = {"mini_imagenet": "folder:mini_imagenet"}  # the folder's place in the working directory
# The flags that come first, in this order; the experiments' other flags follow.
ORDER = (
    "dataset",
    "image_size",
    "backbone",
    "defence",
    "learning_rate",
    "learning_rate_schedule",
    "batch_size",
    "epochs",
)
# Flags that are left out where they have their default. All others in ORDER are in every file.
OPTIONAL = ("image_size", "learning_rate_schedule", "augmentation")


def file_name(dataset: str, variant: str) -> str:
    """Return the name of a net's flag file in configs/."""
    return f"{FILE_NAMES.get(dataset, dataset)}_{variant}.flags"


def flag_lines(dataset: str, variant: str) -> str:
    """Return the flags of a net of the paper, a line each; `dataset` is one of `variants.PAPER`."""
    changes = train_changes(dataset, variant, "paper")
    changes["dataset"] = DATASETS.get(dataset, changes["dataset"])
    first = {name: changes.get(name, getattr(TrainConfig, name)) for name in ORDER}
    others = {name: value for name, value in changes.items() if name not in first}
    return "".join(
        f"--{name}={_text(value)}\n"
        for name, value in {**first, **others}.items()
        if name not in OPTIONAL or value != getattr(TrainConfig, name)
    )


def _text(value: Any) -> str:
    """Return a value as a flag has it: 0.01 as 1e-2."""
    return f"{value:.0e}".replace("e-0", "e-") if isinstance(value, float) else str(value)


def with_flags(text: str, dataset: str, variant: str) -> str:
    """Return the text of a flag file with its comments as they are and its flags made anew."""
    comments = [line for line in text.splitlines(keepends=True) if line.startswith("#")]
    return "".join(comments) + flag_lines(dataset, variant)


def main() -> None:
    """Write the flags of every file in configs/ that is of a net of the paper."""
    for dataset in PAPER:
        for variant in VARIANTS:
            path = Path("configs", file_name(dataset, variant))
            if dataset != "digits" and path.exists():
                path.write_text(with_flags(path.read_text(), dataset, variant))


if __name__ == "__main__":
    main()
