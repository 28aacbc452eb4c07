"""results.json as a table: the paper's protocol beside the adaptive attacks."""

from typing import Any

COLUMNS = ("attack", "kind", "one draw [95 %]", "expected", "noise-free", "10 queries", "100 queries", "zero grad")

PAPER_ATTACKS = ("fgsm", "bim", "pgd")


def format_results(results: dict[str, Any]) -> str:
    """A table in plain text: a block per epsilon, percentages, the paper's attacks marked apart from adaptive ones."""
    training = results["training"]
    lines = [
        f"{results['dataset']} {results['split']}, {results['num_examples']} images: {training['backbone']}, "
        f"covariance {training['covariance']}, epoch {results['model']['epoch']} of {training['epochs']}"
        + ("" if results["model"]["training_complete"] else ", UNFINISHED")
        + " (accuracy in %)",
    ]
    rows = [COLUMNS, _row("clean", "", results["clean"])]
    for worst in results["worst_case"]:
        rows.append((f"epsilon {worst['epsilon']:.4g}",) + ("",) * (len(COLUMNS) - 1))
        for attack in results["attacks"]:
            if attack["epsilon"] == worst["epsilon"]:
                rows.append(_row("  " + attack["name"], kind(attack), attack))
        rows.append(("  worst case", "per image", "", percent(worst["expected_accuracy"]), "", "", "", ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def kind(attack: dict[str, Any]) -> str:
    """Whether an attack is of the paper's protocol, a variant of it, or adapted to the defence."""
    if attack["config"]["objective"] != "ce":
        return "adaptive"
    return "paper" if attack["name"] in PAPER_ATTACKS and attack["config"]["eot_samples"] == 50 else "variant"


def percent(number: dict[str, float]) -> str:
    """A number's value in per cent, with one decimal."""
    return f"{100 * number['value']:.1f}"


def _row(name: str, kind: str, numbers: dict[str, Any]) -> tuple[str, ...]:
    accuracy = numbers["accuracy"]
    interval = f"{percent(accuracy)} [{100 * accuracy['low']:.1f}, {100 * accuracy['high']:.1f}]"
    zero = numbers.get("zero_gradient_share")
    return (
        name,
        kind,
        interval,
        percent(numbers["expected_accuracy"]),
        percent(numbers["noise_free_accuracy"]),
        percent(numbers["n_query_accuracy"]["10"]),
        percent(numbers["n_query_accuracy"]["100"]),
        "" if zero is None else f"{100 * zero:.1f}",
    )
