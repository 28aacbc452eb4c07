"""Pages: a filled table as Markdown with its charts, and notes that follow from the declarations and the evidence."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

import wca_tf
from reproduce.budgets import ATTACKS
from reproduce.charts import STYLE
from reproduce.engine import duration
from reproduce.evidence import write_text
from reproduce.nets import Net, papers_settings
from reproduce.study import Study
from reproduce.tables import Cell, Filled
from wca_tf import TrainConfig

LEGEND = "Accuracy in %, ± the longer side of the 95 % interval."
# What a reader must know of a training where it is not that of configs/, which have the paper's settings.
FLAGS = (
    *("epochs", "optimizer", "learning_rate", "learning_rate_schedule", "batch_size", "backbone"),
    *("augmentation", "max_train_examples", "validation_split", "margin_radius", "temperature", "precision"),
)


def write_page(name: str, what: str, command: str, tables: Sequence[Filled], directory: Path) -> None:
    """Write NAME.md and its charts, NAME.svg, NAME_2.svg and so on, into a directory; describe each training once."""
    lines = [f"# {tables[0].table.title}", "", f"{what} {LEGEND}", ""]
    pictures, described = 0, set[str]()
    for place, filled in enumerate(tables):
        if place:
            lines += [f"## {filled.table.title}", ""]
        for draw in filled.table.charts:
            pictures += 1
            picture = f"{name}.svg" if pictures == 1 else f"{name}_{pictures}.svg"
            with matplotlib.rc_context(STYLE):
                drawn = io.StringIO()
                draw(filled).savefig(drawn, format="svg", metadata={"Date": None})
            write_text(directory / picture, drawn.getvalue())
            lines += [f"[![{filled.table.title}]({picture})]({picture})", ""]
        lines += [
            *markdown(filled),
            "",
            *(f"- {note}" for note in (*filled.table.notes, *notes(filled, described))),
            "",
        ]
    if of_page := notes_of_page(tables):
        lines += [*(f"- {note}" for note in of_page), ""]
    write_text(directory / f"{name}.md", "\n".join([*lines, "```", command, "```", ""]))


def write_index(titles: Mapping[str, str], directory: Path) -> None:
    """Write the list of pages, {name: title}, which the index of the results includes."""
    lines = [f"- [{title}]({page}.md)." for page, title in titles.items()]
    write_text(directory / "pages.md", "\n".join([*lines, ""]))


def markdown(filled: Filled) -> list[str]:
    """Return the lines of the table; a column of the paper's numbers stands beside ours where the paper has any."""
    columns: list[tuple[str, bool]] = []
    for column in filled.table.columns:
        has_paper = any(key[1] == column.name for key in filled.table.paper)
        columns += [(column.name, False), *([(column.name, True)] if has_paper else [])]
    head = [f"{column}, paper" if paper else column for column, paper in columns]
    lines = ["| | " + " | ".join(head) + " |", "|---" + "|--:" * len(head) + "|"]
    for label, cells in filled.cells.items():
        shown = [
            (Cell(filled.table.paper.get((label, column))) if paper else cells[column]).shown()
            for column, paper in columns
        ]
        seeds = f" ({len(filled.nets[label])} seeds)" if len(filled.nets[label]) > 1 else ""
        lines.append(f"| {label}{seeds} | " + " | ".join(shown) + " |")
    return lines


def notes(filled: Filled, described: set[str] | None = None) -> list[str]:
    """Return what a reader must know of a table: how the nets were trained, which attacks, what is missing.

    `described` has the trainings that the page has described above; those of this table are added to it.
    """
    study, described = filled.study, set() if described is None else described
    nets = list(dict.fromkeys(site.net for site in filled.sites))
    trainings = _trainings(filled.nets[filled.table.baseline] if filled.table.baseline else nets, study)
    found = [each for each in trainings if each not in described]
    described |= set(trainings)
    found += [*_seeds(filled), *_attacks(filled)]
    if filled.missing:
        found.append(f"Not measured: {len(filled.missing)} of the outcomes that the table needs.")
    return found


def _trainings(nets: Sequence[Net], study: Study) -> list[str]:
    """Return how the settings differ from those of configs/, for groups of nets that are alike."""
    alike: dict[str, list[str]] = {}
    for net in nets:
        line = study.evidence.training(net)  # the precision is that of the machine that trained
        given = dataclasses.asdict(TrainConfig()) | (line["config"] if line else net.config(study.scale))
        files = dataclasses.asdict(TrainConfig()) | papers_settings(net.dataset, net.variant)
        differs = [f"--{flag}={given[flag]}" for flag in FLAGS if given[flag] != files[flag]]
        words = f"configs/, but with `{' '.join(differs)}`" if differs else "configs/"
        alike.setdefault(words, []).append(net.variant)
    return [f"Trained as in {words}: {', '.join(dict.fromkeys(variants))}." for words, variants in alike.items()]


def _seeds(filled: Filled) -> list[str]:
    most = max(len(nets) for nets in filled.nets.values())
    return [f"Rows of {most} seeds: the mean ± the distance to the farthest of them."] if most > 1 else []


def _attacks(filled: Filled) -> list[str]:
    """Return the images, the budgets below the paper's, and the versions of the attacks in the evidence."""
    study = filled.study
    images: set[int] = set()
    versions: set[tuple[str, int]] = set()
    for net, part in dict.fromkeys((site.net, site.part) for site in filled.sites if site.attacks):
        if (evaluation := study.evidence.evaluation(net, part)) is not None:
            images.add(evaluation["num_examples"])
            versions |= {(each.name.split(":")[0], each.config["algorithm"]) for each in evaluation.attacks}
    used = {name for column in filled.table.columns for name in column.attacks} | {r.attack for r in filled.table.rows}
    budgets = [text for name, text in ATTACKS[study.scale].items() if any(u.split(":")[0] == name for u in used)]
    found = [f"The first {' or '.join(map(str, sorted(images)))} test images."] if images else []
    if budgets:
        found.append(f"Budgets of attacks: {', '.join(f'`{text}`' for text in budgets)}.")
    old = {(name, version) for name, version in versions if version != wca_tf.parse_attack(name).version}
    found += [f"By version {version} of `{name}`, which is not today's." for name, version in sorted(old)]
    return found


def notes_of_page(tables: Sequence[Filled]) -> list[str]:
    """Return what a reader must know of all tables: how often each net was trained, how long, and where."""
    study, found = tables[0].study, []
    seeds = {len(nets) for filled in tables for nets in filled.nets.values() if nets}
    if 1 in seeds:
        which = "Each net" if seeds == {1} else "Each net of a row that names no seeds"
        found.append(f"{which} was trained once: the intervals do not cover another training.")
    if study.scale == "tiny":
        found.append("This scale only tests the code: its nets are hardly trained.")
    nets = dict.fromkeys(site.net for filled in tables for site in filled.sites)
    lines = {net.training(study.scale): line for net in nets if (line := study.evidence.training(net))}
    if lines:
        machines = "; ".join(sorted({line["machine"] for line in lines.values()}))
        training = duration(sum(line["seconds"] for line in lines.values()))
        found.append(f"Nets: {len(lines)}, trained in {training}, with other work beside. Machine: {machines}.")
    return found
