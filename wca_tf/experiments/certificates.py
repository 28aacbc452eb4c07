"""Certificates of nets with 1-Lipschitz features beside attacks in l2: what noise adds to what can be proved."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from wca_tf.attacks import BallAttack, parse_attack
from wca_tf.attacks.radii import parse_radii
from wca_tf.core.errors import DivergedError, InputError
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures.certificates import CURVES, extrapolated_seconds, row_of
from wca_tf.evaluation.measures.fixed_draws import attack_fixed_draws
from wca_tf.evaluation.measures.smoothing_votes import VOTED_IMAGES
from wca_tf.evaluation.runner import load_evaluation_examples
from wca_tf.evaluation.trials import Settings
from wca_tf.experiments.certificate_nets import (
    ALL_IMAGES,
    ANCHORS,
    ATTACKED_IMAGES,
    KNOWING,
    QUIET,
    RADII,
    attacked_radii,
    attacks_of,
    certified,
    nets_of,
    radii_of,
    seeds_of,
)
from wca_tf.experiments.certificates_noise import (
    ADDS,
    BEST,
    BEYOND_BEST,
    BEYOND_C1,
    DEVIATION_IMAGES,
    DEVIATIONS,
    SAME_IMAGES,
    SMOOTHING,
    VOTING_DRAWS,
    WITHOUT_TRAINING,
    add_deviations,
    add_gains,
    add_smoothing,
    smoothing_settings,
)
from wca_tf.experiments.charts import Series, curves, legend, panels, save
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table, by_seed
from wca_tf.nets.targets import has_noise
from wca_tf.runs.model_dir import ModelDirectory

COLUMNS = {
    "certificate": "certified",
    "known_draw": "C1",
    "gaussian_shift": "C2",
    "deterministic": "noise off",
    "union": "union bound",
    "majority": "vote certified",
    "attacked": "left by attacks",
}
KNOWN = "left, draw known"
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
        for label, variant in nets_of(dataset).items():
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
    found = kept_rows(run, table, name, [net], fill, [*asked, KNOWING[run.config.scale]])
    if not found["curves"]:  # it diverged
        return {"curves": {}, "violations": []}
    fill = partial(_add_all_images, run, dataset, label, variant)
    seeds = [dataclasses.replace(net, seed=seed) for seed in seeds_of(run, dataset, variant)]
    kept = kept_rows(run, table, f"{name}, all images", [net, *seeds], fill, [radii_of(dataset)])
    return {"curves": found["curves"], "violations": found["violations"] + kept["violations"]}


def _beside(run: Run, table: Table, dataset: str) -> dict[str, Series]:
    """Fill the rows that compare nets of a data set, and smoothing's; return the curves over deviations."""
    scale, nets = run.config.scale, nets_of(dataset)

    def gains(part: Table) -> None:
        paths = {variant: path for variant in nets.values() if (path := _trained(run, dataset, variant))}
        add_gains(run, dataset, paths, part)

    def deviations(part: Table) -> Any:
        path = _trained(run, dataset, nets[QUIET])
        return add_deviations(run, dataset, path, part) if path else {}

    def smoothing(part: Table) -> None:
        add_smoothing(run, dataset, _trained(run, dataset, "certified_none"), part)

    everything = [run.net(dataset, variant) for variant in nets.values()]
    asked: list[Any] = [radii_of(dataset), ALL_IMAGES[scale]]
    kept_rows(run, table, f"{dataset}, what noise adds", everything, gains, asked)
    quiet, asked = [run.net(dataset, nets[QUIET])], [RADII[dataset], DEVIATIONS[scale], DEVIATION_IMAGES[scale]]
    drawn: dict[str, Series] = kept_rows(run, table, f"{dataset}, {WITHOUT_TRAINING}", quiet, deviations, asked)
    smoothed = [run.net(dataset, variant) for variant in ("certified_smoothing", "certified_none")]
    asked = [radii_of(dataset), *smoothing_settings(scale, dataset)]
    kept_rows(run, table, f"{dataset}, {SMOOTHING}", smoothed, smoothing, asked)
    return drawn


def _trained(run: Run, dataset: str, variant: str, **changes: Any) -> Path | None:
    """Return the directory of a net, trained where it is not; `None` for a run that diverges."""
    try:
        return run.trained(dataset, variant, **changes)
    except DivergedError:
        return None


