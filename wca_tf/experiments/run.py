"""The parts that experiments share: nets by data set and variant, trained when missing, and their evaluations.

models_dir/
    DATASET-SCALE-VARIANT/    a directory of bin/train, with its evaluations; experiments share them
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wca_tf.attacks.radii import Radius
from wca_tf.core.paths import expand_user
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures.criteria import GradientFreeAttacks
from wca_tf.evaluation.record import Evaluation
from wca_tf.evaluation.runner import evaluate
from wca_tf.evaluation.worst_case import worst_case
from wca_tf.experiments import EXPERIMENTS
from wca_tf.experiments.budgets import BUDGETS, Budget
from wca_tf.experiments.config import ReproduceConfig
from wca_tf.experiments.net_times import NetTimes, duration
from wca_tf.experiments.paper import EPSILON
from wca_tf.experiments.settings import differences, train_changes
from wca_tf.experiments.variants import FOLDER, VARIANTS
from wca_tf.gaussian.intervals import Number
from wca_tf.nets.judge import Judgement
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.training import train

OTHER_SEEDS = (1, 2)  # of the nets that are trained three times
STRATEGY = "one_device"  # an experiment is a process that trains and attacks one net after the other
# Options in the name of an evaluation's directory, besides its images. A checklist tests the attacks of its directory.
ASKED = ("eot_samples", "average_draws", "checklist", "attack_precision")
# A note for tables, of attack_precision.
BY_COPY = "attacks see a copy of the net whose backbone computes in bfloat16; the net itself is judged"
# Another, of a precision that follows from the machine: rows of one table may come from several machines.
PRECISION = "each net trained in float32 or with bfloat16, whichever its machine computes faster"


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """A net's evaluation, and its directory."""

    results: Evaluation
    report_dir: Path

    def number(self, attack: str, epsilon: float | None = None, what: str = "accuracy") -> Any:
        """Return the number `what` of an attack as written, or of the clean images with "clean" as attack.

        The paper's protocol is `accuracy`, with one draw per image.
        """
        return self.results["clean"][what] if attack == "clean" else self.entry(attack, epsilon)[what]

    def entry(self, attack: str, epsilon: float | None = None) -> dict[str, Any]:
        """Return an attack's entry in results.json."""
        [found] = [a for a in self.results["attacks"] if (a["name"], a["epsilon"]) == (attack, epsilon)]
        return found

    def worst_judgement(self, attacks: list[str], epsilon: float, norm: str = "linf") -> Judgement:
        """Return the judgement of each image in the worst case over these attacks in a ball and the clean image."""
        at = [each for each in self.results.attacks if each.radius == Radius(epsilon, norm) and each.name in attacks]
        return worst_case([self.results.clean, *at])

    def judgement(self, attack: str, epsilon: float) -> Judgement:
        """Return the judgement of each image under an attack as written, at a radius."""
        return self.results.attack(attack, epsilon).judgement

    def worst_case(self, attacks: list[str], epsilon: float, queries: int = 1) -> Number:
        """Return the mean of P(correct)ⁿ in the worst case over these attacks and the clean image; n is `queries`."""
        return self.worst_judgement(attacks, epsilon).n_query_accuracy(queries)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of an experiment: its directories, its scale, and the nets that it has come to."""

    config: ReproduceConfig
    times: NetTimes = dataclasses.field(default_factory=NetTimes, compare=False)

    @property
    def report_dir(self) -> Path:
        return expand_user(self.config.report_dir)

    @property
    def budget(self) -> Budget:
        return BUDGETS[self.config.scale]

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets of the experiment at this scale, keys of variants.PAPER."""
        return self.config.datasets

    def net(self, dataset: str, variant: str) -> TrainConfig:
        """Return the configuration that a net is trained with."""
        changes = train_changes(dataset, variant, self.config.scale)
        if changes["dataset"] == FOLDER:
            changes["dataset"] += self.config.mini_imagenet
        if source := changes.get("initial_weights"):
            changes["initial_weights"] = str(self.model_dir(dataset, source))
        data_dir, download = self.config.tfds_data_dir, self.config.download
        return TrainConfig(tfds_data_dir=data_dir, download=download, strategy=STRATEGY, **changes)

    def nets(self, dataset: str, variant: str) -> list[TrainConfig]:
        """Return the configurations that a net follows from: its own, after that of the net that it starts from."""
        source = VARIANTS[variant].get("initial_weights")
        return [*([self.net(dataset, source)] if source else []), self.net(dataset, variant)]

    def model_dir(self, dataset: str, variant: str, **changes: Any) -> Path:
        """Return the directory of a net; `changes` to its TrainConfig are part of the name."""
        name = "-".join([variant, *(f"{field}={value}" for field, value in changes.items())])
        return expand_user(self.config.models_dir) / f"{dataset}-{self.config.scale}-{name}"

    def trained(self, dataset: str, variant: str, snapshots: Sequence[int] = (), **changes: Any) -> Path:
        """Return the directory of a net. Train the net first where this is not done.

        `changes` to its TrainConfig are part of the directory's name. The net is kept after the epochs in `snapshots`.
        """
        if source := VARIANTS[variant].get("initial_weights"):
            self.trained(dataset, source)
        path = self.model_dir(dataset, variant, **changes)
        self.times.begin(path.name)
        try:
            config = dataclasses.replace(self.net(dataset, variant), **changes)
            if (directory := ModelDirectory(path)).config.exists():  # maybe by a machine of another fast precision
                config = dataclasses.replace(config, precision=directory.train_config().precision)
            train(config, path, snapshots)
        finally:
            self.times.add_training(path)  # of a run that diverges too
        return path

    def trained_for(self, path: Path) -> str:
        """Return how long the net of a directory was trained, such as "6 epochs of 20,000 images, 15 min"."""
        directory = ModelDirectory(path)
        seconds = [line["seconds"] for line in directory.read_metrics()]
        most = directory.train_config().max_train_examples
        images = f"{most:,} images" if most else "all images"
        return f"{len(seconds)} epoch{'s' * (len(seconds) != 1)} of {images}, {duration(sum(seconds))}"

    def other_seeds(self, dataset: str, variant: str) -> list[Path]:
        """Return the directories of nets that differ from that of `trained` in their seed alone."""
        return [self.trained(dataset, variant, seed=seed) for seed in OTHER_SEEDS]

    def evaluated(
        self, dataset: str, variant: str, attacks: list[str], epsilons: str = EPSILON, **changes: Any
    ) -> Evaluated:
        """Evaluate a net under attacks at radii. Attacks that an earlier experiment ran are not run again."""
        return self.evaluated_at(self.trained(dataset, variant), attacks, epsilons, **changes)

    def evaluated_at(self, model_dir: Path, attacks: list[str], epsilons: str = EPSILON, **changes: Any) -> Evaluated:
        """Evaluate the net in a directory under attacks at radii, on the scale's number of test images.

        `changes` to the EvaluateConfig may choose other images.
        """
        of_scale = {"num_examples": self.budget.num_examples, "batch_size": self.budget.batch_size}
        asked = {**of_scale, "tfds_data_dir": self.config.tfds_data_dir, **changes}
        config = EvaluateConfig(
            attacks=",".join(attacks), epsilons=epsilons, strategy=STRATEGY, noise_off=False, **asked
        )
        named = "-".join(
            [config.split, str(config.num_examples or "all"), *(f"{k}={changes[k]}" for k in ASKED if k in changes)]
        )
        report_dir = model_dir / "evaluations" / named
        results = evaluate(config, model_dir, report_dir, GradientFreeAttacks(**self.budget.searches))
        self.times.add_attacks(report_dir, results, attacks)
        return Evaluated(results, report_dir)

    def notes(
        self,
        dataset: str,
        nets: Sequence[tuple[Any, ...]],
        attacks: list[str],
        num_examples: int | None = None,
        split: str = "test",
        **changes: Any,
    ) -> list[str]:
        """Return notes for the table that say how this run differs from the paper's.

        Args:
            dataset: a key of variants.PAPER.
            nets: (label, variant, ...), as in paper.py.
            attacks: names of the attacks whose budget may be smaller than the paper's.
            num_examples: number of images attacked, where it is not the number of the budget.
            split: "test" or "validation", of the images attacked.
            changes: changes to the nets' TrainConfig.
        """
        variants = list(dict.fromkeys(variant for _, variant, *_ in nets))
        alike: dict[str, list[str]] = {}
        for variant in variants:
            differs = differences(dataclasses.replace(self.net(dataset, variant), **changes), dataset, variant)
            alike.setdefault("; ".join(differs) or "as in the paper", []).append(variant)
        notes = [f"{dataset} ({', '.join(names)}): {differs}" for differs, names in alike.items()]
        if any("precision" in train_changes(dataset, variant, self.config.scale) for variant in variants):
            notes.append(PRECISION)
        papers = EXPERIMENTS[self.config.experiment].full
        if dataset not in papers:
            notes.insert(
                0, f"data set {dataset}, backbone {self.net(dataset, variants[0]).backbone}; the paper's: {papers[0]}"
            )
        images = self.budget.num_examples if num_examples is None else num_examples
        notes.append(f"{images or 'all'} {split} images")
        cut = [self.budget.written(name) for name in attacks if self.budget.written(name) != name]
        return notes + ([f"attacks with less than the paper's budget: {', '.join(cut)}"] if cut else [])
