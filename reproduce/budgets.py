"""The attacks' budgets at each scale, and the parts of a net's evaluation. Free of TensorFlow."""

from typing import Any

FEW_IMAGES = 100  # of parts that cost more
# Parts that take all images at --scale=paper, fewer at --scale=small.
WHOLE = ("few", "pixels", "wide", "certified", "checklist")

# A part of a net's evaluation: the options that differ from those of "judged".
PARTS: dict[str, dict[str, Any]] = {
    "judged": {},
    "protocol": {"noise_off": False},  # the paper's attacks, at many radii or with many numbers of draws
    "checklist": {"noise_off": False, "checklist": True},
    "validation": {"noise_off": False, "split": "validation"},
    "one_draw_gradient": {"noise_off": False, "eot_samples": 1},  # E1
    "averaged": {"average_draws": 10},  # E2
    "few": {},  # of nets with noise before their last features, and of nets to compare with them
    "pixels": {"noise_off": False},
    "wide": {"noise_off": False, "batch_size": 100},
    "all_images": {"noise_off": False, "num_examples": 0},
    "certified": {"noise_off": True},
    "certified_all": {"noise_off": False, "num_examples": 0},
    "certified_votes": {"noise_off": False, "num_examples": 50, "certified_images": 50, "eot_samples": 1},
}
IMAGES = {"tiny": 20, "small": 500, "paper": 0}
BATCH = {"tiny": 100, "small": 500, "paper": 100}

_SHORT_PIXELS = "n_pixel:objective=margin:population=10:generations=2"
# A name of a declaration -> the attack as written. Other names are attacks as they are.
ATTACKS: dict[str, dict[str, str]] = {
    "tiny": {
        "pgd_restarts": "pgd_restarts:restarts=3",
        "square": "square:queries=50",
        "adaptive": "adaptive:steps=10:apgd_steps=10:class_steps=5:queries=50",
        "multi_targeted": "multi_targeted:steps=3",
        "cw": "cw:steps=10:searches=2:learning_rate=0.1",
        "n_pixel": "n_pixel:population=20:generations=2",
        "n_pixel_margin": _SHORT_PIXELS,
    },
    "small": {
        "pgd_restarts": "pgd_restarts:restarts=10",
        "square": "square:queries=1000",
        "multi_targeted": "multi_targeted:steps=20",
        "cw": "cw:steps=40:searches=4:learning_rate=0.003:initial_constant=0.01",
        "n_pixel": "n_pixel:generations=20",
        "n_pixel_margin": "n_pixel:objective=margin:population=100:generations=80",
    },
    "paper": {"adaptive": "adaptive:queries=5000", "n_pixel_margin": "n_pixel:objective=margin"},
}
# In the part "few" at --scale=small.
_FEW = {"adaptive": "adaptive:steps=20:apgd_steps=40:queries=200", "square": "square:queries=200"}
# The attacks without gradients of the checklist at --scale=tiny.
CHECKLIST_TINY = {
    "square": "square:queries=100",
    "n_pixel": "n_pixel:objective=margin:population=10:generations=5",
    "random_sampling": "random_sampling:points=100",
}


def written(name: str, scale: str, part: str = "judged") -> str:
    """Return an attack of a declaration as `--attacks` takes it; its own options go before those of the budget."""
    base, *options = name.split(":")
    known = ATTACKS[scale] | (_FEW if part == "few" and scale == "small" else {})
    attack, *budget = known.get(base, base).split(":")
    own = {option.split("=")[0] for option in options}
    return ":".join([attack, *(each for each in budget if each.split("=")[0] not in own), *options])


def part_options(part: str, scale: str) -> dict[str, Any]:
    """Return the fields of the EvaluateConfig of a part, besides attacks and radii."""
    images = FEW_IMAGES if part in WHOLE and scale == "small" else IMAGES[scale]
    options = {"num_examples": images, "batch_size": BATCH[scale], **PARTS[part]}
    if scale == "tiny":
        options["num_examples"] = 50 if part == "checklist" else IMAGES[scale]  # the fewest that it takes
    if part == "certified_votes":
        options["certified_draws"] = {"tiny": 1_000, "small": 20_000, "paper": 100_000}[scale]
    if part == "few" and scale != "paper":
        options["eot_samples"] = {"tiny": 2, "small": 20}[scale]
    return options
