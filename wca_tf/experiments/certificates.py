"""Certificates of nets with 1-Lipschitz features beside attacks in l2: what noise adds to what can be proved."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

from wca_tf.core.errors import DivergedError, InputError
from wca_tf.evaluation.measures.certificates import CURVES, extrapolated_seconds, row_of
from wca_tf.evaluation.measures.smoothing_votes import VOTED_IMAGES
from wca_tf.experiments.certificate_nets import (
    ALL_IMAGES,
    ANCHORS,
    ATTACKED_IMAGES,
    DETERMINISTIC,
    KNOWING,
    NETS,
    PLAIN,
    RADII,
    attacked_radii,
    attacks_of,
    attacks_on_both,
    certified,
    radii_of,
    seeds_of,
)
from wca_tf.experiments.certificates_attacks import KNOWN, PROVED, TWIN, add_known_draws, add_twin
from wca_tf.experiments.certificates_noise import (
    ADDS,
    BEST,
    BEYOND_BEST,
    BEYOND_C1,
    DEVIATION_IMAGES,
    DEVIATIONS,
    SAME_IMAGES,
    SMOOTHING,
    VOTE,
    VOTE_ADDS,
    VOTING_DRAWS,
    WITHOUT_TRAINING,
    add_deviations,
    add_gains,
    add_smoothing,
    smoothing_settings,
)
from wca_tf.experiments.charts import Series, curves, legend, panels, plain_numbers, save
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.run import PRECISION, Run
from wca_tf.experiments.tables import Table, by_seed
from wca_tf.runs.config import TrainConfig

COLUMNS = {
    "certificate": "certified",
    "known_draw": "C1",
    "gaussian_shift": "C2",
    "deterministic": "noise off",
    "union": "union bound",
    "majority": VOTE,
    "attacked": "left by attacks",
}
NO_NET: dict[str, Any] = {"curves": {}, "violations": []}  # of a net that diverged
OVER_IMAGES = ("certificate", "known_draw", "gaussian_shift", "deterministic")


def reproduce(run: Run) -> Table:
    """Return a table with a row for each net and radius: certificates, the strongest attacks, and the time.

    Raises:
        InputError: an attack went below a certificate; the rows that were made are kept.
    """
    table = Table("Certificates in l2, accuracy under every attack", ["clean", *COLUMNS.values(), "100 queries"])
    table.legend = "In %, ± the 95 % half-width; certificates are lower bounds, attacks an upper bound."
    drawn: dict[str, Series] = {}
    of_deviation: dict[str, Series] = {}
    violations: list[str] = []
    for dataset in run.datasets:
        for label, variant in NETS.items():
            found = _net(run, table, dataset, label, variant)
            if found["curves"]:
                drawn[f"{dataset}, {label}"] = found["curves"]
            violations += found["violations"]
        of_deviation |= _beside(run, table, dataset)
    _draw(run, "certificates", drawn, "l2 radius", logarithmic=False)
    _draw(run, "deviations", of_deviation, "deviation of the noise", logarithmic=True)
    table.notes = _notes(run)
    if violations:
        raise InputError(f"expected no attack below a certificate, received {'; '.join(violations)}: not Lipschitz")
    return table


def _net(run: Run, table: Table, dataset: str, label: str, variant: str) -> dict[str, Any]:
    """Fill the rows of a net: attacked images, then all test images; return its curves, and attacks below a bound."""
    name, net = f"{dataset}, {label}", run.net(dataset, variant)
    fill = partial(_add_attacked, run, dataset, label, variant)
    asked = [attacked_radii(dataset), radii_of(dataset), attacks_of(run, variant), ATTACKED_IMAGES[run.config.scale]]
    found = kept_rows(run, table, name, [net], fill, [*asked, KNOWING[run.config.scale]]) or NO_NET
    if not found["curves"]:
        return NO_NET
    fill = partial(_add_all_images, run, dataset, label, variant)
    nets = _nets_of_seeds(run, dataset, variant)
    kept = kept_rows(run, table, f"{name}, all images", nets, fill, [radii_of(dataset)]) or NO_NET
    return {"curves": found["curves"], "violations": found["violations"] + kept["violations"]}


def _nets_of_seeds(run: Run, dataset: str, variant: str) -> list[TrainConfig]:
    """Return the configurations of a net, one for each seed."""
    net = run.net(dataset, variant)
    return [net, *(dataclasses.replace(net, seed=seed) for seed in seeds_of(run, dataset, variant))]


def _of_seeds(run: Run, dataset: str, variant: str) -> list[Path]:
    """Return the directories of a net, one for each seed that did not diverge; trained where they are not."""
    changes = [{}, *({"seed": seed} for seed in seeds_of(run, dataset, variant))]
    return [path for each in changes if (path := _trained(run, dataset, variant, **each))]


def _beside(run: Run, table: Table, dataset: str) -> dict[str, Series]:
    """Fill the rows that compare nets of a data set, and smoothing's; return the curves over deviations."""
    scale = run.config.scale

    def gains(part: Table) -> None:
        add_gains(run, dataset, {variant: _of_seeds(run, dataset, variant) for variant in NETS.values()}, part)

    def deviations(part: Table) -> Any:
        path = _trained(run, dataset, NETS[PLAIN])
        return add_deviations(run, dataset, path, part) if path else {}

    def smoothing(part: Table) -> None:
        add_smoothing(run, dataset, _trained(run, dataset, "certified_none"), part)

    everything = [net for variant in NETS.values() for net in _nets_of_seeds(run, dataset, variant)]
    asked: list[Any] = [radii_of(dataset), ALL_IMAGES[scale]]
    kept_rows(run, table, f"{dataset}, what noise adds", everything, gains, asked)
    plain, asked = [run.net(dataset, NETS[PLAIN])], [RADII[dataset], DEVIATIONS[scale], DEVIATION_IMAGES[scale]]
    drawn = kept_rows(run, table, f"{dataset}, {WITHOUT_TRAINING}", plain, deviations, asked)
    smoothed = [run.net(dataset, variant) for variant in ("certified_smoothing", "certified_none")]
    asked = [radii_of(dataset), *smoothing_settings(scale, dataset)]
    kept_rows(run, table, f"{dataset}, {SMOOTHING}", smoothed, smoothing, asked)
    return drawn or {}


