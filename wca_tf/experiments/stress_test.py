"""A stress test of one net: every attack here that may find what the usual attacks miss, and the worst of them."""

from pathlib import Path
from typing import Any

from wca_tf.experiments.baselines import load_net, without_noise
from wca_tf.experiments.paper import EPSILON
from wca_tf.experiments.robustness_columns import ADDS, RADIUS
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table, in_points
from wca_tf.nets.targets import has_noise

# What each attack is for -> the attack as written. SOURCE is the directory of the undefended net.
SOURCE = "SOURCE"
HOSTILE = {
    "the paper's attack": "pgd",
    "more steps and starts": "z_margin:steps=100:relative_step_size=0.03:restarts=5",
    "on the plain margin": "margin:steps=100:restarts=5",
    "its step size adapts": "apgd_dlr:steps=300",
    "the same on the z-margin": "apgd_ce:objective=z_margin:steps=300",
    "the same on the plain margin": "apgd_ce:objective=margin:steps=300",
    "written for noise": "apgd_ce:objective=log_error:steps=300",
    "towards each class": "multi_targeted:objective=z_margin:steps=100",
    "from its own net without noise": "transfer:steps=100",
    "from the undefended net": f"transfer:steps=100:source={SOURCE}",
    "without gradients": "square:queries=2000",
    "the cascade": "adaptive",
}
FOR_NOISE = ("written for noise", "from its own net without noise")  # not on a net without noise
HOSTILE_TINY = {
    "more steps and starts": "z_margin:steps=10:restarts=2",
    "written for noise": "apgd_ce:objective=log_error:steps=10",
    "towards each class": "multi_targeted:objective=z_margin:steps=3",
    "from the undefended net": f"transfer:steps=10:source={SOURCE}",
    "without gradients": "square:queries=50",
}
PIXELS, PIXELS_TINY = (
    "n_pixel:objective=margin:population=100:generations=80",
    "n_pixel:objective=margin:population=10:generations=2",
)
PIXEL_IMAGES = 100
LEFT = "left"  # the column of what attacks leave


def hostile_attacks(scale: str) -> dict[str, str]:
    """Return the attacks of a scale as written, with `SOURCE` for the directory of the undefended net."""
    return HOSTILE_TINY if scale == "tiny" else HOSTILE


def stress_settings(scale: str) -> list[Any]:
    """Return what the rows follow from besides the nets, as JSON."""
    return [list(hostile_attacks(scale).values()), PIXELS, PIXEL_IMAGES, list(FOR_NOISE)]


def add_stress_rows(table: Table, run: Run, label: str, path: Path, source: Path) -> None:
    """Fill a row for each attack on the net in `path`, then the worst case over all of them, and n-pixel beside it.

    A net with noise has a row without its noise too, under the same attacks but those that are about noise.

    Args:
        table: gains the rows.
        run: the run, with the number of images.
        label: the name of the net; the rows' names begin with it.
        path: the directory of the net.
        source: the directory of the undefended net, from which an attack transfers.
    """
    net = load_net(run, path)
    noisy = has_noise(net.model.target())
    written = {
        what: attack for what, attack in hostile_attacks(run.config.scale).items() if noisy or what not in FOR_NOISE
    }
    attacks = {what: attack.replace(SOURCE, str(source)) for what, attack in written.items()}
    found = run.evaluated_at(path, list(attacks.values()), EPSILON)
    for what, attack in attacks.items():
        left = found.number(attack, RADIUS, "expected_accuracy")
        table.add(f"{label}: {what}, {_short(attack)}", LEFT, left)
    table.add(f"{label}: the worst of all", LEFT, found.worst_case(list(attacks.values()), RADIUS))
    if noisy:
        alike = [attack for what, attack in attacks.items() if what not in FOR_NOISE]
        worst, twin = found.worst_judgement(list(attacks.values()), RADIUS), without_noise(run, net, alike)
        name = f"{label}: the worst of all, noise off"
        table.add(name, LEFT, twin.worst_case(alike, RADIUS))
        table.add(name, ADDS, text=in_points(worst.less(twin.worst_judgement(alike, RADIUS))))
    _add_pixels(table, run, label, path)


def _add_pixels(table: Table, run: Run, label: str, path: Path) -> None:
    """Fill the row of one pixel, on the margin, which is no attack in the ball."""
    tiny = run.config.scale == "tiny"
    attack, images = (PIXELS_TINY, run.budget.num_examples) if tiny else (PIXELS, PIXEL_IMAGES)
    found = run.evaluated_at(path, [attack], EPSILON, num_examples=images)
    name = f"{label}: one pixel of any colour, {images} images"
    table.add(name, LEFT, found.number(attack, None, "expected_accuracy"))


def _short(attack: str) -> str:
    """Return an attack as written, without the directory of a net."""
    return attack.partition(":source=")[0]
