"""Certificates of a net: `certificates` of results.json. What no attack within a radius can do, beside the attacks.

For a net with Gaussian noise before its linear head and Lipschitz features, P(correct) is bounded from below by
`gaussian.certificates`. Without noise it is the deterministic certificate. These hold in exact arithmetic; where the
rounding of float32 has a bound, "float32" is the certificate that subtracts it. A net whose noise is on its images
alone is certified by `smoothing_votes`.
"""

import dataclasses
import time
from typing import Any

import numpy as np

from wca_tf.attacks.radii import Radius, parse_radii
from wca_tf.core.errors import InputError
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures.certified_head import Head
from wca_tf.evaluation.measures.measure import Context, Measure
from wca_tf.evaluation.measures.smoothing_votes import effort_of, smoothing_rows
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.report import figures
from wca_tf.evaluation.report.figures import Stroke
from wca_tf.evaluation.report.sections import NORM_NAMES, Panel, ReportSection
from wca_tf.evaluation.worst_case import least_probability
from wca_tf.gaussian.intervals import Number, mean_with_interval, percent
from wca_tf.nets.headed_net import KnownNet
from wca_tf.nets.judge import QUERIES, Judgement
from wca_tf.nets.targets import GaussianLogitsTarget

CERTIFICATES_ALGORITHM = 7  # increase it with every change of the numbers: stored results are made again
BOUNDS = {
    "known_draw": "C1: the attacker sees the draw",
    "gaussian_shift": "C2: the attacker does not see the draw",
    "certificate": "certificate: the larger of the two",
    "deterministic": "this net with its noise off",
    "union": "union bound over the other classes (Theorem 1 before its last step)",
}
CURVES = ("known_draw", "gaussian_shift", "deterministic", "attacked")
WITH_ROUNDING = "The part certified in float32 holds for the net as it computes: a bound on its rounding is subtracted."
WITHOUT_ROUNDING = "The rounding of float32, which has no bound for this net, is not subtracted."


class Certificates(Measure):
    """Lower bounds of P(correct) within each certified radius, and the attacks at this radius."""

    name = "certificates"
    version = CERTIFICATES_ALGORITHM

    def key(self, context: Context) -> Any:
        radii = [radius.text for radius in _radii(context)]
        if not radii:
            return None
        effort = effort_of(context) if _is_voted(context) else {}
        return {"radii": radii, **effort, "attacks": context.attacks_key()}

    def check(self, context: Context) -> None:
        if not isinstance(context.model, KnownNet):
            raise InputError(
                "expected a net to certify of --model_dir, or one that ends in a wca_tf.WCAHead; received another"
            )
        if _is_voted(context):
            if context.config.average_draws > 1:
                raise InputError("expected --average_draws=1 with --defence=smoothing: the vote is of single draws")
            return
        _ = _target_of(context)
        _ = context.model.lipschitz(), context.model.class_weights

    def measure(self, context: Context) -> Any:
        started, radii = time.monotonic(), _radii(context)
        if _is_voted(context):
            found = smoothing_rows(context, radii)
        else:
            target, step = _target_of(context), context.settings.batch_size
            furthest = max(radius.in_l2(context.examples.image_shape) for radius in radii)
            head = Head.of(target, context.model, context.examples, step, furthest)
            found = {
                "lipschitz": head.lipschitz,
                "rows": [_row(head, context, radius) for radius in radii],
            }
        found.setdefault("seconds", round(time.monotonic() - started, 2))
        return found

    def lines(self, results: dict[str, Any]) -> list[str]:
        found = results["certificates"]
        lines = ["certificates, accuracy in %", *map(_format_row, found["rows"])]
        return [*lines, f"  {_format_votes(found)}"] if "votes" in found else lines

    def section(self, results: dict[str, Any]) -> ReportSection | None:
        found = results.get("certificates")
        if not found:
            return None
        rows = [f"{line.strip()}." for line in map(_format_row, found["rows"])]
        if "votes" in found:
            about = f"Randomised smoothing: {_format_votes(found)}."
        else:
            rounded = any(row.get("float32") for row in found["rows"])
            about = (
                f"The features change by {found['lipschitz']:.4g} times the l2 distance of two images at most. So no "
                "attack within a radius lowers the accuracy of an answer below the certificate. It holds in exact "
                "arithmetic, less the numerical error of P(correct), which is subtracted (95 %). "
                f"{WITH_ROUNDING if rounded else WITHOUT_ROUNDING} C1 holds for an attacker who sees the draw of the "
                "noise, C2 for one who does not."
            )
        return ReportSection("Certificates", [about, *rows], _panels(results), f"{about} {' '.join(rows)}")


def _is_voted(context: Context) -> bool:
    """Return whether the net has its noise on its images alone: then a vote certifies it."""
    return isinstance(context.model, KnownNet) and context.model.input_deviation is not None


def _target_of(context: Context) -> GaussianLogitsTarget:
    """Return the target; raise InputError where a certificate does not know its noise."""
    target = context.target
    if not isinstance(target, GaussianLogitsTarget) or target.scale_per_image:
        raise InputError("expected noise before a linear classifier, the same for all images, to certify the net")
    return target


def _radii(context: Context) -> list[Radius]:
    """Return the radii of the record, and those that are asked for."""
    stored = context.measured.get("certificates")
    kept = [Radius(row["radius"], row["norm"]) for row in stored.value["rows"]] if stored else []
    return list(dict.fromkeys([*kept, *radii_of(context.config)]))


