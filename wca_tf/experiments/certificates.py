"""Certificates of nets with 1-Lipschitz features beside attacks in l2: what noise adds to what can be proved."""

from functools import partial
from pathlib import Path
from typing import Any

from wca_tf.evaluation.measures.certificates import CURVES
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
    "WCA-Net isotropic": "certified_isotropic",
    "WCA-Net anisotropic": "certified_anisotropic",
    "WCA-Net anisotropic, variance 0.01 at most": "certified_quiet",
}
SMOOTHING = "smoothing, the vote"
TRAINED_ONCE = ("cifar10",)  # otherwise three times
ATTACKS = ("pgd:steps=40:norm=l2", "apgd_ce:norm=l2", "cw:steps=200:learning_rate=0.01:searches=6")
COLUMNS = {
    "certificate": "certified",
    "known_draw": "C1",
    "gaussian_shift": "C2",
    "deterministic": "without noise",
    "theorem_1": "Theorem 1",
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
            drawn[name] = kept_rows(run, table, name, nets, partial(_add_certified, run, dataset, label, variant))
        nets = [run.net(dataset, "certified_smoothing")]
        kept_rows(run, table, f"{dataset}, {SMOOTHING}", nets, partial(_add_smoothing, run, dataset))
    _draw(run, drawn)
    table.notes = [
        "certified: the larger of C1 (the attacker sees the draw) and C2 (does not see it), for each image",
        "without noise: the certificate of the same net without its noise",
        "l∞ radii are certified by the l2 ball around them",
        "s per 10,000: seconds to certify 10,000 images at all radii, extrapolated from the images certified here",
        "certified, by seed: nets that differ in their seed alone",
        "published: certified accuracy of nets without noise, by other authors",
        f"{SMOOTHING}: Cohen et al.'s certificate on LeNet-5, 20 images",
        *[note for d in run.datasets for note in run.notes(d, [(n, v) for n, v in NETS.items()], [])],
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
        if anchor := ANCHORS.get((dataset, text)):
            table.add(name, "published", text=anchor)
        table.add(name, "s per 10,000", text=f"{certificates['seconds'] * 10_000 / images:.0f}")
        if row["norm"] == "l2":
            for key in CURVES:
                series[key].append((row["radius"], row[key]["value"]))
    return series


def _add_seeds(table: Table, run: Run, dataset: str, label: str, variant: str) -> None:
    """Fill a column with the certificates of nets that differ in their seed alone."""
    if run.config.scale == "tiny" or dataset in TRAINED_ONCE:
        return
    paths = [run.model_dir(dataset, variant), *run.other_seeds(dataset, variant)]
    quick = [_evaluated(run, path, dataset, "pgd:steps=3:norm=l2") for path in paths]
    for number, text in enumerate(RADII[dataset]):
        found = [each.results["certificates"]["rows"][number]["certificate"] for each in quick]
        table.add(f"{dataset}, {label}, {text}", "certified, by seed", text=by_seed(found))


def _add_smoothing(run: Run, dataset: str, table: Table) -> None:
    """Fill the rows of randomised smoothing's vote."""
    path = run.trained(dataset, "certified_smoothing")
    draws = {"certified_draws": 1000} if run.config.scale == "tiny" else {}
    found = _evaluated(run, path, dataset, "fgsm:norm=l2", num_examples=20, eot_samples=1, **draws)
    certificates = found.results["certificates"]
    for text, row in zip(RADII[dataset], certificates["rows"], strict=True):
        name = f"{dataset}, {SMOOTHING}, {text}"
        table.add(name, "clean", found.number("clean", what="expected_accuracy"))
        table.add(name, "certified", row["vote"])
        per_image = certificates["seconds"] / certificates["votes"]["images"]
        table.add(name, "s per 10,000", text=f"{10_000 * per_image:.0f}")


def _draw(run: Run, drawn: dict[str, Series]) -> None:
    """Draw for each net its certificates and its attacks against the radius."""
    figure, axes = panels(len(drawn), 3.4, 3.2)
    for axis, (title, series) in zip(axes, drawn.items(), strict=True):
        named = {COLUMNS[name]: points for name, points in series.items()}
        curves(axis, named, title.replace(", ", "\n", 1), "l2 radius", logarithmic=False)
    legend(axes[-1])
    save(figure, run.report_dir, "certificates")
