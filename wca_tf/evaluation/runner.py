"""evaluate(config, model_dir): attack a trained model, judge the images, and write results.json and a report.

A report directory belongs to one model and one choice of images and seed. Evaluated again with other attacks, it gets
those in addition; killed at any moment, it goes on where it was.

report_dir/
    results.json      every number, with its interval
    examples.npz      the numbers of every image
    report.html       tables and figures, in one file
    model_card.md     what the model is worth, in a page
    evaluation.json   what the directory belongs to
    records/          a file per attack: what evaluations go on from
"""

import dataclasses
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf import files
from wca_tf.attacks import parse_attack
from wca_tf.attacks.objectives import num_classes_of
from wca_tf.config import EvaluateConfig, TrainConfig, expand
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples, check_images
from wca_tf.data.sources import load_examples
from wca_tf.distribution.strategy import check_same_everywhere, lost_worker_is_an_error, make_strategy, one_writer
from wca_tf.errors import InputError
from wca_tf.evaluation.attacking import CLEAN_TRIAL, Settings, Trial, check_attacks, run_attacks
from wca_tf.evaluation.checklist import FEWEST, Searches, has_checklist, run_checklist
from wca_tf.evaluation.identity import SCHEMA, describe_model, digest_of_net, evaluation_name, stored_results
from wca_tf.evaluation.outcomes import Outcome, per_example_arrays
from wca_tf.evaluation.report.page import write_report
from wca_tf.evaluation.self_test import IMAGES, SelfTest, run_self_test
from wca_tf.evaluation.summary import summarise
from wca_tf.inference_copy import inference_copy
from wca_tf.keras_target import target_of
from wca_tf.model_dir import ModelDirectory, load_model, versions
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.targets import AnyTarget, has_noise

FULL_SEARCHES = Searches()
# Written before results.json.
WRITTEN = ("examples.npz", "report.html", "model_card.md")


def evaluate(
    config: EvaluateConfig, model_dir: str | Path, report_dir: str | Path = "", searches: Searches = FULL_SEARCHES
) -> dict[str, Any]:
    """Attack the model in `model_dir` and write results.json, examples.npz, report.html and model_card.md.

    Args:
        config: which attacks, on which images.
        model_dir: directory of a training run.
        report_dir: where the results go; empty for model_dir/evaluations/NAME, NAME made of the model, the images and
            the seed.
        searches: the checklist's longest attacks.

    Returns:
        The contents of results.json.

    Raises:
        InputError: no or a broken model, absent data, a report directory of another evaluation.
    """
    with lost_worker_is_an_error(Path(report_dir or model_dir)):
        strategy = make_strategy(config.strategy)
        with strategy.scope():
            return _evaluate_model_dir(config, model_dir, report_dir, strategy, searches)


def _evaluate_model_dir(
    config: EvaluateConfig,
    model_dir: str | Path,
    report_dir: str | Path,
    strategy: tf.distribute.Strategy,
    searches: Searches,
) -> dict[str, Any]:
    directory, model, examples = _load(config, model_dir)
    train_config = directory.train_config()
    identity = {
        "model_dir": str(directory.path.resolve()),
        "model": describe_model(directory),
        "images_sha256": files.sha256_of_arrays(examples.images, examples.labels),
        "config": config.identity(),
    }
    asked = dataclasses.replace(config, tfds_data_dir="", strategy="auto")
    check_same_everywhere(strategy, lambda: (asked, identity["model"], identity["images_sha256"]))
    report = Path(report_dir) if report_dir else directory.evaluations / evaluation_name(identity)
    described = {"dataset": train_config.dataset, "split": config.split, "training": dataclasses.asdict(train_config)}
    target = _averaged(target_of(model), config)
    with one_writer(strategy, report) as own:
        return _evaluate(target, examples, config, own, identity, described, model, searches)


def _averaged(target: AnyTarget, config: EvaluateConfig) -> AnyTarget:
    """The net as it is asked: with the mean of `average_draws` answers."""
    return target.averaged(config.average_draws) if config.average_draws > 1 else target


def _attacked(target: AnyTarget, model: Any, config: EvaluateConfig) -> AnyTarget:
    """What attacks see of the net: itself, or its copy in another precision."""
    if config.attack_precision == EvaluateConfig.attack_precision:
        return target
    if not isinstance(model, StochasticClassifier):
        raise InputError(f"expected a net of this package with attack_precision, received {type(model).__name__}")
    return _averaged(target_of(inference_copy(model, config.attack_precision)), config)