def _trained(run: Run, dataset: str, variant: str, **changes: Any) -> Path | None:
    """Return the directory of a net, trained where it is not; `None` for a run that diverges."""
    try:
        return run.trained(dataset, variant, **changes)
    except DivergedError:
        return None


def _notes(run: Run) -> list[str]:
    scale = run.config.scale
    trained = [(d, label, run.net(d, variant)) for d in run.datasets for label, variant in NETS.items()]
    trained += [(d, SMOOTHING, run.net(d, "certified_smoothing")) for d in run.datasets]
    return [
        "certified: the larger of C1 (the attacker sees the draw) and C2 (does not see it), for each image",
        "noise off: the certificate of the same net without its noise; it may lie above what attacks leave with noise",
        "union bound: Theorem 1's proof for each other class, without its last step",
        "100 queries: the certificate of each image to the power 100, a lower bound",
        "l∞ radii are certified by the l2 ball around them; 0.0 says that nothing is proved",
        f"{VOTE}: the share of images whose certificate is above 1/2, so that a majority vote of all draws is "
        "right; for smoothing, its own certificate",
        f"{KNOWN}: {KNOWING[scale]} alone, which knows the draw; mean of 8 draws that all images share; at the first "
        f"radius. {PROVED}: the images that no attack can make wrong under these draws",
        f"attacks: {attacks_of(run, 'certified_isotropic')} (log_error on nets with noise alone), on "
        f"{ATTACKED_IMAGES[scale] or 'all'} test images. What lies between a certificate and the attacks is the slack "
        "of both, of the bound on each layer, and of pixels beyond [0, 1], which a certificate does not exclude",
        f"{TWIN}: the same net without its noise, by {', '.join(attacks_on_both(run))}",
        "s per 10,000: seconds to certify 10,000 images at all radii; smoothing's is extrapolated from its "
        f"{VOTED_IMAGES} images and {VOTING_DRAWS[scale]:,} draws",
        f"all images: certified on {ALL_IMAGES[scale] or 'all'} test images; each: nets that differ in their seed",
        f"{ADDS}: the certificate less that of the same net without its noise ({COLUMNS['deterministic']}), paired "
        f"over all images, a number for each seed. {VOTE_ADDS}: {VOTE} less the same. {BEYOND_BEST}: less that of the "
        f"net that is best at this radius without noise, of all nets and seeds here, chosen on these test images "
        f"({BEST}). {BEYOND_C1}: less C1, what holds for an attacker who sees the draw",
        "published: certified accuracy of nets without noise, by other authors, on all test images, trained for longer",
        "isotropic: a deviation of its own for each feature. The variance of the noise has the same bound in each "
        "direction and on all nets with noise",
        f"{WITHOUT_TRAINING}: isotropic noise on the features of {PLAIN}, {DEVIATION_IMAGES[scale] or 'all'} images",
        f"{SMOOTHING}: Cohen et al.'s certificate, {VOTING_DRAWS[scale]:,} draws, α = 0.001; clean is the vote's "
        f"accuracy; {VOTED_IMAGES} images, so ± 20 points; beside it, {SAME_IMAGES}",
        *([PRECISION] if scale == "small" else []),
        *(_described(dataset, label, net) for dataset, label, net in trained),
    ]