def _notes(run: Run) -> list[str]:
    scale = run.config.scale
    trained = [(d, label, run.net(d, variant)) for d in run.datasets for label, variant in nets_of(d).items()]
    smoothed = [(d, SMOOTHING, "certified_smoothing") for d in run.datasets]
    of_nets = {d: [*nets_of(d).items(), (SMOOTHING, "certified_smoothing")] for d in run.datasets}
    return [
        "certified: the larger of C1 (the attacker sees the draw) and C2 (does not see it), for each image",
        "noise off: the certificate of the same net without its noise; it may lie above what attacks leave with noise",
        "union bound: Theorem 1's proof for each rival, without its last step",
        "100 queries: the certificate of each image to the power 100, a lower bound",
        "l∞ radii are certified by the l2 ball around them; 0.0 says that nothing is proved",
        "vote certified: the share of images whose certificate is above 1/2, so that a majority vote of all draws is "
        "right; for smoothing, its own certificate",
        f"{KNOWN}: {KNOWING[scale]} alone, which knows the draw; mean of 8 draws; at the first radius",
        f"attacks: {attacks_of(run, 'certified_quiet')} (log_error on nets with noise alone), on "
        f"{ATTACKED_IMAGES[scale] or 'all'} test images. What lies between a certificate and the attacks is the slack "
        "of both, of the bound on each layer, and of pixels beyond [0, 1], which a certificate does not exclude",
        "s per 10,000: seconds to certify 10,000 images at all radii; smoothing's is extrapolated from its 20 images",
        f"all images: certified on {ALL_IMAGES[scale] or 'all'} test images; each: nets that differ in their seed",
        f"{ADDS}: the certificate less that of the same net without its noise ({COLUMNS['deterministic']}), paired "
        f"over all images, one training each. {BEYOND_BEST}: less that of the net that is best at this radius without "
        f"noise, of all nets here ({BEST}). {BEYOND_C1}: less C1, what holds for an attacker who sees the draw",
        "published: certified accuracy of nets without noise, by other authors, on all test images",
        "isotropic: a deviation of its own for each feature. All nets with noise are bounded alike, in each direction; "
        f"{QUIET}: by the least variance that the option allows",
        f"{WITHOUT_TRAINING}: isotropic noise on the features of {QUIET}, {DEVIATION_IMAGES[scale] or 'all'} images",
        f"{SMOOTHING}: Cohen et al.'s certificate, {VOTING_DRAWS[scale]:,} draws, α = 0.001; clean is the vote's "
        f"accuracy; {VOTED_IMAGES} images, so ± 20 points; beside it, {SAME_IMAGES}",
        *(f"{d}, {label}: --defence={net.defence} --margin_radius={net.margin_radius:g}" for d, label, net in trained),
        *(f"{d}, {label}: --backbone={run.net(d, variant).backbone}" for d, label, variant in smoothed),
        *dict.fromkeys(
            note for d in run.datasets for note in run.notes(d, of_nets[d], [], num_examples=ATTACKED_IMAGES[scale])
        ),
    ]


def _add_attacked(run: Run, dataset: str, label: str, variant: str, table: Table) -> dict[str, Any]:
    """Train a net, attack it, and fill its rows; return its curves over l2 radii, and attacks below a bound.

    The curves of a net that diverges are empty.
    """
    if (path := _trained(run, dataset, variant)) is None:
        table.add(f"{dataset}, {label}", "clean", text="diverged")
        return {"curves": {}, "violations": []}
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
    _add_known_draws(run, path, f"{dataset}, {label}, {RADII[dataset][0]}", RADII[dataset][0], table)
    return {"curves": {key: sorted(values) for key, values in points.items()}, "violations": violations}


def _add_known_draws(run: Run, path: Path, name: str, radius: str, table: Table) -> None:
    """Fill the column of an attack that knows the draw, on a net with noise."""
    directory, attack = ModelDirectory(path), parse_attack(KNOWING[run.config.scale])
    asked: dict[str, Any] = {"num_examples": ATTACKED_IMAGES[run.config.scale], "batch_size": run.budget.batch_size}
    config = EvaluateConfig(tfds_data_dir=run.config.tfds_data_dir, **asked)
    target = directory.load_best().target()
    if not has_noise(target) or not isinstance(attack, BallAttack):
        return
    examples, records = load_evaluation_examples(config, directory.train_config()), path / "evaluations" / "known_l2"
    epsilon = parse_radii(radius)[0].epsilon
    known = attack_fixed_draws(target, attack, epsilon, examples, Settings(config.seed), records)
    run.times.attacks[records, KNOWING[run.config.scale], epsilon] = sum(outcome.seconds for outcome in known)
    left = np.mean([outcome.judgement.probability_correct.mean() for outcome in known])
    table.add(name, KNOWN, text=f"{100 * left:.1f}")


def _add_all_images(run: Run, dataset: str, label: str, variant: str, table: Table) -> dict[str, Any]:
    """Fill columns with the certificates of all test images, also of nets that differ in their seed alone.

    Returns:
        Where one step of an attack, at the smallest radius, is below a bound.
    """
    changes = [{}, *({"seed": seed} for seed in seeds_of(run, dataset, variant))]
    paths = [path for each in changes if (path := _trained(run, dataset, variant, **each))]
    if len(paths) < len(changes):
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
        curves(axis, named, title.replace(", ", "\n", 1), label, logarithmic=False)
        if logarithmic:
            axis.set_xscale("log")
    legend(axes[-1])
    save(figure, run.report_dir, name)
