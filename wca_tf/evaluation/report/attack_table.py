"""The attacks of results.json as the rows of a table, and lines that say what they were run on."""

from collections.abc import Sequence
from typing import Any

from wca_tf.evaluation.report.sections import blocks, is_papers
from wca_tf.evaluation.report.tables import STRONG, as_text
from wca_tf.gaussian.intervals import Number, distance_text, percent

ACCURACIES = ("noise-free", "10 queries", "100 queries")
END = ("target reached", "seconds", "passes")
# The columns of the table in a terminal, of the page's first table, of its table of all numbers, and of attacks
# without a radius.
TERMINAL = ("one draw [95 %]", "expected", *ACCURACIES, "no useful grad", "median l2", "found", "generations")
FIRST = ("expected [95 %]", "one draw [95 %]", "100 queries")
ALL = ("one draw [95 %]", "expected [95 %]", *ACCURACIES, "no useful grad", *END)
FREE = (*ALL[: -len(END)], "median l2", "median pixels", "found", "generations", *END)
ONLY_WHERE_KNOWN = ("kind", "target reached")  # columns that a page leaves out where they are empty


def attack_table(results: dict[str, Any]) -> str:
    """Return the table in plain text: a block per radius, percentages, with 95 % intervals."""
    return f"{header(results)}\n{as_text(terminal_rows(results))}"


def terminal_rows(results: dict[str, Any]) -> list[Sequence[str]]:
    """Return the rows of the table in a terminal and in a notebook: all attacks, and no column without values."""
    several = len({worst["norm"] for worst in results["worst_case"]}) > 1
    titles = [
        f"epsilon {worst['epsilon']:.4g}" + (f" ({worst['norm']})" if several else "")
        for worst in results["worst_case"]
    ]
    columns = ("kind", *TERMINAL)
    rows = attack_rows(results, columns, titles)
    if free := free_rows(results, columns)[1:]:
        rows += [("no radius",), *free]
    return _without_empty(rows, columns)


def page_rows(results: dict[str, Any]) -> dict[str, list[Sequence[str]]]:
    """Return the rows of the page's tables of attacks by the id of the table."""
    titles = [f"ε = {block['epsilon']}" for block in blocks(results)]
    free = _without_empty(free_rows(results, ("kind", *FREE)), ONLY_WHERE_KNOWN)
    return {
        "left": attack_rows(results, FIRST, titles, noise_off=True),
        "radii": _without_empty(attack_rows(results, ("kind", *ALL), titles), ONLY_WHERE_KNOWN),
        "free": free if len(free) > 1 else [],
    }


def attack_rows(
    results: dict[str, Any], columns: Sequence[str], titles: Sequence[str], noise_off: bool = False
) -> list[Sequence[str]]:
    """Return the column heads, the clean images, and for each radius a title, its attacks and their worst case.

    Args:
        results: the contents of results.json.
        columns: those after the first, which has the attacks.
        titles: of the radii.
        noise_off: whether the worst case of the net without its noise follows, where it is known.
    """
    papers = is_papers(results)
    rows = [("attack", *columns), _row("clean", results["clean"], columns)]
    for block, title in zip(blocks(results), titles, strict=True):
        rows += [(title,), *(_row(each["name"], each, columns, papers) for each in block["attacks"])]
        worst = {"expected_accuracy": block["worst"], "n_query_accuracy": block["queries"]}
        rows.append(_row(STRONG, worst | {"config": {"kind": "per image"}}, columns, papers))
        if noise_off and block["noise_off"]:
            twin = {"expected_accuracy": block["noise_off"]["worst_case"]}
            rows.append(_row("the same net without its noise", twin, columns))
    return rows


def free_rows(results: dict[str, Any], columns: Sequence[str]) -> list[Sequence[str]]:
    """Return the column heads, then a row for each attack without a radius."""
    free, papers = [each for each in results["attacks"] if each["epsilon"] is None], is_papers(results)
    return [("attack", *columns), *(_row(each["name"], each, columns, papers) for each in free)]


def _row(name: str, numbers: dict[str, Any], columns: Sequence[str], papers: bool = False) -> Sequence[str]:
    """Return the cells of an attack, or of a worst case, in some columns; a cell is empty where nothing is known."""
    queries, distances = numbers.get("n_query_accuracy", {}), numbers.get("distortion", {})
    texts = {
        "kind": numbers["config"]["kind"] if papers else "",
        "one draw [95 %]": _text(numbers.get("accuracy"), True),
        "expected [95 %]": _text(numbers["expected_accuracy"], True),
        "expected": _text(numbers["expected_accuracy"]),
        "noise-free": _text(numbers.get("noise_free_accuracy")),
        **{f"{n} queries": _text(queries.get(n)) for n in ("10", "100")},
        "no useful grad": _text(numbers.get("no_useful_gradient_share")),
        "target reached": _text(numbers.get("target_rate")),
        "median l2": distance_text(distances["l2"]["median"]) if distances else "",
        "median pixels": distance_text(distances["l0"]["median"]) if distances else "",
        "found": _text(numbers.get("found")),
        "generations": f"{numbers['generations']['median']:g}" if numbers.get("generations") else "",
        "seconds": f"{numbers['seconds']:.1f}" if "seconds" in numbers else "",
        "passes": "{forward:.0f} + {backward:.0f}".format(**numbers["passes"]) if numbers.get("passes") else "",
    }
    return (name, *(texts[column] for column in columns))


def _text(number: Any, with_interval: bool = False) -> str:
    known = Number.of(number)
    return (known.with_interval() if with_interval else known.percent()) if known else ""


def _without_empty(rows: list[Sequence[str]], columns: Sequence[str]) -> list[Sequence[str]]:
    """Return the rows without those of `columns` that are empty in every row."""
    full = [row for row in rows[1:] if len(row) > 1]
    shown = [i for i, head in enumerate(rows[0]) if head not in columns or any(row[i] for row in full)]
    return [row if len(row) == 1 else tuple(row[i] for i in shown) for row in rows]


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
    pixels = (
        "pixels from {:g} to {:g}".format(*net["pixel_range"]) if net["pixel_range"] else "pixels of each net's own"
    )
    parts = [pixels, net["outputs"]]
    parts += [f"random layers {state}: {', '.join(names)}" for state, names in net["random_layers"].items() if names]
    parts += [f"clean accuracy {percent(results['clean']['expected_accuracy'])} %"]
    images = f"{results['num_examples']} images"
    if results["dataset"] != name:
        images += f" of {results['dataset']}"
    notes = [net["note"]] if net["note"] else []
    if net["ties"]:
        notes.append(f"{net['ties']} images with equal largest logits count as wrong, whichever class comes first")
    return ". ".join([f"{name} ({net['class']}, {net['framework']}) on {images}: {'; '.join(parts)}", *notes])