def radii_of(config: EvaluateConfig) -> list[Radius]:
    """Return the radii to certify; those without a norm are in l2."""
    if not config.certified_radii:
        return []
    return [Radius(radius.epsilon, radius.norm or "l2") for radius in parse_radii(config.certified_radii)]


def _row(head: Head, context: Context, radius: Radius) -> dict[str, Any]:
    """Return the numbers of a radius, each with its interval for the choice of images."""
    change = head.lipschitz * radius.in_l2(context.examples.image_shape)
    bounds, in_float32 = head.bounds(change), head.certified_in_float32(change)
    attacked = attacked_within(context.outcomes, radius)
    below = bounds["certificate"] > attacked.probability_correct + attacked.probability_error + 1e-4 if attacked else []
    return {
        "norm": radius.norm,
        "radius": radius.epsilon,
        **{name: mean_with_interval(values) for name, values in bounds.items()},
        "float32": None if in_float32 is None else mean_with_interval(in_float32),
        "n_query": {name: {str(n): mean_with_interval(p**n) for n in QUERIES} for name, p in bounds.items()},
        "majority": mean_with_interval(bounds["certificate"] > 0.5),
        "attacked": attacked.n_query_accuracy(1) if attacked else None,
        "violations": int(np.sum(below)),
    }


def row_of(rows: list[dict[str, Any]], radius: str) -> dict[str, Any]:
    """Return the row of a radius as written, from `certificates` of results.json."""
    [parsed] = parse_radii(radius)
    [found] = [row for row in rows if (row["norm"], row["radius"]) == (parsed.norm or "l2", parsed.epsilon)]
    return found


def attacked_within(outcomes: list[Outcome], radius: Radius) -> Judgement | None:
    """Return the judgement of each image in the worst case over the clean image and all that attacks made of it.

    Attacks at other radii, and those that search for the nearest error, count where their image is within the radius of
    the clean one. The result is `None` where no attack changed an image within the radius.
    """
    clean, *attacked = outcomes
    judged = [clean.judgement]
    for outcome in attacked:
        distance = outcome.l2 if radius.norm == "l2" else outcome.linf
        within = distance <= radius.epsilon
        if outcome.radius == radius:
            within = np.ones(len(distance), bool)  # distances have rounding
        if (within & (distance > 0)).any():
            judged.append(_where(within, outcome.judgement, clean.judgement))
    return least_probability(judged) if len(judged) > 1 else None


def _where(chosen: np.ndarray, one: Judgement, other: Judgement) -> Judgement:
    """Return `one` on the images `chosen` [N], and `other` elsewhere."""
    fields = {}
    for field in dataclasses.fields(Judgement):
        values = getattr(one, field.name)
        fields[field.name] = np.where(chosen.reshape(-1, *[1] * (values.ndim - 1)), values, getattr(other, field.name))
    return Judgement(**fields)


def _format_row(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    at = f"{NORM_NAMES[row['norm']]} radius {row['radius']:.4g}"
    if "vote" in row:
        return f"  {at}: {percent(row['vote'])} certified by the vote; abstained on {percent(row['abstained'])}"
    # A net whose rounding has a bound has no noise; records of version 5 have no "float32".
    beside = {"float32": "certified in float32"} if row.get("float32") else {"deterministic": "without noise"}
    names = {"certificate": "certified", **beside, "attacked": "left by the attacks"}
    numbers = ", ".join(f"{percent(row[key])} {name}" if row[key] else "not attacked" for key, name in names.items())
    nothing = "; nothing is proved at this radius" if not row["certificate"]["value"] else ""
    wrong = f"; {row['violations']} images are BELOW their certificate: the Lipschitz constant is wrong"
    return f"  {at}: {numbers}{nothing}{wrong if row['violations'] else ''}"


def _format_votes(found: dict[str, Any]) -> str:
    """Return how the vote was certified, as a text."""
    votes = found["votes"]
    return (
        f"a majority vote over the noise on the images, right on {percent(votes['accuracy'])} of the first "
        f"{votes['images']} images, certified by {votes['draws']:,} draws each; a certified radius is wrong with a "
        f"chance of {votes['alpha']:g} at most; {found['seconds']:.0f} s, so {extrapolated_seconds(found):,.0f} s for "
        "10,000 images (extrapolated)"
    )


def extrapolated_seconds(found: dict[str, Any], images: int = 0) -> float:
    """Return the seconds to certify 10,000 images, from `certificates` of results.json; `images` were certified."""
    return float(10_000 * found["seconds"] / (found["votes"]["images"] if "votes" in found else images))


def _panels(results: dict[str, Any]) -> list[Panel]:
    """Return a figure for each norm: the certificates and the attacks against the radius."""
    rows = [row for row in results["certificates"]["rows"] if "certificate" in row]
    panels = []
    for norm in dict.fromkeys(row["norm"] for row in rows):
        of_norm = sorted((row for row in rows if row["norm"] == norm), key=lambda row: float(row["radius"]))
        names = {name: BOUNDS.get(name, "left by the attacks") for name in CURVES}
        strokes = figures.strokes_for(list(names.values())) | {names["attacked"]: figures.WORST_CASE}
        series: list[tuple[list[float], list[Number], Stroke]] = []
        for name, title in names.items():
            clean = results["clean"]["noise_free_accuracy" if name == "deterministic" else "expected_accuracy"]
            points = [(0.0, clean), *((row["radius"], row[name]) for row in of_norm if row["radius"] and row[name])]
            series.append(([x for x, _ in points], [y for _, y in points], strokes[title]))
        label = f"radius ({NORM_NAMES[norm]}, images in [0, 1])"
        panels.append(Panel("", figures.accuracy_curves(series, label), list(strokes.items())))
    return panels
