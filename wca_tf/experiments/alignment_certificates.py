"""Forms of the alignment term on 1-Lipschitz features with the constraint: what each can prove."""

import dataclasses
from functools import partial
from typing import Any

from wca_tf.attacks.radii import parse_radii
from wca_tf.core.errors import DivergedError
from wca_tf.evaluation.measures.certificates import CERTIFICATES_ALGORITHM
from wca_tf.experiments.certificate_nets import ALL_IMAGES, RADII
from wca_tf.experiments.certificates_noise import ADDS, bounds_of, head_of
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table, in_points
from wca_tf.gaussian.certificates import shift_gain
from wca_tf.gaussian.intervals import mean_difference, mean_with_interval

VARIANT = "certified_anisotropic"  # its net is that of the experiment "certificates"
COLUMNS = {"certificate": "certified", "known_draw": "C1", "gaussian_shift": "C2", "deterministic": "noise off"}
LEAST = "least deviation"
CERTIFIED_NOTE = (
    "1-Lipschitz features: certificates in l2 of all test images, lower bounds of the accuracy under every attack. C1 "
    "holds where the attacker sees the draw, and C2 where not; certified: the larger of both for each image; noise "
    "off: of the same net without its noise; least deviation: of the noise where it covers an attack on the features "
    "least, over directions. One net each, with the constraint, and with the same alignment weight"
)


def add_certified_rows(table: Table, run: Run, dataset: str, forms: dict[str, str]) -> None:
    """Fill a row for each form of the term and radius.

    Args:
        table: gains the rows.
        run: the run.
        dataset: the data set.
        forms: values of the option `alignment` -> their names.
    """
    plain = run.net(dataset, VARIANT)
    asked = [RADII[dataset], ALL_IMAGES[run.config.scale], CERTIFICATES_ALGORITHM, LEAST]
    for form, name in forms.items():
        changes: dict[str, Any] = {} if form == "per_class" else {"defence": f"{plain.defence}:alignment={form}"}
        label = f"{dataset}, 1-Lipschitz features, {name}"
        fill = partial(_add_rows, run, dataset, changes, label)
        kept_rows(run, table, label, [dataclasses.replace(plain, **changes)], fill, asked)


def _add_rows(run: Run, dataset: str, changes: dict[str, Any], label: str, table: Table) -> None:
    """Train a net, and fill a row for each radius; one row where the net diverges."""
    try:
        path = run.trained(dataset, VARIANT, **changes)
    except DivergedError:
        table.add(label, "clean", text="diverged")
        return
    head, shape = head_of(run, path, ALL_IMAGES[run.config.scale])
    clean = mean_with_interval(head.bounds(0.0)["certificate"])
    least = 1 / shift_gain(head.weights, head.scale).max()
    for text in RADII[dataset]:
        bounds = bounds_of(head, shape, parse_radii(text)[0])
        name = f"{label}, {text}"
        table.add(name, "clean", clean)
        for key, column in COLUMNS.items():
            table.add(name, column, mean_with_interval(bounds[key]))
        table.add(name, LEAST, text=f"{least:.3g}")
        table.add(name, ADDS, text=in_points(mean_difference(bounds["certificate"] - bounds["deterministic"])))
