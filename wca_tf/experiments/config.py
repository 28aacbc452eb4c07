"""The configuration of bin/reproduce, and the check that its data are present. This module is free of TensorFlow."""

import dataclasses
import os

from wca_tf.core.errors import InputError
from wca_tf.core.options import check_options, flag
from wca_tf.data.config import DataConfig
from wca_tf.data.preflight import check_dataset_present
from wca_tf.experiments import EXPERIMENTS, SCALES
from wca_tf.experiments.variants import FOLDER, PAPER

ALL = "all"  # in place of an experiment's name: every experiment


@dataclasses.dataclass(frozen=True)
class ReproduceConfig:
    """An experiment of the paper, at a scale."""

    experiment: str = flag("", "its name; --list describes each; all runs every experiment")
    report_dir: str = flag("", "where its table and figures go")
    models_dir: str = flag(
        os.path.join("runs", "reproduce"),
        "directory of the trained nets; experiments share it, and a net that is there is not trained again",
    )
    scale: str = flag("small", "tiny: digits, minutes; small: hours on 2 cores; paper: the paper's settings", SCALES)
    tfds_data_dir: str = flag(DataConfig.tfds_data_dir, "where TFDS data are, or go with --download")
    download: bool = flag(False, "fetch the TFDS sets that are absent; without it nothing is fetched")
    mini_imagenet: str = flag("", "for scale: the folder of mini-ImageNet, CLASS/*.jpg (docs/data.md)")
    dataset: str = flag("", "in place of the experiment's own, such as cifar10: a table of its own")

    def __post_init__(self) -> None:
        check_options(self, "--")
        if self.experiment not in (*EXPERIMENTS, ALL):
            known = ", ".join([*EXPERIMENTS, ALL])
            raise InputError(f"expected --experiment among {known}; received {self.experiment!r}")
        self._check_dataset()
        if not self.report_dir:
            raise InputError("expected --report_dir=DIR, where the table and the figures go")

    def _check_dataset(self) -> None:
        if not self.dataset:
            return
        if self.scale == "tiny" or self.experiment == ALL:
            raise InputError(
                f"expected no --dataset with --experiment={ALL} or --scale=tiny; received {self.dataset!r}"
            )
        choice = EXPERIMENTS[self.experiment].choice
        if self.dataset not in choice:
            known = f"--dataset among {', '.join(choice)}" if choice else "no --dataset"
            raise InputError(f"expected {known} with --experiment={self.experiment}; received {self.dataset!r}")

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets of the experiment, keys of `PAPER`."""
        return (self.dataset,) if self.dataset else EXPERIMENTS[self.experiment].datasets(self.scale)


def check_data_present(config: ReproduceConfig) -> None:
    """Raise InputError at once when data that the experiment needs at its scale are absent."""
    if config.experiment == ALL:
        raise InputError(f"expected one experiment, received {ALL}: reproduce_all runs every one")
    for name in config.datasets:
        dataset = PAPER[name]["dataset"]
        if dataset == FOLDER:
            if not config.mini_imagenet:
                raise InputError("expected --mini_imagenet=DIR, a folder of CLASS/*.jpg")
            dataset += config.mini_imagenet
        check_dataset_present(DataConfig(dataset, config.tfds_data_dir, config.download))


def each_experiment(config: ReproduceConfig) -> dict[str, ReproduceConfig]:
    """Return the configuration of every table by the name of its directory in config.report_dir.

    At --scale=small an experiment may have tables on more data sets than its own, in directories EXPERIMENT_DATASET.
    """
    asked = {}
    for name, experiment in EXPERIMENTS.items():
        for dataset in ("", *(experiment.also if config.scale == "small" else ())):
            directory = f"{name}_{dataset}" if dataset else name
            report_dir = os.path.join(config.report_dir, directory)
            asked[directory] = dataclasses.replace(config, experiment=name, dataset=dataset, report_dir=report_dir)
    return asked


def absent_data(config: ReproduceConfig) -> dict[str, str]:
    """Return the tables of `each_experiment` whose data are absent, with a line that names the data.

    Raises:
        InputError: the data of all experiments are absent.
    """
    absent, asked = {}, each_experiment(config)
    for name, one in asked.items():
        try:
            check_data_present(one)
        except InputError as error:
            absent[name] = str(error)
    if len(absent) == len(asked):
        raise InputError(next(iter(absent.values())))
    return absent
