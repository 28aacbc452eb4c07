"""Rows that an experiment has finished, kept as JSON: a run continues without their nets, on another machine too.

report_dir/
    rows/NAME.json    rows of the table, the settings of their nets and attacks, and what they took
    unfinished.md     the table so far; the finished table replaces it
"""

import copy
import dataclasses
import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from wca_tf.attacks import ATTACKS
from wca_tf.core import files
from wca_tf.core.errors import DivergedError, InputError, NonFiniteError, one_line
from wca_tf.core.options import identity
from wca_tf.evaluation.measures.certificates import CERTIFICATES_ALGORITHM
from wca_tf.experiments import EXPERIMENTS
from wca_tf.experiments.run import Run
from wca_tf.experiments.settings import OF_THE_MACHINE
from wca_tf.experiments.tables import Table, as_table
from wca_tf.nets.judge import JUDGEMENT_VERSION
from wca_tf.runs.config import TrainConfig

UNFINISHED = "unfinished.md"
# `adaptive` 4 had no attack towards each class. Its rows still count in two experiments. In training_length it left
# 2.6 % of one net, less of all others, and certificates does not use it at --scale=small.
ADAPTIVE_4_COUNTS = ("training_length", "certificates")
# `adaptive` 5 had no attack towards each class over draws, 6 and `multi_targeted` 4 could miss a class, and 7 followed
# the mean margin. They are as today's where no noise is before the last features, but for Square: 3 compared proposals
# by the mean margin. On a net of digits it left 28.9 % in place of 29.3, and `adaptive` 21.9 % either way.
NOISE_IN_THE_HEAD = ("none", "wca", "rfd", "se_snn")
# Judgement 4 differs in images with equal logits alone. `n_pixel` 3 differs in the paper's rule alone, which the kept
# rows of one experiment have.
JUDGEMENT_4_COUNTS: dict[str, tuple[int, ...]] = {"judgement": (4,)}
BY_THE_PAPERS_RULE = ("cw_and_pixels",)


def kept_rows(
    run: Run,
    table: Table,
    name: str,
    nets: Sequence[TrainConfig],
    fill: Callable[[Table], Any],
    asked: Any = None,
    attacks: Collection[str] = tuple(ATTACKS),
) -> Any:
    """Fill rows of a table, or take them from the file NAME.json of an earlier run with the same settings.

    Args:
        run: the run; its cost includes that of the rows taken.
        table: gains the rows.
        name: the name of the rows; every character that a file name may not have becomes "_".
        nets: the configurations of the nets of the rows.
        fill: fills the rows of the table it is given, and returns what the figures need besides, as JSON has it.
        asked: what the numbers follow from besides, such as the attacks and radii of this experiment alone, as JSON.
        attacks: the names of the attacks that the rows may use. A new algorithm of another attack changes no number.

    Returns:
        What `fill` returned, from JSON; `None` where training or an attack met NaN or Inf. The table then has a row
        `name` that says so.

    Raises:
        InputError: the file is broken.
    """
    path = run.report_dir / "rows" / f"{re.sub(r'[^A-Za-z0-9.=-]+', '_', name)}.json"
    settings = _settings(run, nets, asked, attacks)
    stored = files.read_json(path) if path.exists() else {}
    if not isinstance(stored, dict) or (stored and not stored.keys() >= {"settings", "table", "more", "cost"}):
        raise InputError(f"expected rows of bin/reproduce in {path}: remove it, and they are made again")
    if not stored or not _same(stored["settings"], settings, _still_count(run.config.experiment, nets)):
        before = copy.deepcopy(run.times)
        part, more = _filled(name, table.columns, fill)
        cost = run.times.cost_since(before)
        stored = {"settings": settings, "table": part.as_json(), "more": more, "cost": cost}
        path.parent.mkdir(exist_ok=True)
        files.write_json(path, stored)
        stored = files.read_json(path)
    else:
        print(f"== {name}: kept in {path}")
        run.times.add_kept(stored["cost"])
    table.take(as_table(stored["table"], path))
    files.write_text(run.report_dir / UNFINISHED, f"Not finished: the rows so far.\n\n{table.markdown()}")
    return stored["more"]


def _filled(name: str, columns: Sequence[str], fill: Callable[[Table], Any]) -> tuple[Table, Any]:
    """Return the rows that `fill` makes, and what it returns; a row that says so where the net diverged."""
    part = Table(name, list(columns))
    try:
        return part, fill(part)
    except (DivergedError, NonFiniteError) as error:
        print(f"{name}: {one_line(error)}")
        diverged = Table(name, list(columns))
        diverged.add(name, columns[0] if columns else "clean", text="diverged")
        return diverged, None


def _settings(run: Run, nets: Sequence[TrainConfig], asked: Any, attacks: Collection[str]) -> dict[str, Any]:
    """Return what the numbers of rows follow from: nets, budget, and the algorithms of attacks and judgement."""
    described = [_compared(dataclasses.asdict(net)) for net in nets]
    budget = dataclasses.asdict(run.budget)
    algorithms = {name: ATTACKS[name].kind.version for name in attacks}
    experiment = run.config.experiment
    more = {experiment: EXPERIMENTS[experiment].version, "judgement": JUDGEMENT_VERSION}
    if experiment == "certificates":
        more["certificates"] = CERTIFICATES_ALGORITHM
    settings = {"nets": described, "budget": budget, "algorithms": algorithms | more, "asked": asked}
    as_stored: dict[str, Any] = json.loads(json.dumps(settings))  # lists in place of tuples
    return as_stored


def _compared(net: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a TrainConfig that say what is trained."""
    return {
        name: value for name, value in net.items() if name in identity(TrainConfig()) and name not in OF_THE_MACHINE
    }


def _still_count(experiment: str, nets: Sequence[TrainConfig]) -> dict[str, tuple[int, ...]]:
    """Return the older numbers of algorithms whose rows still count."""
    older = JUDGEMENT_4_COUNTS if experiment in BY_THE_PAPERS_RULE else JUDGEMENT_4_COUNTS | {"n_pixel": (3,)}
    if experiment in ADAPTIVE_4_COUNTS:
        return older | {"adaptive": (4, 5, 6, 7, 8), "multi_targeted": (4,), "square": (3,)}
    same = all(net.defence.partition(":")[0] in NOISE_IN_THE_HEAD for net in nets)
    return older | {"adaptive": (5, 6, 7, 8), "multi_targeted": (4,), "square": (3,)} if same else older


def _same(stored: dict[str, Any], settings: dict[str, Any], still_count: dict[str, tuple[int, ...]]) -> bool:
    """Return whether rows with the settings `stored` are those of today's settings, or of algorithms that still count.

    Today may know more attacks than the rows do, and more options of training. These are at their defaults then. An
    algorithm that today's settings do not name does not count. The rows may come from another kind of machine:
    `OF_THE_MACHINE` does not count, nor do flags that change no number.
    """
    if not isinstance(stored, dict) or stored.keys() != settings.keys() or len(stored["nets"]) != len(settings["nets"]):
        return False
    defaults = json.loads(json.dumps(dataclasses.asdict(TrainConfig())))
    of_nets = zip(settings["nets"], stored["nets"], strict=True)
    nets = [{**{name: defaults[name] for name in net}, **_compared(kept)} for net, kept in of_nets]
    today = settings["algorithms"]
    algorithms = {name: stored["algorithms"].get(name, number) for name, number in today.items()}
    algorithms |= {name: today[name] for name, older in still_count.items() if algorithms.get(name) in older}
    return {**stored, "nets": nets, "algorithms": algorithms} == settings
