"""results.json as a table: the paper's protocol beside the adaptive attacks."""

import html
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from wca_tf.evaluation.report.sections import is_papers
from wca_tf.gaussian.intervals import distance_text, percent

COLUMNS = (
    "attack",
    "kind",
    "one draw [95 %]",
    "expected",
    "noise-free",
    "10 queries",
    "100 queries",
    "no useful grad",
    "median l2",
    "found",
    "generations",
)


def attack_table(results: dict[str, Any]) -> str:
    """Return the table in plain text: a block per radius, percentages, with 95 % intervals."""
    return f"{header(results)}\n{rendered(table_rows(results))}"


def table_rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the column heads, then a row for each attack and worst case. Columns without values are left out."""
    papers = is_papers(results)

    def kind(attack: dict[str, Any]) -> str:
        return attack["config"]["kind"] if papers else ""

    rows = [COLUMNS, _row("clean", "", results["clean"])]
    several = len({worst["norm"] for worst in results["worst_case"]}) > 1
    for worst in results["worst_case"]:
        norm = f" ({worst['norm']})" if several else ""
        rows.append(_filled(f"epsilon {worst['epsilon']:.4g}{norm}"))
        rows += [
            _row("  " + a["name"], kind(a), a)
            for a in results["attacks"]
            if (a["norm"], a["epsilon"]) == (worst["norm"], worst["epsilon"])
        ]
        queries = [percent(worst["n_query_accuracy"][n]) for n in ("10", "100")]
        rows.append(
            _filled(
                "  worst case", "per image" if papers else "", "", percent(worst["expected_accuracy"]), "", *queries
            )
        )
    without_radius = [attack for attack in results["attacks"] if attack["epsilon"] is None]
    if without_radius:
        rows.append(_filled("no radius"))
        rows += [_row("  " + attack["name"], kind(attack), attack) for attack in without_radius]
    shown = [i for i in range(len(COLUMNS)) if any(row[i] for row in rows[1:])]
    return [tuple(row[i] for i in shown) for row in rows]


def rendered(rows: Sequence[Sequence[str]], form: str = "plain") -> str:
    """Return a table as text; the first row has the column heads.

    Args:
        rows: texts, as many in each row.
        form: "plain" for a terminal, "html", or "pipe" for Markdown, whose cells must be escaped.
    """
    head, body = ((), rows) if form == "plain" else (rows[0], rows[1:])  # heads of a plain table would be padded
    text = tabulate(body, head, form, disable_numparse=True, preserve_whitespace=True)
    return "\n".join(line.rstrip() for line in text.splitlines())


def html_table(rows: Sequence[Sequence[str]], caption: str) -> str:
    """Return a table in HTML, for a notebook; the first row has the column heads."""
    return rendered(rows, "html").replace("<table>", f"<table><caption>{html.escape(caption)}</caption>", 1)


def _filled(*cells: str) -> tuple[str, ...]:
    """Return the cells of a row, followed by empty cells."""
    return cells + ("",) * (len(COLUMNS) - len(cells))


def header(results: dict[str, Any]) -> str:
    """Return a line that says which images and which net the table is for."""
    if results.get("net"):
        return net_text(results) + " (accuracy in %)"
    what = f"{results['dataset']} {results['split']}, {results['num_examples']} images"
    training, model = results["training"], results["model"]
    if training:
        what += f": {training['backbone']}, {training['defence']}"
        what += f", epoch {model['epoch']} of {training['epochs']}"
        what += "" if model["training_complete"] else ", UNFINISHED"
    return what + " (accuracy in %)"


def net_text(results: dict[str, Any]) -> str:
    """Return what was found out about a model that is not of this package: in which form it was judged, on what."""
    net, name = results["net"], results["model"]["name"]
    low, high = net["pixel_range"]
    parts = [f"pixels from {low:g} to {high:g}", net["outputs"]]
    parts += [f"random layers {state}: {', '.join(names)}" for state, names in net["random_layers"].items() if names]
    parts += [f"clean accuracy {percent(results['clean']['expected_accuracy'])} %"]
    images = f"{results['num_examples']} images"
    if results["dataset"] != name:
        images += f" of {results['dataset']}"
    notes = [net["note"]] if net["note"] else []
    if net["ties"]:
        notes.append(f"{net['ties']} images with equal largest logits count as wrong, whichever class comes first")
    return ". ".join([f"{name} ({net['class']}, {net['framework']}) on {images}: {'; '.join(parts)}", *notes])


def _row(name: str, kind: str, numbers: dict[str, Any]) -> tuple[str, ...]:
    accuracy = numbers["accuracy"]
    interval = f"{percent(accuracy)} [{100 * accuracy['low']:.1f}, {100 * accuracy['high']:.1f}]"
    useless = numbers.get("no_useful_gradient_share")
    distortion = numbers.get("distortion")
    return (
        name,
        kind,
        interval,
        percent(numbers["expected_accuracy"]),
        percent(numbers["noise_free_accuracy"]),
        percent(numbers["n_query_accuracy"]["10"]),
        percent(numbers["n_query_accuracy"]["100"]),
        "" if useless is None else percent(useless),
        distance_text(distortion["l2"]["median"]) if distortion else "",
        percent(numbers["found"]) if numbers.get("found") else "",
        f"{numbers['generations']['median']:g}" if numbers.get("generations") else "",
    )
