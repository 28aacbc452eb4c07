"""Every stochastic defence judged alike: by its authors' protocol, by strong attacks, and without its noise."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from wca_tf.attacks import BallAttack
from wca_tf.data.examples import Examples
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.identity import describe_model
from wca_tf.evaluation.intervals import Number
from wca_tf.evaluation.measures.fixed_draws import attack_fixed_draws
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.runner import evaluate_model, load_evaluation_examples
from wca_tf.evaluation.trials import Settings
from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.run import Evaluated, Run
from wca_tf.experiments.tables import Table
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.targets import HeadNoiseTarget, is_gaussian
from wca_tf.runs.model_dir import ModelDirectory

EPSILON = "8/255"
WORST, TWIN, ADDS = "worst case, expected", "noise off: worst case", "the noise adds"
CHART = ("clean", "authors' protocol", WORST, TWIN)  # the columns of the chart
STRONG = ("pgd", "single_draw", "transfer:source_objective=dlr")
# RFD's ν: the largest that costs at most a point of validation accuracy.
DEVIATIONS, MAX_COST = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0), 0.01


class Rival(NamedTuple):
    """A defence in the table.

    Attributes:
        label: the name of the row.
        claim: clean accuracy and accuracy under attack at 8/255 on CIFAR-10, as the paper quotes it or the authors do.
        protocol: the attack of their code, as written in `--attacks`; one draw judges.
    """

    label: str
    claim: str
    protocol: str


# The attacks take a fresh draw at each step, without EoT, except RFD's and those of the first two rows.
RIVALS: dict[str, Rival] = {
    "none": Rival("No Defense", "–", "pgd"),
    "wca": Rival("WCA-Net", "93.2 / 71.4 (ResNet-18, PGD)", "pgd"),
    "rse": Rival("RSE", "87.5 / 40.0 (ResNeXt, PGD)", "pgd:relative_step_size=0.223:random_start=false:eot_samples=1"),
    "pni": Rival("PNI-W", "87.2 / 49.4 (ResNet-18, PGD-7)", "pgd:steps=7:relative_step_size=0.32:eot_samples=1"),
    "l2p": Rival(
        "Learn2Perturb", "85.3 / 56.1 (ResNet-18, PGD-7)", "pgd:steps=7:relative_step_size=0.32:eot_samples=1"
    ),
    "adv_bnn": Rival(
        "Adv-BNN", "82.2 / 53.6 (ResNet-18, PGD)", "pgd:relative_step_size=0.223:random_start=false:eot_samples=1"
    ),
    "se_snn": Rival("SE-SNN", "MNIST figures without numbers", "fgsm"),
    "smoothing": Rival("smoothing", "certified in l2 only", "pgd"),
    "ctrw": Rival("CTRW", "16 points over plain AT (ResNet-18, PGD-20)", "single_draw"),
    "rfd": Rival("RFD, last features", "query attacks only", "square"),
}


def reproduce(run: Run) -> Table:
    """Return a table with a row for each defence, trained on clean images and adversarially."""
    [dataset] = run.datasets
    table = Table(f"Stochastic defences on {dataset}, epsilon = {EPSILON}", ["clean", "authors' claim"])
    for more, words in (("", ""), ("_at", ", AT")):
        for name, rival in RIVALS.items():
            model_dir = _trained(run, dataset, name, more)
            _add_row(table, run, model_dir, rival.label + words, rival)
    table.notes = [
        "authors' claim: clean / attacked, CIFAR-10, as the paper quotes it or the authors print it",
        "authors' protocol: their attack as coded, at 8/255 here; one draw of the noise judges",
        "noise off: the same net without its noise, under its own worst case by the same attack adaptive",
        "AT: on images attacked by FGSM-RS alone, for every defence; not the authors' own recipes",
        "nets with noise before the last features: fewer images, 20 draws, Square of 200 queries",
        *run.notes(dataset, [(name, f"rival_{name}") for name in RIVALS], []),
    ]
    bar_chart(table, run.report_dir, "defences", ("paper", f"here, {dataset}"), CHART)
    return table


def _trained(run: Run, dataset: str, name: str, more: str) -> Path:
    """Return the directory of a net; for RFD, of the net whose noise is the largest that costs a point at most."""
    if name != "rfd":
        return run.trained(dataset, f"rival_{name}{more}")
    plain = ModelDirectory(run.trained(dataset, f"rival_none{more}")).best_epoch()
    chosen = Path()
    for deviation in DEVIATIONS:
        path = run.trained(dataset, f"rival_rfd{more}", defence=f"rfd:deviation={deviation}")
        cost = plain["val_accuracy"] - ModelDirectory(path).best_epoch()["val_accuracy"]
        if cost <= MAX_COST or deviation == DEVIATIONS[0]:
            chosen = path
    return chosen


def _add_row(table: Table, run: Run, model_dir: Path, label: str, rival: Rival) -> None:
    net = ModelDirectory(model_dir).load_model(ModelDirectory(model_dir).best)
    hidden = not is_gaussian(net.target())
    images, adaptive, asked = _budget(run, hidden)
    attacks = list(dict.fromkeys([rival.protocol, *STRONG, *adaptive]))
    found = run.evaluated_at(model_dir, attacks, EPSILON, num_examples=images, **asked)
    epsilon = found.results["worst_case"][0]["epsilon"]
    table.add(label, "clean", found.number("clean", what="expected_accuracy"))
    table.add(label, "authors' claim", text=rival.claim)
    table.add(label, "authors' protocol", found.number(rival.protocol, epsilon))
    for attack, column in zip(
        [*STRONG, *adaptive], ("PGD, EoT", "single draw", "transfer", "adaptive", "Square"), strict=True
    ):
        table.add(label, column, found.number(attack, epsilon, "expected_accuracy"))
    worst = found.worst_judgement(attacks, epsilon)
    known = _known_draws(run, model_dir, net, images, adaptive[0])
    if known:
        means = [outcome.judgement.probability_correct.mean() for outcome in known]
        table.add(label, "knows the draw", text=f"{100 * np.mean(means):.1f}")
    table.add(label, WORST, worst.n_query_accuracy(1))
    table.add(label, "100 queries", worst.n_query_accuracy(100))
    twin = _without_noise(run, model_dir, net, images, adaptive[0])
    table.add(label, "noise off: clean", twin.number("clean"))
    table.add(label, TWIN, _worst(twin))
    if known:
        gain = worst.less(twin.worst_judgement(_attacks_of(twin), epsilon))
        table.add(label, ADDS, text=f"{100 * gain['value']:+.1f} ± {50 * (gain['high'] - gain['low']):.1f}")
    table.add(label, "images", text=str(found.results["num_examples"]))


def _budget(run: Run, hidden: bool) -> tuple[int, list[str], dict[str, Any]]:
    """Return the number of images, the attack `adaptive` and Square as written, and changes to the EvaluateConfig."""
    adaptive, square = run.budget.written("adaptive"), run.budget.written("square")
    if not hidden or run.config.scale == "paper":
        return run.budget.num_examples, [adaptive, square], {}
    if run.config.scale == "tiny":
        return run.budget.num_examples, [adaptive, square], {"eot_samples": 2}
    return 100, ["adaptive:queries=200", "square:queries=200"], {"eot_samples": 20}


def _known_draws(run: Run, model_dir: Path, net: StochasticClassifier, images: int, adaptive: str) -> list[Outcome]:
    """Return the outcome of `adaptive` on the net under each of 8 draws that the attack knows; empty without noise."""
    config, examples = _images(run, model_dir, images, adaptive)
    [attack], epsilon = config.parsed_attacks, config.parsed_radii[0].epsilon
    assert isinstance(attack, BallAttack)  # noqa: S101
    records = model_dir / "evaluations" / f"known_draws-{images or 'all'}-{_digest(model_dir)}"
    return attack_fixed_draws(net.target(), attack, epsilon, examples, Settings(config.seed), records)


def _without_noise(run: Run, model_dir: Path, net: StochasticClassifier, images: int, adaptive: str) -> Evaluated:
    """Evaluate a net without its noise under `adaptive`."""
    config, examples = _images(run, model_dir, images, adaptive)
    scale = tf.zeros([net.num_classes, 1])
    target = HeadNoiseTarget(tf.identity, net.noise_free_logits, scale, has_noise=False)
    report_dir = model_dir / "evaluations" / f"noise_off-{images or 'all'}-{_digest(model_dir)}"
    name = f"without noise: {_digest(model_dir)}"
    return Evaluated(evaluate_model(target, examples.images, examples.labels, config, report_dir, name), report_dir)


def _images(run: Run, model_dir: Path, images: int, adaptive: str) -> tuple[EvaluateConfig, Examples]:
    """Return the configuration of an evaluation by `adaptive` alone, and its images."""
    data_dir = run.config.tfds_data_dir
    config = EvaluateConfig(attacks=adaptive, epsilons=EPSILON, num_examples=images, tfds_data_dir=data_dir)
    return config, load_evaluation_examples(config, ModelDirectory(model_dir).train_config())


def _digest(model_dir: Path) -> str:
    """Return the begin of the SHA-256 of the net's file: records of another net do not count."""
    digest: str = describe_model(ModelDirectory(model_dir))["sha256"][:12]
    return digest


def _attacks_of(found: Evaluated) -> list[str]:
    return [entry["name"] for entry in found.results["attacks"]]


def _worst(found: Evaluated) -> Number:
    number: Number = found.results["worst_case"][0]["expected_accuracy"]
    return number
