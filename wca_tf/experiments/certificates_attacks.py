"""Attacks that test certificates too: by an attacker who knows the draw, and on the net without its noise."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wca_tf.attacks import BallAttack, parse_attack
from wca_tf.attacks.radii import parse_radii
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures.certificates import Head
from wca_tf.evaluation.measures.fixed_draws import attack_fixed_draws, draw_seeds
from wca_tf.evaluation.runner import load_evaluation_examples
from wca_tf.evaluation.trials import Settings
from wca_tf.experiments.certificate_nets import ATTACKED_IMAGES, KNOWING, attacks_on_both
from wca_tf.experiments.certificates_noise import head_of
from wca_tf.experiments.rivals import load_net, without_noise
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table
from wca_tf.gaussian.certificates import deterministic_certificate
from wca_tf.nets.targets import HeadNoiseTarget
from wca_tf.runs.model_dir import ModelDirectory

KNOWN, PROVED = "left, draw known", "C1, the same draws"
TWIN = "noise off: left by attacks"


def add_known_draws(run: Run, path: Path, name: str, radius: str, table: Table) -> list[str]:
    """Fill the columns of an attack that knows the draw, and of C1 for the same draws; return attacks below it.

    Args:
        run: the run, with the number of images and the attack.
        path: the directory of the net, which has Gaussian noise before its linear head.
        name: the row.
        radius: the l2 radius as written.
        table: gains the columns.
    """
    directory, attack = ModelDirectory(path), parse_attack(KNOWING[run.config.scale])
    asked: dict[str, Any] = {"num_examples": ATTACKED_IMAGES[run.config.scale], "batch_size": run.budget.batch_size}
    config = EvaluateConfig(tfds_data_dir=run.config.tfds_data_dir, **asked)
    model = directory.load_best()
    target = model.target()
    if not isinstance(attack, BallAttack) or not isinstance(target, HeadNoiseTarget):
        raise TypeError(f"expected an attack in a ball and noise in the head, received {attack} and {target}")
    examples, records = load_evaluation_examples(config, directory.train_config()), path / "evaluations" / "known_l2"
    settings, [ball] = Settings(config.seed), parse_radii(radius)
    known = attack_fixed_draws(target, attack, ball.epsilon, examples, settings, records)
    run.times.attacks[records, KNOWING[run.config.scale], ball.epsilon] = sum(outcome.seconds for outcome in known)
    right = np.stack([outcome.judgement.probability_correct > 0.5 for outcome in known])
    drawn = [Head.of(target.with_fixed_draw(seed), model, examples, config.batch_size) for seed in draw_seeds(settings)]
    change = model.lipschitz() * ball.in_l2(examples.image_shape)
    proved = np.stack([deterministic_certificate(h.logits, h.labels, h.weights, change) for h in drawn])
    table.add(name, KNOWN, text=f"{100 * right.mean():.1f}")
    table.add(name, PROVED, text=f"{100 * proved.mean():.1f}")
    below = int(np.sum(proved & ~right))
    return [f"{name}, draw known: {below} images"] if below else []


def add_twin(run: Run, path: Path, label: str, radii: Sequence[str], table: Table) -> list[str]:
    """Fill the column of what attacks leave of the net without its noise; return attacks below its certificate.

    Args:
        run: the run, with the number of images and the attacks.
        path: the directory of the net.
        label: the begin of the rows' names; the radius is their end.
        radii: the l2 radii as written.
        table: gains the column.
    """
    net = load_net(run, path)._replace(images=ATTACKED_IMAGES[run.config.scale])
    attacks, broken = attacks_on_both(run), []
    twin = without_noise(run, net, attacks, ",".join(f"l2:{radius}" for radius in radii))
    head, shape = head_of(run, path, ATTACKED_IMAGES[run.config.scale])
    for text in radii:
        [radius] = parse_radii(text)
        left = twin.worst_judgement(attacks, radius.epsilon, "l2")
        table.add(f"{label}, {text}", TWIN, left.n_query_accuracy(1))
        proved = head.bounds(head.lipschitz * radius.in_l2(shape))["deterministic"] > 0
        if below := int(np.sum(proved & (left.probability_correct < 0.5))):
            broken.append(f"{label}, {text}, noise off: {below} images")
    return broken
