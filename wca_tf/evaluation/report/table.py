"""results.json as a table: the paper's protocol beside the adaptive attacks."""

from typing import Any

from wca_tf.evaluation.accuracy import distance_text, percent

COLUMNS = (
    "attack",
    "kind",
    "one draw [95 %]",
    "expected",
    "noise-free",
    "10 queries",
    "100 queries",
    "zero grad",
    "median l2",
    "found",
    "generations",
)


def attack_table(results: dict[str, Any]) -> str:
    """A table in plain text: a block per epsilon, percentages, the paper's attacks marked apart from adaptive ones."""
    rows = [COLUMNS, _row("clean", "", results["clean"])]
    several = len({worst["norm"] for worst in results["worst_case"]}) > 1
    for worst in results["worst_case"]:
        norm = f" ({worst['norm']})" if several else ""
        rows.append((f"epsilon {worst['epsilon']:.4g}{norm}",) + ("",) * (len(COLUMNS) - 1))
        rows += [
            _row("  " + a["name"], a["config"]["kind"], a)
            for a in results["attacks"]
            if (a["norm"], a["epsilon"]) == (worst["norm"], worst["epsilon"])
        ]
        cells = ("  worst case", "per image", "", percent(worst["expected_accuracy"]))
        rows.append(cells + ("",) * (len(COLUMNS) - len(cells)))
    without_radius = [attack for attack in results["attacks"] if attack["epsilon"] is None]
    if without_radius:
        rows.append(("no radius",) + ("",) * (len(COLUMNS) - 1))
        rows += [_row("  " + attack["name"], attack["config"]["kind"], attack) for attack in without_radius]
    shown = [i for i in range(len(COLUMNS)) if any(row[i] for row in rows[1:])]
    rows = [tuple(row[i] for i in shown) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(shown))]
    lines = [_header(results)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _header(results: dict[str, Any]) -> str:
    what = f"{results['dataset']} {results['split']}, {results['num_examples']} images"
    training, model = results["training"], results["model"]
    if training:
        what += f": {training['backbone']}, {training['defence']}"
        what += f", epoch {model['epoch']} of {training['epochs']}"
        what += "" if model["training_complete"] else ", UNFINISHED"
    return what + " (accuracy in %)"


def _row(name: str, kind: str, numbers: dict[str, Any]) -> tuple[str, ...]:
    accuracy = numbers["accuracy"]
    interval = f"{percent(accuracy)} [{100 * accuracy['low']:.1f}, {100 * accuracy['high']:.1f}]"
    zero = numbers.get("zero_gradient_share")
    distortion = numbers.get("distortion")
    return (
        name,
        kind,
        interval,
        percent(numbers["expected_accuracy"]),
        percent(numbers["noise_free_accuracy"]),
        percent(numbers["n_query_accuracy"]["10"]),
        percent(numbers["n_query_accuracy"]["100"]),
        "" if zero is None else f"{100 * zero:.1f}",
        distance_text(distortion["l2"]["median"]) if distortion else "",
        percent(numbers["found"]) if numbers.get("found") else "",
        f"{numbers['generations']['median']:g}" if numbers.get("generations") else "",
    )
