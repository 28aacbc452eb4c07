"""evaluate(config, model_dir): attack a trained model, judge the images, and write results.json and examples.npz."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from wca_tf import files
from wca_tf.attacks import build_attack
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.projected_gradient import ProjectedGradient
from wca_tf.attacks.target import HeadNoiseTarget, target_of
from wca_tf.config import EvaluateConfig, TrainConfig, config_to_json
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.data.sources import load_examples
from wca_tf.errors import InputError
from wca_tf.evaluation.accuracy import Judgement, judge, mean_with_interval
from wca_tf.model_dir import ModelDirectory, load_model, versions
from wca_tf.progress import progress_bar
from wca_tf.seeds import fold_in, make_seed

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Attacked:
    """One attack's outcome: how the images are judged and, per image, how far they are from the clean ones.

    The clean images are an attack of epsilon 0 without a configuration.
    """

    name: str
    epsilon: float
    config: dict[str, Any]
    judgement: Judgement
    linf: np.ndarray
    l2: np.ndarray
    zero_gradients: np.ndarray
    seconds: float


def evaluate(config: EvaluateConfig, model_dir: str | Path, report_dir: str | Path = "") -> dict[str, Any]:
    """Attack the model in `model_dir` and write results.json and examples.npz to `report_dir`.

    Args:
        config: which attacks, on which images.
        model_dir: directory of a training run.
        report_dir: where the results go; empty for model_dir/evaluations/NAME, NAME made of the configuration.

    Returns:
        The contents of results.json.

    Raises:
        InputError: no or a broken model, absent data, a report directory of another evaluation.
    """
    started = time.monotonic()
    directory = ModelDirectory(model_dir)
    train_config = directory.train_config()
    model = load_model(directory.best)
    trained = describe_model(directory)
    identity = {"model_dir": str(directory.path.resolve()), "model": trained, "config": config.identity()}
    report = Path(report_dir) if report_dir else directory.evaluations / evaluation_name(identity)
    stored = _stored_results(report, identity)
    if stored:
        print(f"{report} has this evaluation; nothing to do")
        return stored
    examples = load_evaluation_examples(config, train_config)
    directory.check_same_dataset(examples)
    if (model.num_classes, model.covariance) != (len(examples.class_names), train_config.covariance):
        raise InputError(f"{directory.best} is not the model that {directory.config} describes")
    with files.exclusive_directory(report):
        outcomes = run_attacks(target_of(model), config, examples)
        described = {"num_examples": len(examples), "seconds": round(time.monotonic() - started, 1)}
        results = {**identity, **_describe(config, train_config), **described, **summarise(outcomes)}
        arrays: dict[str, Any] = per_example_arrays(outcomes, examples)
        files.write_atomically(report / "examples.npz", lambda path: np.savez(path, **arrays))
        files.write_json(report / "results.json", results)
    print(f"written: {report / 'results.json'} and examples.npz beside it")
    return results


def _describe(config: EvaluateConfig, train_config: TrainConfig) -> dict[str, Any]:
    """The parts of results.json that are known before an evaluation."""
    return {
        "schema": SCHEMA,
        "dataset": train_config.dataset,
        "split": config.split,
        "seed": config.seed,
        "training": config_to_json(train_config),
        "versions": versions(),
        "checklist": [],
    }


def describe_model(directory: ModelDirectory) -> dict[str, Any]:
    """Which state of a model is evaluated: its epoch, whether training was complete, and its file's SHA-256."""
    digest = hashlib.sha256(directory.best.read_bytes()).hexdigest()
    return {"epoch": directory.best_epoch()["epoch"], "training_complete": directory.last.exists(), "sha256": digest}


