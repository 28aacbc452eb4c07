"""The table of docs/results/cost.md in Markdown, and the targets, a line each."""

from typing import Any

from tabulate import tabulate

from benchmarks.suite import plan

NETS = {"lenet_plus_plus": "LeNet++", "resnet18": "ResNet-18"}
FASTEST = "fastest"  # of the other libraries
# What a row has on its left: the attack, the draws, and the contenders that the ratios are to.
ROWS = {
    "PGD with EoT over 50 draws, to PGD without EoT": ("pgd", 50, (plan.DETERMINISTIC,)),
    "the same, to TensorFlow with a pass for each draw": ("pgd", 50, (plan.REPEAT,)),
    "the same, to torchattacks' EOTPGD": ("pgd", 50, ("torchattacks",)),
    "the same, to Foolbox's EoT wrapper": ("pgd", 50, ("Foolbox",)),
    "PGD with EoT over 10 draws, to torchattacks' and Foolbox's": ("pgd", 10, ("torchattacks", "Foolbox")),
    "PGD without EoT, to the fastest other library's": ("pgd", 0, (FASTEST,)),
    "Square, to torchattacks', per pass of the net": ("square", 0, ("torchattacks",)),
    "APGD, to torchattacks'": ("apgd", 0, ("torchattacks",)),
    "C&W, to Foolbox's": ("cw", 0, ("Foolbox",)),
    "n_pixel, to the fastest other library's": ("n_pixel", 0, (FASTEST,)),
    "PGD with 3 restarts, to the fastest other library's": ("pgd_restarts", 0, (FASTEST,)),
    "FGSM, to the fastest other library's": ("fgsm", 0, (FASTEST,)),
}


def attacks(results: dict[str, Any]) -> str:
    """Return the runtime ratios, a column for each net and number of images."""
    cells = {(c["attack"], c["net"], c["images"], c["draws"]): c for c in results["attacks"].values() if "ratios" in c}
    columns = list(dict.fromkeys((net, images) for _, net, images, _ in cells))
    rows = [
        [
            name,
            *(
                ", ".join(_ratio(cells.get((attack, *column, draws), {}), other) for other in others)
                for column in columns
            ),
        ]
        for name, (attack, draws, others) in ROWS.items()
        if any(cell[0] == attack and cell[3] == draws for cell in cells)
    ]
    headers = ["runtime ratio", *(f"{NETS[net]}: {images}" for net, images in columns)]
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True)


def targets(verdicts: list[dict[str, Any]]) -> str:
    words = {True: "met", False: "missed", None: "not measured"}
    return tabulate(
        [
            (each["name"], each["value"], ">=" if each["at_least"] else "<=", each["bound"], words[each["met"]])
            for each in verdicts
        ],
        floatfmt=".3g",
        missingval="–",
        tablefmt="plain",
    )


def _ratio(cell: dict[str, Any], other: str) -> str:
    """Return a ratio with two decimals, or as a fraction where there is little left of it."""
    value = cell.get("ratios", {}).get(cell.get("fastest_peer") if other == FASTEST else other)
    if value is None:
        return ""
    return f"{value:.2f}" if value > 0.2 else f"1/{1 / value:.0f}"
