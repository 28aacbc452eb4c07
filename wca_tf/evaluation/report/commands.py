"""The commands that make an evaluation's numbers again."""

import shlex
from typing import Any

from wca_tf.attacks.radii import Radius
from wca_tf.core.options import identity
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.runs.config import TrainConfig


def train_command(results: dict[str, Any]) -> str | None:
    """Return bin/train with each flag that is not at its default; `None` for a net that bin/train did not make."""
    training = results["training"]
    if training is None:
        return None
    default = identity(TrainConfig())
    changed = {name: v for name, v in training.items() if name in default and v != default[name]}
    flags = [_flag(name, value) for name, value in {"model_dir": results["model_dir"], **changed}.items()]
    if training["dataset"] != "digits" and not training["dataset"].startswith("folder:"):
        flags.append("--tfds_data_dir=DIR")
    return _command("bin/train", flags)


def evaluate_commands(results: dict[str, Any]) -> list[str]:
    """Return the commands that make results.json: bin/evaluate, or Python for a net in memory.

    There are several commands where the attacks were not the same at all radii.
    """
    plans = _plans(results["attacks"], results["checklist"][0]["epsilon"] if results.get("checklist") else None)
    if results["training"] is None:
        return [_in_python(results, *plan) for plan in plans]
    commands = []
    for attacks, epsilons, checklist in plans:
        net = {"model_dir": results["model_dir"], "modules": ",".join(results["modules"])}
        asked = {**net, "attacks": attacks, "epsilons": epsilons, **_changed(results)}
        flags = [_flag(name, value) for name, value in asked.items() if value != ""]
        commands.append(_command("bin/evaluate", flags + ["--checklist"] * checklist))
    return commands


def _changed(results: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an evaluation that are not at their defaults."""
    default = identity(EvaluateConfig())
    return {name: value for name, value in results["config"].items() if value != default.get(name)}


def _plans(attacks: list[dict[str, Any]], checked: float | None) -> list[tuple[str, str, bool]]:
    """Return the fewest runs that make all attacks, and the checklist at `checked`.

    A run is (--attacks, --epsilons, --checklist). Attacks without a radius are in one of the runs. The checklist is in
    the last run, so that its self-test includes all attacks. It is made at the first epsilon of this run.
    """
    names_at: dict[tuple[str, float], tuple[str, ...]] = {}
    for attack in attacks:
        if attack["epsilon"] is not None:
            radius = attack["norm"], attack["epsilon"]
            names_at[radius] = (*names_at.get(radius, ()), attack["name"])
    radii_of: dict[tuple[str, ...], list[float]] = {}
    for (_, epsilon), names in names_at.items():
        radii_of.setdefault(names, []).append(epsilon)
    without = [attack["name"] for attack in attacks if attack["epsilon"] is None]
    runs = [(list(names), radii) for names, radii in radii_of.items()]
    if not runs or (
        checked is not None and all(checked != epsilon for _, epsilon in names_at)
    ):  # the checklist's run had no attack with a radius
        runs.append(([], [] if checked is None else [checked]))
    runs[-1][0].extend(without)
    runs.sort(key=lambda run: checked in run[1])
    for _, radii in runs:
        radii.sort(key=lambda radius: radius != checked)
    last = len(runs) - 1
    return [
        (",".join(names), ",".join(Radius(radius).text for radius in radii), checked is not None and number == last)
        for number, (names, radii) in enumerate(runs)
    ]


def _in_python(results: dict[str, Any], attacks: str, epsilons: str, checklist: bool) -> str:
    options = _changed(results) | ({"checklist": True} if checklist else {})
    asked = {"attacks": attacks.split(","), "epsilons": epsilons.split(","), "report_dir": "report", **options}
    asked["name"] = results["model"]["name"]
    arguments = "".join(f"    {name}={value!r},\n" for name, value in asked.items() if value != "")
    return f"import wca_tf\n\nwca_tf.evaluate(\n    model,\n    images,\n    labels,\n{arguments})"


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={shlex.quote(str(value))}"


def _command(program: str, flags: list[str]) -> str:
    return " \\\n    ".join([program, *flags])
