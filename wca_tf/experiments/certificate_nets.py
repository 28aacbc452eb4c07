"""The nets, radii and attacks of the experiment "certificates"."""

from pathlib import Path
from typing import Any

from wca_tf.attacks import BallAttack, parse_attack
from wca_tf.experiments.run import OTHER_SEEDS, Evaluated, Run

# Radii in l2 and in l∞ that are certified and attacked, and radii that are certified alone: for the curves, and to show
# where l∞ through l2 proves nothing.
RADII = {
    "digits": ("0.1",),
    "mnist": ("0.3", "1.58"),
    "fashion_mnist": ("0.3", "1.0"),
    "cifar10": ("36/255", "72/255"),
}
IN_LINF = {
    "digits": ("linf:0.01",),
    "mnist": ("linf:0.01", "linf:0.03"),
    "fashion_mnist": ("linf:0.01", "linf:0.03"),
    "cifar10": ("linf:1/255", "linf:0.01"),
}
CERTIFIED_ALONE = {
    "digits": ("0.2",),
    "mnist": ("0.1", "0.6", "1.0", "linf:0.1"),
    "fashion_mnist": ("0.1", "0.2", "0.6", "linf:0.1"),
    "cifar10": ("18/255", "108/255", "linf:8/255"),
}
# Certified accuracy of nets without noise that others publish, on all test images, and the net to compare it with.
ANCHORS = {
    ("mnist", "certified_none", "0.3"): "95.7 (GloRo)",
    ("mnist", "certified_far", "1.58"): "62.8 (GloRo)",
    ("cifar10", "certified_none", "36/255"): "59.1 (AOL, small net)",
}
PLAIN = "No Defense"
NETS = {
    PLAIN: "certified_none",
    "No Defense, larger margins": "certified_far",
    "WCA-Net isotropic": "certified_isotropic",
    "WCA-Net anisotropic": "certified_anisotropic",
}
DETERMINISTIC = ("certified_none", "certified_far")
THREE_SEEDS = ("certified_none", "certified_isotropic", "certified_anisotropic")
TRAINED_ONCE = ("cifar10",)
# At a rate of 0.01 the change of variables of C&W hardly moves a pixel that is black or white.
ATTACKS = {
    "tiny": "pgd:steps=3:norm=l2,cw:steps=10:searches=2:learning_rate=0.1",
    "small": "pgd:steps=40:norm=l2,apgd_ce:steps=50:norm=l2,margin:steps=40:norm=l2,z_margin:steps=40:norm=l2,"
    "multi_targeted:steps=20:norm=l2,cw:steps=50:learning_rate=0.1:searches=3:initial_constant=0.1",
    "paper": "pgd:steps=40:norm=l2,apgd_ce:norm=l2,adaptive:norm=l2,cw:steps=200:learning_rate=0.1:searches=6",
}
ATTACKS_IN_LINF = {
    "tiny": "pgd:steps=3",
    "small": "pgd:steps=40,margin:steps=40,z_margin:steps=40,multi_targeted:steps=20",
    "paper": "pgd:steps=40,adaptive",
}
# On nets with noise besides: it raises the logarithm of the chance of an error.
ON_NOISE = {
    "tiny": "apgd_ce:objective=log_error:steps=5:norm=l2",
    "small": "apgd_ce:objective=log_error:steps=50:norm=l2",
    "paper": "apgd_ce:objective=log_error:norm=l2",
}
KNOWING = {"tiny": "margin:steps=3:norm=l2", "small": "margin:steps=40:norm=l2", "paper": "margin:steps=100:norm=l2"}
ATTACKED_IMAGES = {"tiny": 20, "small": 100, "paper": 0}
ALL_IMAGES = {"tiny": 20, "small": 0, "paper": 0}


def seeds_of(run: Run, dataset: str, variant: str) -> tuple[int, ...]:
    """Return the seeds of a net's other trainings; empty at --scale=tiny, and for a net that is trained once."""
    once = run.config.scale == "tiny" or dataset in TRAINED_ONCE or variant not in THREE_SEEDS
    return () if once else OTHER_SEEDS


def attacked_radii(dataset: str) -> tuple[str, ...]:
    """Return the radii of a data set that are attacked, in l2 and in l∞."""
    return RADII[dataset] + IN_LINF[dataset]


def radii_of(dataset: str) -> tuple[str, ...]:
    """Return all radii of a data set."""
    return attacked_radii(dataset) + CERTIFIED_ALONE[dataset]


def attacks_on_both(run: Run) -> list[str]:
    """Return the attacks in an l2 ball of a net with noise and of the same net without it, as written."""
    return [text for text in ATTACKS[run.config.scale].split(",") if isinstance(parse_attack(text), BallAttack)]


def attacks_of(run: Run, variant: str) -> str:
    """Return the attacks on a net, as written in `--attacks`."""
    scale = run.config.scale
    attacks = [ATTACKS[scale], ATTACKS_IN_LINF[scale], *([] if variant in DETERMINISTIC else [ON_NOISE[scale]])]
    return ",".join(attacks)


def certified(run: Run, path: Path, dataset: str, attacks: str, radii: str, **changes: Any) -> Evaluated:
    """Evaluate a net with certificates at all radii of its data set, and attacks at some of them."""
    asked = {"certified_radii": ",".join(radii_of(dataset)), **changes}
    return run.evaluated_at(path, attacks.split(","), radii, **asked)