def evaluation_name(identity: dict[str, Any]) -> str:
    """A directory name for an evaluation: equal for equal models and configurations alone."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    return f"{identity['config']['split']}-{identity['config']['num_examples'] or 'all'}-{digest}"


def load_evaluation_examples(config: EvaluateConfig, train_config: TrainConfig) -> Examples:
    """The first `num_examples` images of the split; the validation images are those that training kept aside."""
    if config.tfds_data_dir:
        train_config = dataclasses.replace(train_config, tfds_data_dir=config.tfds_data_dir)
    if config.split == "test":
        examples = load_examples(train_config, "test")
    else:
        _, examples = load_examples(train_config, "train").split_validation(
            train_config.validation_split, train_config.seed
        )
    return examples.take(slice(0, config.num_examples or None))


def run_attacks(target: HeadNoiseTarget, config: EvaluateConfig, examples: Examples) -> list[Attacked]:
    """The clean images' outcome, then each attack's at each epsilon, in the order given."""
    attacks: list[tuple[str, ProjectedGradient | None]] = [("clean", None)]
    for epsilon in config.parsed_epsilons():
        for name, _ in config.parsed_attacks():
            attacks.append((name, build_attack(name, epsilon, config.eot_samples)))
    work = sum(attack.steps + 2 if attack else 1 for _, attack in attacks) * len(examples)
    with progress_bar(work, "image steps") as progress:
        return [_attack_all(target, name, attack, examples, config, progress) for name, attack in attacks]


def summarise(outcomes: list[Attacked]) -> dict[str, Any]:
    """The parts of results.json that are about numbers: clean, attacks, worst_case."""
    clean, *attacked = outcomes
    epsilons = list(dict.fromkeys(outcome.epsilon for outcome in attacked))
    return {
        "clean": {**clean.judgement.numbers(), "probability_error": float(clean.judgement.probability_error.max())},
        "attacks": [_summary(outcome) for outcome in attacked],
        "worst_case": [
            {"epsilon": epsilon, "expected_accuracy": mean_with_interval(worst_case(outcomes, epsilon))}
            for epsilon in epsilons
        ],
    }


def worst_case(outcomes: list[Attacked], epsilon: float) -> np.ndarray:
    """Per image, the smallest P(correct) [N] over the clean image and all attacks at `epsilon`."""
    clean, *attacked = outcomes
    chosen = [clean, *(outcome for outcome in attacked if outcome.epsilon == epsilon)]
    return np.min([outcome.judgement.probability_correct for outcome in chosen], axis=0)


def _summary(outcome: Attacked) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "epsilon": outcome.epsilon,
        "config": outcome.config,
        **outcome.judgement.numbers(),
        "probability_error": float(outcome.judgement.probability_error.max()),
        "zero_gradient_share": float(outcome.zero_gradients.mean()),
        "seconds": round(outcome.seconds, 2),
    }


def _attack_all(
    target: HeadNoiseTarget,
    name: str,
    attack: ProjectedGradient | None,
    examples: Examples,
    config: EvaluateConfig,
    progress: tqdm,
) -> Attacked:
    started = time.monotonic()
    seed = make_seed(config.seed)
    progress.set_description(f"{name} {attack.epsilon:.4g}" if attack else name, refresh=False)
    parts: list[tuple[Judgement, np.ndarray, np.ndarray, np.ndarray]] = []
    for images, labels, indices, count in _padded_batches(examples, config.batch_size):
        adversarial, still = images, tf.zeros(len(images), tf.bool)
        if attack:
            still = attack.zero_gradients(target, images, labels, fold_in(seed, 0))
            adversarial = attack(target, images, labels, indices, fold_in(seed, 1))
        judgement = judge(target, adversarial, labels, indices, seed)
        distances = [BALLS[norm].distance(adversarial - images).numpy() for norm in ("linf", "l2")]
        whole = (judgement, *distances, still.numpy())
        parts.append(whole if count == len(images) else _first(whole, count))
        progress.update(count * (attack.steps + 2 if attack else 1))
    judgements, linf, l2, zero = zip(*parts, strict=True)
    return Attacked(
        name,
        attack.epsilon if attack else 0.0,
        dataclasses.asdict(attack) if attack else {},
        Judgement.concatenate(list(judgements)),
        np.concatenate(linf),
        np.concatenate(l2),
        np.concatenate(zero),
        time.monotonic() - started,
    )


def _first(whole: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    judgement, *arrays = whole
    fields = {field.name: getattr(judgement, field.name)[:count] for field in dataclasses.fields(judgement)}
    return Judgement(**fields), *(array[:count] for array in arrays)


def _padded_batches(examples: Examples, batch_size: int) -> Iterator[tuple[tf.Tensor, tf.Tensor, tf.Tensor, int]]:
    """(images, labels, indices, how many are not padding); batches of one size, so that graphs are traced once."""
    size = min(batch_size, len(examples))
    for start in range(0, len(examples), size):
        indices = np.minimum(np.arange(start, start + size), len(examples) - 1)
        images = to_float(tf.constant(examples.images[indices]))
        yield images, tf.constant(examples.labels[indices]), tf.constant(indices), min(size, len(examples) - start)


def per_example_arrays(outcomes: list[Attacked], examples: Examples) -> dict[str, np.ndarray]:
    """Arrays of examples.npz: `index`, `label` [N]; per outcome, clean first: names, epsilons [A], numbers [A, N]."""
    return {
        "index": np.arange(len(examples)),
        "label": examples.labels,
        "attack": np.array([outcome.name for outcome in outcomes]),
        "epsilon": np.array([outcome.epsilon for outcome in outcomes]),
        "correct": np.stack([outcome.judgement.correct for outcome in outcomes]),
        "probability_correct": np.stack([outcome.judgement.probability_correct for outcome in outcomes]),
        "probability_error": np.stack([outcome.judgement.probability_error for outcome in outcomes]),
        "z_margin": np.stack([outcome.judgement.z_margin for outcome in outcomes]),
        "linf": np.stack([outcome.linf for outcome in outcomes]),
        "l2": np.stack([outcome.l2 for outcome in outcomes]),
    }


def _stored_results(report: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The results in `report`, if any; raises InputError when they are of another evaluation, which would be lost."""
    path = report / "results.json"
    if not path.exists():
        return None
    stored = files.read_json(path)
    if not isinstance(stored, dict) or any(stored.get(key) != value for key, value in identity.items()):
        raise InputError(f"{path} is of another model or evaluation: name another --report_dir")
    return stored