def _load(config: EvaluateConfig, model_dir: str | Path) -> tuple[ModelDirectory, StochasticClassifier, Examples]:
    """A training run, its best model and the images to evaluate it on, checked to belong together."""
    directory = ModelDirectory(model_dir)
    train_config = directory.train_config()
    model = load_model(directory.best)
    examples = load_evaluation_examples(config, train_config)
    directory.check_same_dataset(examples)
    if (model.num_classes, model.defence) != (len(examples.class_names), train_config.defence):
        raise InputError(f"{directory.best} is not the model that {directory.config} describes")
    return directory, model, examples


def self_test(config: EvaluateConfig, model_dir: str | Path) -> list[SelfTest]:
    """Have each attack find adversarial images planted on the features of the model in `model_dir`."""
    _, model, examples = _load(dataclasses.replace(config, num_examples=IMAGES), model_dir)
    target, epsilon = _averaged(target_of(model), config), max(config.parsed_epsilons)
    return run_self_test(target, config.parsed_attacks, epsilon, examples, config.seed)


def evaluate_model(
    model: keras.Model | AnyTarget,
    images: np.ndarray,
    labels: np.ndarray,
    config: EvaluateConfig,
    report_dir: str | Path,
    name: str = "keras model",
) -> dict[str, Any]:
    """Attack any Keras classifier, or any target, on images in memory, and write what `evaluate` writes.

    Args:
        model: returns logits [N, C]; noise in any layer is welcome.
        images: [N, H, W, channels], uint8, or float32 in [0, 1].
        labels: whole numbers [N].
        config: which attacks; `split`, `tfds_data_dir` and `strategy` do not count. To share out the attacks of a
            Keras model, build it and call this in a strategy's scope.
        report_dir: where the results go.
        name: what the report calls the model. A report directory belongs to it, the images and the Keras model; a
            target is known by its name alone.

    Raises:
        InputError: images, labels or a model that cannot be used; a report directory of another evaluation.
    """
    images, labels = np.asarray(images), np.asarray(labels)
    check_images(images)
    labels = labels.astype(np.int64) if np.issubdtype(labels.dtype, np.integer) else labels
    target = target_of(model, images.shape[1:]) if isinstance(model, keras.Model) else model
    names = tuple(str(i) for i in range(num_classes_of(target, to_float(tf.constant(images[:1])))))
    examples = Examples(images, labels, names).take(slice(0, config.num_examples or None))
    identity = {
        "model_dir": None,
        "model": {"name": name, "sha256": digest_of_net(model) if isinstance(model, keras.Model) else None},
        "images_sha256": files.sha256_of_arrays(examples.images, examples.labels),
        "config": config.identity(),
    }
    described = {"dataset": name, "split": "given", "training": None}
    return _evaluate(_averaged(target, config), examples, config, Path(report_dir), identity, described, model)


def _evaluate(
    target: AnyTarget,
    examples: Examples,
    config: EvaluateConfig,
    report: Path,
    identity: dict[str, Any],
    described: dict[str, Any],
    model: Any,
    searches: Searches = FULL_SEARCHES,
) -> dict[str, Any]:
    if not target.own_draws:  # an image's draws may depend on its place in the batch
        identity = {**identity, "config": {**identity["config"], "batch_size": config.batch_size}}
    if config.checklist and len(examples) < FEWEST:
        raise InputError(f"the checklist expects {FEWEST} images or more, received {len(examples)}")
    stored = stored_results(report, identity)
    if stored and _is_complete(stored, config, searches) and all((report / name).exists() for name in WRITTEN):
        print(f"{report} has this evaluation; nothing to do")
        return stored
    settings = Settings(config.seed, config.batch_size)
    attacked = _attacked(target, model, config)
    check_attacks(attacked, trials_of(config), examples)
    with files.exclusive_directory(report):
        stored = stored_results(report, identity) or {"attacks": [], "checklist": []}
        files.write_json(report / "evaluation.json", identity)
        kept = [attack for attack in stored["attacks"] if _can_be_made(attack, config)]
        trials = [CLEAN_TRIAL, *_merge(kept, config)]
        _check_one_norm(trials, report)
        outcomes = run_attacks(target, trials, examples, settings, report / "records", attacked)
        checklist = stored["checklist"]
        if config.checklist and not has_checklist(checklist, config, searches):
            attacks = list(dict.fromkeys(trial.attack for trial in trials if trial.attack))
            checklist = run_checklist(target, examples, config, attacks, settings, report / "checklist", searches)
        told = {"schema": SCHEMA, **identity, **described, "num_examples": len(examples), "seed": config.seed}
        seconds = round(sum(outcome.seconds for outcome in outcomes), 1)
        results = {**told, "versions": versions(), "seconds": seconds, **summarise(outcomes), "checklist": checklist}
        _write(report, results, outcomes, examples, model, has_noise(target))
    print(f"written: {report / 'report.html'}, results.json, examples.npz and model_card.md beside it")
    return results


