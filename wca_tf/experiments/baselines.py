"""The defences that the experiment `defences` compares, and the evaluations of a net that only it makes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from wca_tf.attacks import BallAttack
from wca_tf.core.seeds import Purpose, fold_in, make_seed
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.defences import declaration_of
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.identity import describe_model
from wca_tf.evaluation.measures.known_draws import attack_fixed_draws
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.runner import evaluate_model, load_evaluation_examples
from wca_tf.evaluation.trials import Settings
from wca_tf.experiments.paper import EPSILON
from wca_tf.experiments.run import Evaluated, Run
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.targets import GaussianLogitsTarget, is_gaussian
from wca_tf.runs.model_dir import ModelDirectory

# The attack of one who knows the draw: the net has no noise then.
KNOWING = "pgd:steps=40:objective=expected_margin"
# RFD's ν: the largest that costs at most a point of validation accuracy.
DEVIATIONS, MAX_COST = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0), 0.01
# The smaller budget of nets with noise before their last features: images, draws of EoT, and attacks.
FEW_IMAGES, FEW_DRAWS = 100, 20
FEW_STEPS, FEW_QUERIES = "adaptive:steps=20:apgd_steps=40:queries=200", "square:queries=200"
BUDGET = f"{FEW_IMAGES} images, {FEW_DRAWS} draws, {FEW_STEPS}, {FEW_QUERIES}"
NOISE_IMAGES, NOISE_DRAWS = 100, 50  # that measure the size of the noise


class Baseline(NamedTuple):
    """A defence in the table.

    Attributes:
        label: the name of the row.
        claim: clean accuracy and accuracy under attack at 8/255 on CIFAR-10 without adversarial training, as the paper
            quotes it or the authors print it.
        claim_at: the same with adversarial training.
        protocol: the attack of the authors, as written in `--attacks`. "" where they attack nothing.
        votes: the number of draws whose mean softmax answers in their code.
    """

    label: str
    claim: str
    claim_at: str
    protocol: str
    votes: int = 1


def _protocol(name: str) -> str:
    """Return the attack of a defence's authors; a cheaper one for RFD, whose authors have 10,000 queries."""
    return "square:queries=1000:eot_samples=1:resample_noise=true" if name == "rfd" else declaration_of(name).protocol


_CERTIFIED = "77 / 60 certified at l2 0.25 (ResNet-110)"
_QUERIES = "attacks by queries alone"
_LABELS_AND_CLAIMS: dict[str, tuple[str, str, str]] = {
    "none": ("No Defense", "–", "–"),
    "wca": ("WCA-Net", "93.2 / 71.4 (ResNet-18, PGD)", "88.1 / 70.4 (ResNet-18, PGD)"),
    "rse": ("RSE", "87.5 / 40.0 (ResNeXt, PGD)", "–"),
    "pni": ("PNI-W", "92.1 / 0.0 (ResNet-20, PGD-7)", "87.2 / 49.4 (ResNet-18, PGD-7)"),
    "l2p": ("Learn2Perturb", "–", "85.3 / 56.1 (ResNet-18, PGD-7)"),
    "adv_bnn": ("Adv-BNN", "–", "82.2 / 53.6 (ResNet-18, PGD)"),
    "se_snn": ("SE-SNN", "92.3 / 74.3 (ResNet-18, FGSM; the paper alone has it)", "–"),
    "smoothing": ("smoothing", _CERTIFIED, "–"),
    "ctrw": ("CTRW", "–", "16 to 17 points over plain AT (ResNet-18, PGD-20)"),
    "rfd": ("RFD, last features", _QUERIES, _QUERIES),
}
# The two whose code answers with the mean softmax of many draws.
_VOTES = {"rse": 50, "adv_bnn": 50}
BASELINES = {name: Baseline(*texts, _protocol(name), _VOTES.get(name, 1)) for name, texts in _LABELS_AND_CLAIMS.items()}


class Net(NamedTuple):
    """A trained net of the table, and what its evaluations cost.

    Attributes:
        path: its directory.
        model: the net.
        images: the number of test images that are attacked; 0 for all.
        draws: the number of draws that gradients average over.
        adaptive, square: these attacks as written, with the queries that the budget allows.
    """

    path: Path
    model: StochasticClassifier
    images: int
    draws: int
    adaptive: str
    square: str

    @property
    def asked(self) -> dict[str, Any]:
        """The fields of its EvaluateConfig that are not those of every experiment."""
        changed = {} if self.draws == EvaluateConfig.eot_samples else {"eot_samples": self.draws}
        return {"num_examples": self.images, **changed}


def trained_baseline(run: Run, dataset: str, name: str, more: str) -> Path:
    """Return the directory of a net; for RFD, of the net with the largest noise before it costs more than a point."""
    if name != "rfd":
        return run.trained(dataset, f"rival_{name}{more}")
    plain = ModelDirectory(run.trained(dataset, f"rival_none{more}")).best_epoch()
    chosen = Path()
    for deviation in DEVIATIONS:
        path = run.trained(dataset, f"rival_rfd{more}", defence=f"rfd:deviation={deviation}")
        cost = plain["val_accuracy"] - ModelDirectory(path).best_epoch()["val_accuracy"]
        if cost > MAX_COST and deviation > DEVIATIONS[0]:
            break
        chosen = path
    return chosen


