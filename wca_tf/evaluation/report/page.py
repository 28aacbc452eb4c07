"""The report of an evaluation as a page, report.html, and as a model card, model_card.md.

The templates are in templates/. Every value that they print is escaped, unless it is Markup: names of classes and data
sets come from users.
"""

import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from wca_tf.core import files
from wca_tf.defences import parse_defence
from wca_tf.evaluation.measures.checklist import IMAGES as CHECKLIST_IMAGES
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.report import commands, sections
from wca_tf.evaluation.report.attack_table import free_rows, net_text, page_rows
from wca_tf.evaluation.report.sections import ReportSection
from wca_tf.evaluation.report.tables import as_html, as_markdown, breakable, escape_markdown, plain
from wca_tf.gaussian.intervals import Number

TEMPLATES = Path(__file__).parent / "templates"
CARD = ("expected [95 %]", "median l2", "median pixels", "found", "generations")  # columns of attacks without a radius
VERDICTS = {
    True: Markup('<span class="good">✓ passed</span>'),
    False: Markup('<span class="bad">✗ failed</span>'),
    None: Markup('<span class="soft">not applicable</span>'),
}


def write_report(
    report: Path,
    results: dict[str, Any],
    outcomes: list[Outcome],
    described: dict[str, Any],
    measure_sections: list[ReportSection],
) -> None:
    """Write report.html and model_card.md into the directory `report`.

    Args:
        report: an existing directory.
        results: the contents of results.json.
        outcomes: the outcome of the clean images, then of every attack, as in results["attacks"].
        described: the contents of evaluation.json.
        measure_sections: the sections of measures that the page's template does not show.
    """
    summary = _summary(results, described) | {"measure_sections": measure_sections}
    page = render("report.html.j2", **summary, **_figures(results, outcomes, described["class_names"]))
    card = render("model_card.md.j2", **summary, **_card_tables(summary))
    files.write_text(report / "report.html", page)
    files.write_text(report / "model_card.md", card)


def render(template: str, **context: Any) -> str:
    """Return a filled template. Its values are escaped for Markdown if its name ends in .md.j2, else for HTML."""
    markdown = template.endswith(".md.j2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=not markdown,
        finalize=escape_markdown if markdown else plain,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "percent": lambda number, **options: Number.of(number).percent(**options),
        "interval": lambda number, **options: Markup(Number.of(number).interval(**options)),  # nothing to escape
        "fenced": fenced,
        "breakable": breakable,
        "table": as_html,
    }
    return environment.get_template(template).render(context)


def fenced(text: str) -> Markup:
    """Return a block of code in Markdown that no part of `text` can end."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return Markup(f"{fence}\n{plain(text)}\n{fence}")


def _summary(results: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    """Return the values that the page and the model card share."""
    training, state = results["training"], results["model"]
    name = f"{training['backbone']}, {training['defence']}" if training else state["name"]
    checklist = results.get("checklist", [])
    passed = [item["passed"] for item in checklist]
    return {
        "results": results,
        "checklist": checklist,
        "has_noise": described["has_noise"],
        "training": training,
        "name": name,
        "title": f"{name}, on {results['dataset']}" if training else name,
        "images": f"{results['num_examples']} image{'s' * (results['num_examples'] != 1)}",
        "state": state,
        "finished": state.get("training_complete", True),
        "blocks": sections.blocks(results),
        "is_papers": sections.is_papers(results),
        "warnings": sections.gradient_warnings(results),
        "notes": sections.notes(results),
        "free": [attack for attack in results["attacks"] if attack["epsilon"] is None],
        "checklist_images": min(results["num_examples"], CHECKLIST_IMAGES),
        "judged": {"passed": passed.count(True), "failed": passed.count(False), "other": passed.count(None)},
        "norms": sorted({attack["config"].get("norm", "linf") for attack in results["attacks"] if attack["epsilon"]}),
        "num_classes": len(described["class_names"]),
        "image_shape": " × ".join(map(str, described["image_shape"])),
        "adversary": _adversary_text(training) if training else "",
        "net": net_text(results) if results.get("net") else "",
        "train_command": commands.train_command(results),
        "evaluate_commands": commands.evaluate_commands(results),
    }


def _checklist_rows(checklist: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the criteria of the checklist as the rows of a table."""
    return [
        ("criterion", "result", "evidence"),
        *((item["criterion"], VERDICTS[item["passed"]], item["evidence"]) for item in checklist),
    ]


def _card_tables(summary: dict[str, Any]) -> dict[str, Markup]:
    """Return the tables of the model card in Markdown."""
    clean, free = summary["results"]["clean"], free_rows(summary["results"], CARD)
    protocol = "one draw, paper's protocol" if summary["is_papers"] else "one draw, usual protocol"
    rows = [
        ("ε", protocol, "expected, worst case", "100 queries"),
        ("clean", _cell(clean["accuracy"]), _cell(clean["expected_accuracy"]), _cell(clean["n_query_accuracy"]["100"])),
    ]
    for block in summary["blocks"]:
        weakest = block["protocol"]
        one_draw = _cell(weakest["accuracy"], weakest["name"]) if weakest else "–"
        worst = _cell(block["worst"], f"{len(block['attacks'])} attacks")
        rows.append((block["epsilon"], one_draw, worst, _cell(block["queries"]["100"])))
    return {"numbers": as_markdown(rows), "without_radius": as_markdown(free) if len(free) > 1 else Markup()}


def _cell(number: dict[str, float], about: str = "") -> Markup:
    """Return a number with its interval in Markdown, whose brackets need no escape, and what it is of."""
    return Markup(Number.of(number).with_interval() + (f" ({escape_markdown(about)})" if about else ""))


def _adversary_text(training: dict[str, Any]) -> str:
    """Return the attack of adversarial training as a text, from the training's flags."""
    defence = parse_defence(training["defence"])
    return defence.adversary_text(training["adversarial_attack"], training["adversarial_epsilon"])


def _figures(results: dict[str, Any], outcomes: list[Outcome], class_names: list[str]) -> dict[str, Any]:
    """Return the values that only the page shows."""
    return {
        "probability_error": max(each["probability_error"] for each in (results["clean"], *results["attacks"])),
        "estimated": outcomes[0].judgement.draws,
        "tables": page_rows(results) | {"counted": sections.convention_rows(results)},
        "checklist_rows": _checklist_rows(results.get("checklist", [])),
        "accuracy": sections.accuracy(results),
        "distortions": sections.distortions(outcomes),
        "queries": sections.queries(outcomes),
        "galleries": sections.galleries(outcomes, class_names),
    }
