"""The report of an evaluation as a page, report.html, and as a model card, model_card.md.

The templates are in templates/. Every value that they print is escaped, unless it is Markup: names of classes and data
sets come from users.
"""

import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from wca_tf.attacks.radii import Radius
from wca_tf.core import files
from wca_tf.defences import parse_defence
from wca_tf.evaluation.measures.checklist import IMAGES as CHECKLIST_IMAGES
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.report import commands, sections
from wca_tf.evaluation.report.sections import ReportSection
from wca_tf.evaluation.report.table import net_text
from wca_tf.gaussian.intervals import distance_text, percent, signed

TEMPLATES = Path(__file__).parent / "templates"
# Characters that reorder or hide the characters around them.
_INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Characters with a special meaning in Markdown.
_MARKDOWN = re.compile(r"([\\`*\[\]|#~$]|(?<!\w)_|_(?!\w))")


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
    card = render("model_card.md.j2", **summary)
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
        "percent": percent,
        "distance": distance_text,
        "interval": interval,
        "fenced": fenced,
        "breakable": breakable,
        "points": points,
        "points_interval": points_interval,
        "radius": lambda epsilon: Radius(epsilon).text,
    }
    return environment.get_template(template).render(context)


def plain(value: Any) -> Any:
    """Return a text without characters that change how other characters are shown.

    U+FFFD, a question mark in a diamond, replaces them. Markup, and a value that is no text, is returned unchanged.
    """
    return _INVISIBLE.sub("\ufffd", value) if isinstance(value, str) and not isinstance(value, Markup) else value


def escape_markdown(value: Any) -> str:
    """Return text that Markdown shows as it is, on one line; Markup is not changed."""
    if isinstance(value, Markup):
        return str(value)
    text = re.sub(r"\s", " ", plain(str(value))).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", text)


def fenced(text: str) -> Markup:
    """Return a block of code in Markdown that no part of `text` can end."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return Markup(f"{fence}\n{plain(text)}\n{fence}")


def breakable(text: str) -> Markup:
    """Return an attack as written; a browser may break the line between its parameters."""
    return Markup(":<wbr>").join(plain(text).split(":"))


def interval(number: dict[str, float]) -> Markup:
    """Return a number's 95 % interval in per cent. Its brackets need no escape in HTML or Markdown."""
    return Markup(f"[{100 * number['low']:.1f}, {100 * number['high']:.1f}]")


def points(difference: dict[str, float]) -> str:
    """Return a difference in points, with its sign."""
    return signed(difference).partition(" ")[0]


def points_interval(difference: dict[str, float]) -> Markup:
    """Return the 95 % interval of a difference in points. Its brackets need no escape in HTML or Markdown."""
    return Markup(signed(difference).partition(" ")[2])


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
        "convention_rows": sections.convention_rows(results),
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


def _adversary_text(training: dict[str, Any]) -> str:
    """Return the attack of adversarial training as a text, from the training's flags."""
    defence = parse_defence(training["defence"])
    return defence.adversary_text(training["adversarial_attack"], training["adversarial_epsilon"])


def _figures(results: dict[str, Any], outcomes: list[Outcome], class_names: list[str]) -> dict[str, Any]:
    """Return the values that only the page shows."""
    return {
        "probability_error": max(each["probability_error"] for each in (results["clean"], *results["attacks"])),
        "estimated": outcomes[0].judgement.draws,
        "accuracy": sections.accuracy(results),
        "distortions": sections.distortions(outcomes),
        "queries": sections.queries(outcomes),
        "galleries": sections.galleries(outcomes, class_names),
    }
