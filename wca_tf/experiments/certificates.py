"""Certificates of nets with 1-Lipschitz features beside attacks in l2: what noise adds to what can be proved."""

from functools import partial
from pathlib import Path
from typing import Any

from wca_tf.core.errors import InputError
from wca_tf.evaluation.measures.certificates import CURVES, extrapolated_seconds
from wca_tf.experiments.charts import Series, curves, legend, panels, save
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.run import Evaluated, Run
from wca_tf.experiments.tables import Table, by_seed

# Radii in l2, and one in l∞ through l2. The published anchors are at 0.3 and 1.58 (MNIST) and 36/255 (CIFAR-10).
RADII = {
    "digits": ("0.1", "linf:0.01"),
    "mnist": ("0.1", "0.3", "1.58", "linf:0.01", "linf:0.03"),
    "fashion_mnist": ("0.1", "0.3", "1.0", "linf:0.01", "linf:0.03"),
    "cifar10": ("36/255", "72/255", "linf:1/255"),
}
ANCHORS = {  # deterministic certified accuracy that others publish
    ("mnist", "0.3"): "95.7 (GloRo)",
    ("mnist", "1.58"): "62.8 (GloRo)",
    ("cifar10", "36/255"): "59.1 (AOL, small net)",
}
NETS = {
    "No Defense": "certified_none",
    "bounded weights, almost no noise": "certified_quiet",
    "WCA-Net isotropic": "certified_isotropic",
    "WCA-Net anisotropic": "certified_anisotropic",
    "WCA-Net pairwise": "certified_pairwise",
}
SMOOTHING = "smoothing, the vote"
TRAINED_ONCE = ("cifar10",)  # otherwise three times
ATTACKS = ("pgd:steps=40:norm=l2", "apgd_ce:norm=l2", "cw:steps=200:learning_rate=0.01:searches=6")
COLUMNS = {
    "certificate": "certified",
    "known_draw": "C1",
    "gaussian_shift": "C2",
    "deterministic": "noise off",
    "union": "union bound",
    "attacked": "left by attacks",
}


def reproduce(run: Run) -> Table:
    """Return a table with a row for each net and radius: certificates, the strongest attacks, and the time."""
    table = Table("Certificates in l2, accuracy under every attack", ["clean", *COLUMNS.values(), "100 queries"])
    table.legend = "In %, ± the 95 % half-width; certificates are lower bounds, attacks an upper bound."
    drawn: dict[str, Series] = {}
    for dataset in run.datasets:
        for label, variant in NETS.items():
            name, nets = f"{dataset}, {label}", [run.net(dataset, variant)]
            fill = partial(_add_certified, run, dataset, label, variant)
            drawn[name] = kept_rows(run, table, name, nets, fill, [RADII[dataset], _suite(run)])
        nets = [run.net(dataset, "certified_smoothing")]
        kept_rows(run, table, f"{dataset}, {SMOOTHING}", nets, partial(_add_smoothing, run, dataset), RADII[dataset])
    _draw(run, drawn)
    table.notes = [
        "certified: the larger of C1 (the attacker sees the draw) and C2 (does not see it), for each image",
        "noise off: the certificate of the same net without its noise; it may lie above what attacks leave with noise",
        "union bound: Theorem 1's proof for each rival, without its last step",
        "l∞ radii are certified by the l2 ball around them; no attack in l∞ was made",
        "s per 10,000: seconds to certify 10,000 images at all radii, extrapolated from the images certified here",
        f"by seed: nets that differ in their seed alone, certified on {'these' if _few(run) else 'all test'} images",
        "published: certified accuracy of nets without noise, by other authors, on all test images",
        f"{SMOOTHING}: Cohen et al.'s certificate on LeNet-5; clean is the vote's accuracy; 20 images, so ± 20 points",
        *[note for d in run.datasets for note in run.notes(d, [*NETS.items(), (SMOOTHING, "certified_smoothing")], [])],
    ]
    return table


def _add_certified(run: Run, dataset: str, label: str, variant: str, table: Table) -> Series:
    """Train a net and fill its rows; return its curves over the radii in l2."""
    found = _evaluated(run, run.trained(dataset, variant), dataset, _suite(run))
    series = _add_rows(table, dataset, label, found)
    _add_seeds(table, run, dataset, label, variant)
    return series


