"""The contents of the report's sections: numbers from results.json, figures from the outcomes of each image."""

import dataclasses
from typing import Any

import numpy as np
from markupsafe import Markup

from wca_tf.attacks.radii import Radius
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.report import figures
from wca_tf.evaluation.report.figures import Stroke
from wca_tf.gaussian.intervals import FEW_PARTS, Number, percent

MAX_QUERIES = 1000
NORM_NAMES = {"linf": "l∞", "l2": "l2"}
UPPER_BOUND = "≤: an upper bound. More draws would choose better attacks for some images."
ONE_STEP = (
    "fgsm leaves less than pgd: the paper's ten steps of a tenth of epsilon, begun at random, end short of the corner "
    "that one step reaches. Quote adaptive."
)
# Defences whose nets are the paper's.
PAPERS = ("none", "wca")
# The largest share of images without a useful gradient that does not stand beside the headline.
FEW_USELESS = 0.05
INSTEAD = {  # by whether the attack follows cross-entropy; a net that passes no gradient stops other attacks alone
    True: "use adaptive, or objective=ce_exact if large logits are the cause",
    False: "use square, which needs no gradient",
}
Legend = list[tuple[str, Stroke]]


@dataclasses.dataclass(frozen=True)
class Panel:
    """A figure, its title, and the legend of its series."""

    title: str
    svg: Markup
    legend: Legend = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class ReportSection:
    """A section of the report, by a net about itself or by a measure about its numbers.

    Attributes:
        title: the section's title.
        paragraphs: the section's text.
        panels: the section's figures.
        card: a paragraph for the model card; empty for no paragraph.
    """

    title: str
    paragraphs: list[str]
    panels: list[Panel] = dataclasses.field(default_factory=list)
    card: str = ""


def is_papers(results: dict[str, Any]) -> bool:
    """Return whether a net is one of the paper's, for which its attacks and its protocol have a name."""
    training = results["training"]
    return training is not None and training["defence"].split(":")[0] in PAPERS