def _described(dataset: str, label: str, net: TrainConfig) -> str:
    """Return how a net was trained, as a note."""
    margin = f" --margin_radius={net.margin_radius:g} --temperature={net.temperature:g}" if net.margin_radius else ""
    images = f" of {net.max_train_examples:,} images" if net.max_train_examples else ""
    return f"{dataset}, {label}: --backbone={net.backbone} --defence={net.defence}{margin}, {net.epochs} epochs{images}"


def _add_attacked(run: Run, dataset: str, label: str, variant: str, table: Table) -> dict[str, Any]:
    """Train a net, attack it, and fill its rows; return its curves over l2 radii, and attacks below a bound.

    The curves of a net that diverges are empty.
    """
    if (path := _trained(run, dataset, variant)) is None:
        table.add(f"{dataset}, {label}", "clean", text="diverged")
        return NO_NET
    attacked = attacked_radii(dataset)
    radii = ",".join(radius if ":" in radius else f"l2:{radius}" for radius in attacked)
    images, attacks = ATTACKED_IMAGES[run.config.scale], attacks_of(run, variant)
    found = certified(run, path, dataset, attacks, radii, num_examples=images)
    clean = found.number("clean", what="expected_accuracy")
    points: Series = {name: [(0.0, clean["value"])] for name in CURVES}
    points["deterministic"] = [(0.0, found.number("clean", what="noise_free_accuracy")["value"])]
    violations = []
    for text in radii_of(dataset):
        row, name = row_of(found.results["certificates"]["rows"], text), f"{dataset}, {label}, {text}"
        table.add(name, "clean", clean)
        for key, column in COLUMNS.items():
            if row[key] and (key != "attacked" or text in attacked):
                table.add(name, column, row[key])
        table.add(name, "100 queries", row["n_query"]["certificate"]["100"])
        if row["violations"]:
            violations.append(f"{name}: {row['violations']} images")
        if row["norm"] == "l2":
            for key in CURVES:
                if key != "attacked" or text in attacked:  # a smaller attack counts at a larger radius too
                    points[key].append((row["radius"], row[key]["value"]))
    if variant not in DETERMINISTIC:
        violations += add_known_draws(run, path, f"{dataset}, {label}, {RADII[dataset][0]}", RADII[dataset][0], table)
        violations += add_twin(run, path, f"{dataset}, {label}", RADII[dataset], table)
    return {"curves": {key: sorted(values) for key, values in points.items()}, "violations": violations}


def _add_all_images(run: Run, dataset: str, label: str, variant: str, table: Table) -> dict[str, Any]:
    """Fill columns with the certificates of all test images, also of nets that differ in their seed alone.

    Returns:
        Where one step of an attack, at the smallest radius, is below a bound.
    """
    paths = _of_seeds(run, dataset, variant)
    if len(paths) <= len(seeds_of(run, dataset, variant)):
        table.add(f"{dataset}, {label}", "clean, all images", text="one diverged")
        return {"violations": []}
    images, radius = ALL_IMAGES[run.config.scale], f"l2:{RADII[dataset][0]}"
    found = [certified(run, path, dataset, "fgsm:norm=l2", radius, num_examples=images) for path in paths]
    certificates = [each.results["certificates"] for each in found]
    clean = by_seed([each.number("clean", what="expected_accuracy") for each in found])
    seconds = extrapolated_seconds(certificates[0], found[0].results["num_examples"])
    for text in radii_of(dataset):
        name = f"{dataset}, {label}, {text}"
        table.add(name, "s per 10,000", text=f"{seconds:.0f}")
        table.add(name, "clean, all images", text=clean)
        for key in OVER_IMAGES:
            numbers = [row_of(each["rows"], text)[key] for each in certificates]
            table.add(name, f"{COLUMNS[key]}, all images", text=by_seed(numbers))
        if anchor := ANCHORS.get((dataset, variant, text)):
            table.add(name, "published", text=anchor)
    below = [row for each in certificates for row in each["rows"] if row["violations"]]
    return {"violations": [f"{dataset}, {label}, {row['radius']:g}: {row['violations']} images" for row in below]}


def _draw(run: Run, name: str, drawn: dict[str, Series], label: str, logarithmic: bool) -> None:
    """Draw a panel for each entry: certificates and attacks over radii, or certificates over deviations."""
    if not drawn:  # every net diverged
        return
    figure, axes = panels(len(drawn), 3.4, 3.2, columns=min(len(drawn), 4))
    for axis, (title, series) in zip(axes, drawn.items(), strict=True):
        named = {COLUMNS.get(key, key): points for key, points in series.items()}
        title = title.replace(", ", "\n", 1)
        curves(axis, named, title, label, logarithmic=False, steps=(COLUMNS["attacked"],))
        if logarithmic:
            axis.set_xscale("log")
            plain_numbers(axis.xaxis)
    legend(axes[-1])
    save(figure, run.report_dir, name)