def _write(
    report: Path, results: dict[str, Any], outcomes: list[Outcome], examples: Examples, model: Any, noisy: bool
) -> None:
    """Write what an evaluation leaves; results.json last, which says that it is complete."""
    arrays: dict[str, Any] = per_example_arrays(outcomes, examples.labels)
    files.write_atomically(report / "examples.npz", lambda path: np.savez(path, **arrays))
    sections = []
    if isinstance(model, StochasticClassifier):
        average_draws = results["config"].get("average_draws", 1)
        sections = model.report_sections(examples, outcomes[0].judgement.z_margin, average_draws)
    write_report(report, results, outcomes, examples, sections, noisy)
    files.write_json(report / "results.json", results)


def trials_of(config: EvaluateConfig) -> list[Trial]:
    """Each attack at each radius, then those without a radius, in the order given."""
    with_radius = [attack for attack in config.parsed_attacks if attack.has_radius]
    without = [Trial(attack, None) for attack in config.parsed_attacks if not attack.has_radius]
    return [Trial(attack, epsilon) for epsilon in config.parsed_epsilons for attack in with_radius] + without


def _trial_of(attack: dict[str, Any], config: EvaluateConfig) -> Trial:
    """Return the trial that an entry of results.json is of."""
    return Trial(parse_attack(attack["name"], eot_samples=config.eot_samples), attack["epsilon"])


def _merge(stored: list[dict[str, Any]], config: EvaluateConfig) -> list[Trial]:
    """What was run and what is to be run, once each; an epsilon's attacks together, those without one last."""
    unique = list(dict.fromkeys([*(_trial_of(attack, config) for attack in stored), *trials_of(config)]))
    radii = list(dict.fromkeys(trial.epsilon for trial in unique if trial.epsilon is not None))
    return [trial for radius in (*radii, None) for trial in unique if trial.epsilon == radius]


def _can_be_made(attack: dict[str, Any], config: EvaluateConfig) -> bool:
    """Whether a stored attack is as it would be made today, or can be made again; says so of one that cannot."""
    trial, source = _trial_of(attack, config), attack["config"].get("source")
    if trial.made(attack["config"]) or not source or ModelDirectory(expand(source)).best.exists():
        return True
    print(f"left out: {attack['name']}, which is of an older algorithm, and whose source is no longer there")
    return False


def _check_one_norm(trials: list[Trial], report: Path) -> None:
    """Raise InputError when radii of two norms would stand side by side."""
    norms = sorted({trial.norm for trial in trials if trial.norm})
    if len(norms) > 1:
        raise InputError(
            f"expected attacks of one norm in {report}, received {', '.join(norms)}: name another --report_dir"
        )


def _is_complete(stored: dict[str, Any], config: EvaluateConfig, searches: Searches) -> bool:
    """Whether nothing is left to do: what was asked for before counts too, where its algorithm has changed since."""
    done = {(attack["name"], attack["epsilon"]): attack["config"] for attack in stored["attacks"]}
    missing = [t for t in _merge(stored["attacks"], config) if not t.made(done.get((t.name, t.epsilon)))]
    return not missing and not (config.checklist and not has_checklist(stored["checklist"], config, searches))


def load_evaluation_examples(config: EvaluateConfig, train_config: TrainConfig) -> Examples:
    """The first `num_examples` images of the split; the validation images are those that training kept aside."""
    if config.tfds_data_dir:
        train_config = dataclasses.replace(train_config, tfds_data_dir=config.tfds_data_dir)
    if config.split == "test":
        return load_examples(train_config, "test", config.num_examples)
    _, kept = load_examples(train_config, "train").split_validation(train_config.validation_split, train_config.seed)
    if kept is None:
        raise InputError("expected --split=test: this net was trained with --validation_split=0, on all images")
    return kept.take(slice(0, config.num_examples or None))