def blocks(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return for each radius its attacks, the protocol of the paper, the worst case, and that without the noise.

    The protocol is the accuracy under one draw. Of the paper's attacks it is the strongest, by this measure.
    """
    found, several = [], len({worst["norm"] for worst in results["worst_case"]}) > 1
    noise_off = {radius_of(row): row for row in results.get("noise_off", {}).get("radii", [])}
    for worst in results["worst_case"]:
        attacks = [attack for attack in results["attacks"] if radius_of(attack) == radius_of(worst)]
        paper = [attack for attack in attacks if attack["config"]["kind"] == "paper"]
        found.append(
            {
                "epsilon": Radius(worst["epsilon"]).text + (f" ({NORM_NAMES[worst['norm']]})" if several else ""),
                "attacks": attacks,
                "protocol": min(paper, key=lambda attack: attack["accuracy"]["value"], default=None),
                "worst": worst["expected_accuracy"],
                "queries": worst["n_query_accuracy"],
                "noise_off": noise_off.get(radius_of(worst)),
            }
        )
    return found


def convention_rows(results: dict[str, Any]) -> list[list[str]]:
    """Return a table of the conventions at each radius; a cell is empty where the radius does not allow the convention.

    It is empty where there are no conventions.
    """
    at = results.get("conventions", [])
    rows = {"": ["convention", *(f"ε = {Radius(radius['epsilon']).text}" for radius in at)]}
    for place, radius in enumerate(at, start=1):
        for row in radius["rows"]:
            label = Markup("{} <small>{}: {}</small>").format(row["name"], row["source"], row["definition"])
            rows.setdefault(row["key"], [label, *[""] * len(at)])[place] = Number.of(row["number"]).with_interval()
    return list(rows.values()) if at else []


def gradient_warnings(results: dict[str, Any]) -> list[str]:
    """Return lines that name the attacks without a useful gradient on many images, and what to use instead."""
    shares = {row["name"]: row.get("no_useful_gradient_share") or 0.0 for row in results["attacks"]}
    follows_ce = {row["name"]: row["config"].get("objective") == "ce" for row in results["attacks"]}
    found = []
    for kind, instead in INSTEAD.items():
        stuck = [name for name, share in shares.items() if share > FEW_USELESS and follows_ce[name] == kind]
        names = ", ".join(f"{name} on {percent(shares[name])} %" for name in stuck)
        if names:
            found.append(
                f"No useful gradient: {names} of the images. Such an attack may leave far too much: {instead}."
            )
    return found


def notes(results: dict[str, Any]) -> list[str]:
    """Return a line for each thing that the numbers of this evaluation leave out."""
    worst = [number for row in results["worst_case"] for number in row["n_query_accuracy"].values()]
    bounds = any("upper_bound" in number for number in worst)
    parts = [row["parts"] for row in results["attacks"] if row.get("parts")]
    found = [UPPER_BOUND] if bounds else []
    if parts and min(parts) < FEW_PARTS:
        found.append(
            f"The images were attacked in {min(parts)} part{'s' * (min(parts) != 1)} that share draws, fewer than "
            f"{FEW_PARTS}: intervals leave out some of the luck of these draws."
        )
    if raised := (results.get("net") or {}).get("raised_probabilities"):
        found.append(
            f"The net answered with a probability of 0 {raised:,} times. Its logarithm is that of the smallest normal "
            "float, and has no gradient: give a model that returns logits."
        )
    if _one_step_beats_ten(results["attacks"]):
        found.append(ONE_STEP)
    return found


def convention_lines(results: dict[str, Any]) -> list[str]:
    """Return a line for each radius with what others would count, in %."""
    lines = []
    for at in results.get("conventions", []):
        numbers = ", ".join(f"{row['name']} {percent(row['number'])}" for row in at["rows"])
        lines.append(f"other conventions at {Radius(at['epsilon'], at['norm']).text}: {numbers}")
    return lines


def _one_step_beats_ten(attacks: list[dict[str, Any]]) -> bool:
    """Return whether FGSM leaves less than PGD at a radius, both as the paper has them."""
    left = {(row["name"], *radius_of(row)): row["expected_accuracy"]["value"] for row in attacks}
    return any(left[key] < left.get(("pgd", *key[1:]), 0.0) for key in left if key[0] == "fgsm")


def radius_of(row: dict[str, Any]) -> tuple[str | None, float | None]:
    """Return (norm, epsilon) of a row of results.json."""
    return row["norm"], row["epsilon"]


def accuracy(results: dict[str, Any]) -> list[Panel]:
    """Return a figure for each norm: what each attack leaves, against epsilon where there are several radii."""
    panels = []
    for norm in dict.fromkeys(worst["norm"] for worst in results["worst_case"]):
        attacks = [each for each in results["attacks"] if each["norm"] == norm and each["epsilon"] is not None]
        worst = [each for each in results["worst_case"] if each["norm"] == norm]
        if len(worst) == 1:
            rows = [("clean", results["clean"]), *((attack["name"], attack) for attack in attacks)]
            left = {name: numbers["expected_accuracy"] for name, numbers in (*rows, ("worst case", worst[0]))}
            panels.append(Panel(f"ε = {Radius(worst[0]['epsilon']).text} ({NORM_NAMES[norm]})", figures.left_by(left)))
            continue
        strokes = figures.strokes_for([attack["name"] for attack in attacks])
        numbers = {name: [a for a in attacks if a["name"] == name] for name in strokes} | {"worst case": worst}
        legend = [*strokes.items(), ("worst case", figures.WORST_CASE)]
        series = [(*_from_clean(numbers[name], results["clean"]), stroke) for name, stroke in legend]
        label = f"ε ({NORM_NAMES[norm]}, images in [0, 1])"
        panels.append(Panel("", figures.accuracy_curves(series, label), legend))
    return panels


def _from_clean(found: list[dict[str, Any]], clean: dict[str, Any]) -> tuple[list[float], list[Number]]:
    """Return (epsilons, expected accuracies) in order of epsilon; the clean images are at 0."""
    at = {0.0: clean["expected_accuracy"]} | {each["epsilon"]: each["expected_accuracy"] for each in found}
    return sorted(at), [at[epsilon] for epsilon in sorted(at)]


def distortions(outcomes: list[Outcome]) -> list[Panel]:
    """Return histograms of l2 and l∞ distances: for each radius, then for each kind of attack without a radius."""
    groups: dict[str, list[Outcome]] = {}
    several = len({outcome.radius.norm for outcome in outcomes[1:] if outcome.radius}) > 1
    for outcome in outcomes[1:]:
        title = _radius_text(outcome.radius, several) if outcome.radius else outcome.name.split(":")[0]
        groups.setdefault(title, []).append(outcome)
    strokes = figures.strokes_for([o.name for o in outcomes[1:] if o.radius])
    panels = []
    for title, group in groups.items():
        of_group = strokes if group[0].radius else figures.strokes_for([o.name for o in group])
        legend = [(_counted(outcome), of_group[outcome.name]) for outcome in group]
        for norm, label in (("l2", "l2 distance"), ("linf", "l∞ distance")):
            series = [(_distances(outcome, norm), of_group[outcome.name]) for outcome in group]
            panels.append(Panel(f"{title}, {label}", figures.histogram(series, label), legend))
    return panels


def _radius_text(radius: Radius, with_norm: bool) -> str:
    norm = f" ({NORM_NAMES[radius.norm]})" if with_norm and radius.norm else ""
    return f"ε = {Radius(radius.epsilon).text}{norm}"


def _distances(outcome: Outcome, norm: str) -> np.ndarray:
    """Return the distances of the images that were changed."""
    return getattr(outcome, norm)[outcome.linf > 0]


def _counted(outcome: Outcome) -> str:
    changed = int((outcome.linf > 0).sum())
    return outcome.name if changed == len(outcome) else f"{outcome.name} ({changed} of {len(outcome)} changed)"


def queries(outcomes: list[Outcome]) -> Panel:
    """Return a figure of the mean of P(correct)ⁿ against n: clean images, and the strongest attack at each radius."""
    legend: Legend = [("clean", figures.WORST_CASE)]
    chosen = [outcomes[0]]
    radii = dict.fromkeys(outcome.radius for outcome in outcomes[1:] if outcome.radius)
    several = len({radius.norm for radius in radii}) > 1
    for radius, colour in zip(radii, figures.strokes_for(list(map(str, radii))).values(), strict=True):
        chosen.append(_strongest([outcome for outcome in outcomes[1:] if outcome.radius == radius]))
        legend.append((f"{chosen[-1].name} at {_radius_text(radius, several)}", colour))
    series = []
    for outcome, (_, stroke) in zip(chosen, legend, strict=True):
        most = min(outcome.judgement.draws or MAX_QUERIES, MAX_QUERIES)
        counts = np.unique(np.round(np.geomspace(1, most, 61)).astype(int))
        series.append((counts, outcome.judgement.n_query_probabilities(counts), stroke))
    return Panel("", figures.n_query_curves(series), legend)


def _strongest(outcomes: list[Outcome]) -> Outcome:
    return min(outcomes, key=lambda outcome: outcome.judgement.probability_correct.mean())


def galleries(outcomes: list[Outcome], class_names: list[str]) -> list[dict[str, Any]]:
    """Return images under the strongest attack at the largest radius of each norm, those first that it flips.

    Add images under the strongest attack without a radius.
    """
    clean, groups = outcomes[0].judgement.probability_correct, []
    radii = dict.fromkeys(outcome.radius for outcome in outcomes[1:] if outcome.radius)
    for norm in dict.fromkeys(radius.norm for radius in radii):
        largest = max((radius for radius in radii if radius.norm == norm), key=lambda radius: radius.epsilon)
        groups.append([outcome for outcome in outcomes[1:] if outcome.radius == largest])
    groups.append([outcome for outcome in outcomes[1:] if not outcome.radius])
    return [_gallery(clean, _strongest(group), class_names) for group in groups if group]


def _gallery(clean: np.ndarray, outcome: Outcome, class_names: list[str]) -> dict[str, Any]:
    before, after = (images.astype(np.float32) for images in (outcome.originals, outcome.images))
    change, probability = after - before, outcome.judgement.probability_correct
    largest = float(np.abs(change).max()) if change.size else 0.0
    times = 0.5 / largest if largest else 1.0
    return {
        "attack": outcome.name,
        "epsilon": outcome.radius and Radius(outcome.radius.epsilon).text,
        "times": f"{times:.2g}",
        "flips": int(outcome.flips.sum()),
        "images": [
            {
                "label": class_names[int(outcome.labels[place])],
                "clean": figures.picture(before[i]),
                "adversarial": figures.picture(after[i]),
                "change": figures.picture(0.5 + times * change[i]),
                "before": float(clean[place]),
                "after": float(probability[place]),
            }
            for i, place in enumerate(outcome.shown)
        ],
    }