def _suite(run: Run) -> str:
    if run.config.scale == "tiny":
        return "pgd:steps=3:norm=l2,cw:steps=10:searches=2:learning_rate=0.1"
    return ",".join([*ATTACKS, "adaptive:norm=l2:queries=300" if run.config.scale == "small" else "adaptive:norm=l2"])


def _evaluated(run: Run, path: Path, dataset: str, attacks: str, **changes: Any) -> Evaluated:
    """Evaluate a net with certificates at the radii of its data set, and attacks in l2 at those in l2."""
    l2 = [f"l2:{radius}" for radius in RADII[dataset] if ":" not in radius]
    asked = {"certified_radii": ",".join(RADII[dataset]), **changes}
    return run.evaluated_at(path, attacks.split(","), ",".join(l2), **asked)


def _add_rows(table: Table, dataset: str, label: str, found: Evaluated) -> Series:
    """Fill the rows of a net; return its curves over the radii in l2."""
    certificates = found.results["certificates"]
    if any(row["violations"] for row in certificates["rows"]):
        raise InputError(f"expected no attack below a certificate, received one on {dataset}: {label} is not Lipschitz")
    clean = found.number("clean", what="expected_accuracy")
    series: Series = {name: [(0.0, clean["value"])] for name in CURVES}
    images = found.results["num_examples"]
    for text, row in zip(RADII[dataset], certificates["rows"], strict=True):
        name = f"{dataset}, {label}, {text}"
        table.add(name, "clean", clean)
        for key, column in COLUMNS.items():
            if key != "attacked" or row["norm"] == "l2":
                table.add(name, column, row[key])
        table.add(name, "100 queries", row["n_query"]["100"])
        if (anchor := ANCHORS.get((dataset, text))) and label == "No Defense":
            table.add(name, "published", text=anchor)
        table.add(name, "s per 10,000", text=f"{extrapolated_seconds(certificates, images):.0f}")
        if row["norm"] == "l2":
            for key in CURVES:
                series[key].append((row["radius"], row[key]["value"]))
    return series


def _add_seeds(table: Table, run: Run, dataset: str, label: str, variant: str) -> None:
    """Fill columns with the numbers of nets that differ in their seed alone, on all test images."""
    paths = [run.model_dir(dataset, variant)]
    if run.config.scale != "tiny" and dataset not in TRAINED_ONCE:
        paths += run.other_seeds(dataset, variant)
    images = run.budget.num_examples if _few(run) else 0
    found = [_evaluated(run, path, dataset, "fgsm:norm=l2", num_examples=images) for path in paths]
    clean = by_seed([each.number("clean", what="expected_accuracy") for each in found])
    for number, text in enumerate(RADII[dataset]):
        rows = [each.results["certificates"]["rows"][number] for each in found]
        name = f"{dataset}, {label}, {text}"
        table.add(name, "clean, by seed", text=clean)
        for key in ("certificate", "known_draw"):
            table.add(name, f"{COLUMNS[key]}, by seed", text=by_seed([row[key] for row in rows]))


def _few(run: Run) -> bool:
    return run.config.scale == "tiny"


def _add_smoothing(run: Run, dataset: str, table: Table) -> None:
    """Fill the rows of randomised smoothing's vote."""
    path = run.trained(dataset, "certified_smoothing")
    draws = {"certified_draws": 1000} if run.config.scale == "tiny" else {}
    found = _evaluated(run, path, dataset, "fgsm:norm=l2", num_examples=20, eot_samples=1, **draws)
    certificates = found.results["certificates"]
    for text, row in zip(RADII[dataset], certificates["rows"], strict=True):
        name = f"{dataset}, {SMOOTHING}, {text}"
        table.add(name, "clean", certificates["votes"]["accuracy"])
        table.add(name, "certified", row["vote"])
        table.add(name, "abstained", row["abstained"])
        table.add(name, "s per 10,000", text=f"{extrapolated_seconds(certificates):.0f}")


def _draw(run: Run, drawn: dict[str, Series]) -> None:
    """Draw for each net its certificates and its attacks against the radius."""
    figure, axes = panels(len(drawn), 3.4, 3.2)
    for axis, (title, series) in zip(axes, drawn.items(), strict=True):
        named = {COLUMNS[name]: points for name, points in series.items()}
        curves(axis, named, title.replace(", ", "\n", 1), "l2 radius", logarithmic=False)
    legend(axes[-1])
    save(figure, run.report_dir, "certificates")
