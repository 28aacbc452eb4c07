"""Attacks that test certificates too: by an attacker who knows the draw, and on the net without its noise."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wca_tf.attacks.radii import parse_radii
from wca_tf.evaluation.measures.certificates import Head
from wca_tf.evaluation.measures.known_draws import draw_seeds
from wca_tf.evaluation.trials import Settings
from wca_tf.experiments.baselines import attacked_images, known_draws, load_net, without_noise
from wca_tf.experiments.certificate_nets import ATTACKED_IMAGES, KNOWING, attacks_on_both
from wca_tf.experiments.certificates_noise import head_of
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table
from wca_tf.gaussian.certificates import deterministic_certificate
from wca_tf.nets.targets import GaussianLogitsTarget

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
    net, attack = load_net(run, path)._replace(images=ATTACKED_IMAGES[run.config.scale]), KNOWING[run.config.scale]
    target, [ball] = net.model.target(), parse_radii(radius)
    if not isinstance(target, GaussianLogitsTarget):
        raise TypeError(f"expected a net with noise in its head alone, received {type(net.model).__name__}")
    known = known_draws(run, net, attack, f"l2:{radius}")
    config, examples = attacked_images(run, net, attack, f"l2:{radius}")
    seeds = draw_seeds(Settings(config.seed))
    right = np.stack([outcome.judgement.probability_correct > 0.5 for outcome in known])
    drawn = [Head.of(target.with_fixed_draw(seed), net.model, examples, config.batch_size) for seed in seeds]
    change = net.model.lipschitz() * ball.in_l2(examples.image_shape)
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
        label: the start of the rows' names; the radius is their end.
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
