"""The nets of an experiment: which of how many is at work, when the last will be done, and what all of them cost."""

from collections.abc import Container
from pathlib import Path
from typing import Any

from wca_tf.runs.model_dir import ModelDirectory

MIN_SECONDS = 60  # of a time left that is told


class NetTimes:
    """The nets that a run has begun, and the seconds of their training and attacks, in this run and in earlier ones.

    Args:
        expected: the number of nets of the run; 0 where it is not known.
    """

    def __init__(self, expected: int = 0) -> None:
        self.expected = expected
        self.begun: list[str] = []
        self.training: dict[Path, float] = {}
        self.attacks: dict[tuple[Path, str, float | None], float] = {}
        self.kept: list[dict[str, float]] = []

    def begin(self, name: str) -> None:
        """Print a heading for a net, with its place among all and the time left."""
        newest = name not in self.begun
        if newest:
            self.begun.append(name)
        place = self.begun.index(name) + 1
        of = f" of {self.expected}" if place <= self.expected else ""
        print(f"== net {place}{of}: {name}{self._left() if newest else ''}")

    def _left(self) -> str:
        """Return the time left if the other nets take as long as the mean of those done, in earlier runs too."""
        done, nets = self.cost(), self.expected - len(self.begun) + 1
        seconds = nets * (done["training_seconds"] + done["attack_seconds"]) / max(done["nets"], 1)
        return f"; about {duration(seconds)} left" if seconds >= MIN_SECONDS and nets > 0 else ""

    def add_training(self, model_dir: Path) -> None:
        """Note the time that a net was trained for, from its metrics.jsonl."""
        lines = ModelDirectory(model_dir).read_metrics()
        self.training[model_dir] = sum(line.get("seconds", 0.0) for line in lines)

    def add_attacks(self, report_dir: Path, results: dict[str, Any], attacks: Container[str]) -> None:
        """Note the time of the attacks that the experiment asked for, by name, from an evaluation's results.json."""
        for attack in results["attacks"]:
            if attack["name"] in attacks:
                self.attacks[report_dir, attack["name"], attack["epsilon"]] = attack["seconds"]

    def add_kept(self, cost: dict[str, float]) -> None:
        """Note the cost of rows that an earlier run has kept. Their nets are not begun again."""
        self.expected = max(self.expected - round(cost["nets"]), 0)
        self.kept.append(cost)

    def cost(self) -> dict[str, float]:
        """Return the number of nets, and the seconds of their training and attacks, without checklists."""
        own = {
            "nets": len(self.training),
            "training_seconds": round(sum(self.training.values())),
            "attack_seconds": round(sum(self.attacks.values())),
        }
        return {what: value + sum(cost[what] for cost in self.kept) for what, value in own.items()}


def duration(seconds: float) -> str:
    """Return a time in words.

    Examples:
        >>> duration(20), duration(150), duration(7500)
        ('20 s', '2 min', '2 h 5 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
