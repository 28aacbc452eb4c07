"""An evaluation as a page for people, report.html, and as a model card, model_card.md.

The templates are in templates/. Whatever they print is escaped unless it is Markup: names of classes and data sets come
from users.
"""

import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from wca_tf import files
from wca_tf.config import TrainConfig
from wca_tf.data.examples import Examples
from wca_tf.defences import parse_defence
from wca_tf.evaluation.accuracy import distance_text, percent
from wca_tf.evaluation.checklist import IMAGES as CHECKLIST_IMAGES
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.report import commands, sections
from wca_tf.evaluation.report.sections import ReportSection

TEMPLATES = Path(__file__).parent / "templates"
# Characters that reorder or hide what stands around them.
_INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# What Markdown would read as more than a character.
_MARKDOWN = re.compile(r"([\\`*\[\]|#~$]|(?<!\w)_|_(?!\w))")


def write_report(
    report: Path,
    results: dict[str, Any],
    outcomes: list[Outcome],
    examples: Examples,
    net_sections: list[ReportSection],
    measure_sections: list[ReportSection],
    noisy: bool,
) -> None:
    """Write report.html and model_card.md into the directory `report`.

    Args:
        report: an existing directory.
        results: the contents of results.json.
        outcomes: the clean images, then every attack, as in results["attacks"].
        examples: the images that were attacked.
        net_sections: what the net tells of itself.
        measure_sections: what measures tell that the page itself does not show.
        noisy: whether the net may have noise.
    """
    summary = _summary(results, examples) | {
        "net_sections": net_sections,
        "measure_sections": measure_sections,
        "has_noise": noisy,
    }
    page = render("report.html.j2", **summary, **_figures(results, outcomes, examples))
    card = render("model_card.md.j2", **summary)
    files.write_atomically(report / "report.html", lambda path: _write(path, page))
    files.write_atomically(report / "model_card.md", lambda path: _write(path, card))


def render(template: str, **context: Any) -> str:
    """A template with everything escaped that it prints: for HTML, or for Markdown by the template's name."""
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
    }
    return environment.get_template(template).render(context)


def plain(value: Any) -> Any:
    """A text without characters that change how others are shown: a question mark in a diamond stands for them."""
    return _INVISIBLE.sub("\ufffd", value) if isinstance(value, str) and not isinstance(value, Markup) else value


def escape_markdown(value: Any) -> str:
    """Text that Markdown shows as it is, on one line; Markup is left alone."""
    if isinstance(value, Markup):
        return str(value)
    text = re.sub(r"\s", " ", plain(str(value))).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", text)


def fenced(text: str) -> Markup:
    """A block of code in Markdown, which nothing in `text` can end."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return Markup(f"{fence}\n{plain(text)}\n{fence}")


def breakable(text: str) -> Markup:
    """An attack as written, which a browser may break between its parameters."""
    return Markup(":<wbr>").join(plain(text).split(":"))


def interval(number: dict[str, float]) -> Markup:
    """A number's 95 % interval in per cent, whose brackets no format has to escape."""
    return Markup(f"[{100 * number['low']:.1f}, {100 * number['high']:.1f}]")


def _write(path: str, text: str) -> None:
    Path(path).write_bytes(text.encode("utf-8", "replace"))  # names of folders may be no Unicode


def _summary(results: dict[str, Any], examples: Examples) -> dict[str, Any]:
    """What page and model card both say."""
    training, state = results["training"], results["model"]
    name = f"{training['backbone']}, {training['defence']}" if training else state["name"]
    passed = [item["passed"] for item in results["checklist"]]
    return {
        "results": results,
        "training": training,
        "name": name,
        "title": f"{name}, on {results['dataset']}" if training else name,
        "images": f"{results['num_examples']} image{'s' * (results['num_examples'] != 1)}",
        "state": state,
        "finished": state.get("training_complete", True),
        "blocks": sections.blocks(results),
        "free": [attack for attack in results["attacks"] if attack["epsilon"] is None],
        "checklist_images": min(results["num_examples"], CHECKLIST_IMAGES),
        "judged": {"passed": passed.count(True), "failed": passed.count(False), "other": passed.count(None)},
        "norms": sorted({attack["config"].get("norm", "linf") for attack in results["attacks"] if attack["epsilon"]}),
        "num_classes": len(examples.class_names),
        "image_shape": " × ".join(map(str, examples.image_shape)),
        "adversary": parse_defence(training["defence"]).adversary_text(TrainConfig(**training)) if training else "",
        "train_command": commands.train_command(results),
        "evaluate_commands": commands.evaluate_commands(results),
    }


def _figures(results: dict[str, Any], outcomes: list[Outcome], examples: Examples) -> dict[str, Any]:
    """What only the page shows."""
    return {
        "probability_error": max(each["probability_error"] for each in (results["clean"], *results["attacks"])),
        "estimated": outcomes[0].judgement.draws,
        "accuracy": sections.accuracy(results),
        "distortions": sections.distortions(outcomes),
        "queries": sections.queries(outcomes),
        "galleries": sections.galleries(outcomes, examples),
    }