def load_net(run: Run, path: Path) -> Net:
    """Return a trained net with its budget; a net with noise before its last features has a smaller one."""
    model = ModelDirectory(path).load_best()
    images, adaptive, square = run.budget.num_examples, run.budget.written("adaptive"), run.budget.written("square")
    net = Net(path, model, images, EvaluateConfig.eot_samples, adaptive, square)
    return net if is_gaussian(model.target()) or run.config.scale == "paper" else with_few(run, net)


def with_few(run: Run, net: Net) -> Net:
    """Return a net with the budget of nets with noise before their last features."""
    if run.config.scale == "tiny":
        return net._replace(draws=2)
    return net._replace(images=FEW_IMAGES, draws=FEW_DRAWS, adaptive=FEW_STEPS, square=FEW_QUERIES)


def known_draws(run: Run, net: Net, written: str = KNOWING, radius: str = EPSILON) -> list[Outcome]:
    """Return the outcome of an attack on the net under each of 8 draws that the attack knows; empty without noise."""
    config, examples = attacked_images(run, net, written, radius)
    [attack], epsilon = config.parsed_attacks, config.parsed_radii[0].epsilon
    if not isinstance(attack, BallAttack):
        raise TypeError(f"expected an attack in a ball, received {attack}")
    records = _directory(net, "known_draws")
    found = attack_fixed_draws(net.model.target(), attack, epsilon, examples, Settings(config.seed), records)
    run.times.attacks[records, written, epsilon] = sum(outcome.seconds for outcome in found)
    return found


def right_votes(run: Run, net: Net, baseline: Baseline) -> np.ndarray:
    """Return [N], whether the mean softmax of `baseline.votes` draws is right after the attack of the authors' code."""
    config, examples = attacked_images(run, net, baseline.protocol)
    [attack], epsilon = config.parsed_attacks, config.parsed_radii[0].epsilon
    target, seed, right = net.model.target(), fold_in(make_seed(config.seed), Purpose.BASELINE_VOTE), []
    for start in range(0, len(examples), FEW_IMAGES):
        part = slice(start, start + FEW_IMAGES)
        images, labels = to_float(tf.constant(examples.images[part])), examples.labels[part]
        indices = start + np.arange(len(labels))
        attacked = attack.run(target, images, labels, epsilon, indices, fold_in(seed, 0)).images
        logits = target.logits(target.features(attacked), fold_in(seed, 1), baseline.votes, tf.constant(indices))
        right.append(np.argmax(tf.reduce_mean(tf.nn.softmax(logits), axis=0), axis=1) == labels)
    return np.concatenate(right)


def noise_over_margin(run: Run, net: Net) -> float:
    """Return how large the noise is beside the distance to the nearest other class.

    It is the standard deviation over draws of the difference between the label's logit and that of the other class
    with the largest mean, over the size of this difference's mean. Each is a mean over clean test images.
    """
    config, examples = attacked_images(run, net, KNOWING)
    images, labels = to_float(tf.constant(examples.images[:NOISE_IMAGES])), examples.labels[:NOISE_IMAGES]
    rows, target = np.arange(len(labels)), net.model.target()
    seed = fold_in(make_seed(config.seed), Purpose.BASELINE_VOTE)
    logits = target.logits(target.features(images), seed, NOISE_DRAWS, tf.constant(rows)).numpy()
    others = logits.mean(axis=0)
    others[rows, labels] = -np.inf
    differences = logits[:, rows, labels] - logits[:, rows, others.argmax(axis=1)]
    return float(differences.std(axis=0, ddof=1).mean() / np.abs(differences.mean(axis=0)).mean())


def without_noise(run: Run, net: Net, attacks: Sequence[str], epsilon: str = EPSILON) -> Evaluated:
    """Evaluate the net without its noise, its deterministic twin, under attacks as written at a radius."""
    config, examples = attacked_images(run, net, ",".join(attacks), epsilon)
    scale = tf.zeros([net.model.num_classes, 1])
    target = GaussianLogitsTarget(tf.identity, net.model.noise_free_logits, scale, has_noise=False)
    report_dir, name = _directory(net, "noise_off"), f"without noise: {_digest(net.path)}"
    results = evaluate_model(target, examples.images, examples.labels, config, report_dir, name)
    run.times.add_attacks(report_dir, results, list(attacks))
    return Evaluated(results, report_dir)


def attacked_images(run: Run, net: Net, attacks: str, epsilon: str = EPSILON) -> tuple[EvaluateConfig, Examples]:
    """Return the configuration of an evaluation by these attacks, and its images."""
    data_dir = run.config.tfds_data_dir
    of_scale: dict[str, Any] = {"num_examples": net.images, "batch_size": run.budget.batch_size}
    config = EvaluateConfig(attacks=attacks, epsilons=epsilon, tfds_data_dir=data_dir, noise_off=False, **of_scale)
    return config, load_evaluation_examples(config, ModelDirectory(net.path))


def _directory(net: Net, what: str) -> Path:
    return net.path / "evaluations" / f"{what}-{net.images or 'all'}-{_digest(net.path)}"


def _digest(path: Path) -> str:
    """Return the begin of the SHA-256 of the net's file: records of another net do not count."""
    digest: str = describe_model(ModelDirectory(path))["sha256"][:12]
    return digest
