"""The attacks that an experiment makes at each scale, and on how many images. This module is free of TensorFlow."""

import dataclasses
from typing import Any

from wca_tf.evaluation.config import EvaluateConfig


@dataclasses.dataclass(frozen=True)
class Budget:
    """The budget of an evaluation at a scale.

    Attributes:
        num_examples: number of test images that are attacked; 0 for all.
        attacks: an attack's name -> the attack as written, where its budget is not the default.
        suite: the adaptive attacks of the table of strong attacks, as written.
        searches: the checklist's attacks without gradients, where they are smaller than those of criteria.py.
        faster: changes to the EvaluateConfig of the experiments with the longest attacks.
        batch_size: number of images that are attacked at a time. `adaptive` takes as many steps for one image of a
            batch that survives as for all.
    """

    num_examples: int
    attacks: dict[str, str]
    suite: tuple[str, ...]
    searches: dict[str, Any] = dataclasses.field(default_factory=dict)
    faster: dict[str, Any] = dataclasses.field(default_factory=dict)
    batch_size: int = EvaluateConfig.batch_size

    def written(self, name: str) -> str:
        return self.attacks.get(name, name)


_SMALL_CW = "steps=40:learning_rate=0.03:initial_constant=0.01:searches=4"
BUDGETS: dict[str, Budget] = {
    "tiny": Budget(
        20,
        {
            "pgd_restarts": "pgd_restarts:restarts=3",
            "square": "square:queries=50",
            "cw": "cw:steps=10:searches=2:learning_rate=0.1",
            "n_pixel": "n_pixel:population=20:generations=2",
            "adaptive": "adaptive:steps=10:apgd_steps=10:class_steps=5:queries=50",
        },
        ("z_margin:steps=10", "adaptive:steps=10:apgd_steps=10:class_steps=5:queries=50"),
        {
            "square": "square:queries=100",
            "n_pixel": "n_pixel:objective=margin:population=10:generations=5",
            "random_sampling": "random_sampling:points=100",
        },
    ),
    "small": Budget(
        500,
        {
            "pgd_restarts": "pgd_restarts:restarts=10",
            "square": "square:queries=1000",
            "cw": f"cw:{_SMALL_CW}",
            "n_pixel": "n_pixel:generations=3",
        },
        ("z_margin", "square:queries=1000", "adaptive"),
        faster={"attack_precision": "mixed_bfloat16"},
        batch_size=500,
    ),
    "paper": Budget(
        0,
        {"adaptive": "adaptive:queries=5000"},
        ("z_margin:restarts=10", "auto_rand", "square", "adaptive:queries=5000"),
    ),
}
