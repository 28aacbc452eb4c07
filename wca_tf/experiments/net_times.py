"""The nets of an experiment: which of how many is at work, when the last will be done, and what all of them cost."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from wca_tf.runs.model_dir import ModelDirectory

MIN_SECONDS = 60  # of a time left that is shown


class NetTimes:
    """The nets that a run has begun, and the seconds of their training and attacks, in this run and in earlier ones.

    Args:
        expected: the number of nets of the run; 0 where it is not known.
    """

    def __init__(self, expected: int = 0) -> None:
        self.expected = expected
        self.begun: list[str] = []
        self.training: dict[str, float] = {}  # by the name of a net's directory
        self.attacks: dict[tuple[Path, str, float | None], float] = {}
        self.kept: list[dict[str, Any]] = []

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
        self.training[model_dir.name] = sum(line.get("seconds", 0.0) for line in lines)

    def add_attacks(self, report_dir: Path, results: Mapping[str, Any], attacks: Container[str]) -> None:
        """Note the time of the attacks that the experiment asked for, by name, from an evaluation's results.json."""
        for attack in results["attacks"]:
            if attack["name"] in attacks:
                self.attacks[report_dir, attack["name"], attack["epsilon"]] = attack["seconds"]

    def add_kept(self, cost: dict[str, Any]) -> None:
        """Note the cost of rows that an earlier run has kept. A net that other rows name too counts once."""
        self.kept.append(cost)
        if "trained" not in cost:  # rows of an earlier version do not name their nets
            self.expected = max(self.expected - round(cost["nets"]), 0)
            return
        self.training |= cost["trained"]
        self.begun += [name for name in cost["trained"] if name not in self.begun]

    def cost(self) -> dict[str, float]:
        """Return the number of nets, and the seconds of their training and attacks, without checklists."""
        unnamed = [cost for cost in self.kept if "trained" not in cost]
        return {
            "nets": len(self.training) + sum(cost["nets"] for cost in unnamed),
            "training_seconds": round(sum(self.training.values())) + sum(cost["training_seconds"] for cost in unnamed),
            "attack_seconds": round(sum(self.attacks.values())) + sum(cost["attack_seconds"] for cost in self.kept),
        }

    def cost_since(self, earlier: "NetTimes") -> dict[str, Any]:
        """Return the cost since a copy of these times was made, and "trained": the seconds of each net since then."""
        trained = {name: value for name, value in self.training.items() if earlier.training.get(name) != value}
        return {
            "nets": len(trained),
            "training_seconds": round(sum(trained.values())),
            "attack_seconds": self.cost()["attack_seconds"] - earlier.cost()["attack_seconds"],
            "trained": trained,
        }


def duration(seconds: float) -> str:
    """Return a time in words, rounded to seconds below a minute, and to minutes above.

    Examples:
        >>> duration(20), duration(59.7), duration(170), duration(7500)
        ('20 s', '1 min', '3 min', '2 h 5 min')
    """
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
