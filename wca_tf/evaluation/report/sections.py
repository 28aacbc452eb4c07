"""What each section of the report shows: numbers from results.json, figures from the outcomes of each image."""

import dataclasses
from typing import Any

import numpy as np
from markupsafe import Markup

from wca_tf.data.examples import Examples
from wca_tf.evaluation.accuracy import Number
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.report import figures
from wca_tf.evaluation.report.commands import epsilon_text
from wca_tf.evaluation.report.figures import Stroke

MOST_QUERIES = 1000
Legend = list[tuple[str, Stroke]]


@dataclasses.dataclass(frozen=True)
class Panel:
    """A figure, what it is called, and the series in it."""

    title: str
    svg: Markup
    legend: Legend = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class NetSection:
    """What a net tells of itself in the report of its evaluation.

    Attributes:
        title: of the section.
        paragraphs: of text.
        panels: figures.
        card: a paragraph for the model card.
    """

    title: str
    paragraphs: list[str]
    panels: list[Panel]
    card: str


def blocks(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Per epsilon: the attacks at it, the strongest of the paper's by its own measure, and the worst case."""
    found = []
    for worst in results["worst_case"]:
        attacks = [attack for attack in results["attacks"] if attack["epsilon"] == worst["epsilon"]]
        paper = [attack for attack in attacks if attack["config"]["kind"] == "paper"]
        found.append(
            {
                "epsilon": epsilon_text(worst["epsilon"]),
                "attacks": attacks,
                "paper": min(paper, key=lambda attack: attack["accuracy"]["value"], default=None),
                "worst": worst["expected_accuracy"],
            }
        )
    return found


def accuracy(results: dict[str, Any]) -> Panel | None:
    """Expected accuracy against epsilon; None when no attack has a radius."""
    attacks = [attack for attack in results["attacks"] if attack["epsilon"] is not None]
    if not attacks:
        return None
    strokes = figures.strokes_for([attack["name"] for attack in attacks])
    norms = {attack["config"].get("norm", "") for attack in attacks}
    norm = {"linf": "l∞, ", "l2": "l2, "}.get(norms.pop(), "") if len(norms) == 1 else ""
    numbers = {name: [a for a in attacks if a["name"] == name] for name in strokes} | {
        "worst case": results["worst_case"]
    }
    legend = [*strokes.items(), ("worst case", figures.WORST_CASE)]
    series = [(*_from_clean(numbers[name], results["clean"]), stroke) for name, stroke in legend]
    return Panel("", figures.accuracy_curves(series, f"ε ({norm}images in [0, 1])"), legend)


def _from_clean(found: list[dict[str, Any]], clean: dict[str, Any]) -> tuple[list[float], list[Number]]:
    """(epsilons, expected accuracies) in order, from the clean images at 0 on."""
    at = {0.0: clean["expected_accuracy"]} | {each["epsilon"]: each["expected_accuracy"] for each in found}
    return sorted(at), [at[epsilon] for epsilon in sorted(at)]


def distortions(outcomes: list[Outcome]) -> list[Panel]:
    """Histograms of l2 and l∞ distances: per epsilon, then per kind of attack without a radius."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes[1:]:
        free = outcome.epsilon is None
        title = outcome.name.split(":")[0] if free else f"ε = {epsilon_text(outcome.epsilon or 0.0)}"
        groups.setdefault(title, []).append(outcome)
    strokes = figures.strokes_for([o.name for o in outcomes[1:] if o.epsilon is not None])
    panels = []
    for title, group in groups.items():
        of_group = strokes if group[0].epsilon is not None else figures.strokes_for([o.name for o in group])
        legend = [(_counted(outcome), of_group[outcome.name]) for outcome in group]
        for norm, label in (("l2", "l2 distance"), ("linf", "l∞ distance")):
            series = [(_distances(outcome, norm), of_group[outcome.name]) for outcome in group]
            panels.append(Panel(f"{title}, {label}", figures.histogram(series, label), legend))
    return panels


def _distances(outcome: Outcome, norm: str) -> np.ndarray:
    """The distances of images that were changed."""
    return getattr(outcome, norm)[outcome.linf > 0]


def _counted(outcome: Outcome) -> str:
    changed = int((outcome.linf > 0).sum())
    return outcome.name if changed == len(outcome) else f"{outcome.name} ({changed} of {len(outcome)} changed)"


def queries(outcomes: list[Outcome]) -> Panel:
    """Mean of P(correct)ⁿ against n: clean images, and the strongest attack at each epsilon."""
    legend: Legend = [("clean", figures.WORST_CASE)]
    chosen = [outcomes[0]]
    radii = list(dict.fromkeys(o.epsilon for o in outcomes[1:] if o.epsilon is not None))
    for epsilon, colour in zip(radii, figures.strokes_for([str(radius) for radius in radii]).values(), strict=True):
        chosen.append(_strongest([o for o in outcomes[1:] if o.epsilon == epsilon]))
        legend.append((f"{chosen[-1].name} at ε = {epsilon_text(epsilon)}", colour))
    series = []
    for outcome, (_, stroke) in zip(chosen, legend, strict=True):
        most = min(outcome.judgement.draws or MOST_QUERIES, MOST_QUERIES)
        counts = np.unique(np.round(np.geomspace(1, most, 61)).astype(int))
        series.append((counts, np.stack([outcome.judgement.n_query_probability(int(n)) for n in counts]), stroke))
    return Panel("", figures.n_query_curves(series), legend)


def _strongest(outcomes: list[Outcome]) -> Outcome:
    return min(outcomes, key=lambda outcome: outcome.judgement.probability_correct.mean())


def galleries(outcomes: list[Outcome], examples: Examples) -> list[dict[str, Any]]:
    """Images under the strongest attack at the largest epsilon, and under the strongest without a radius."""
    radii = [o.epsilon for o in outcomes[1:] if o.epsilon is not None]
    groups = [[o for o in outcomes[1:] if o.epsilon == max(radii)] if radii else []]
    groups.append([o for o in outcomes[1:] if o.epsilon is None])
    return [_gallery(outcomes[0], _strongest(group), examples) for group in groups if group]


def _gallery(clean: Outcome, outcome: Outcome, examples: Examples) -> dict[str, Any]:
    before = clean.images
    change = outcome.images - before
    largest = float(np.abs(change).max())
    times = 0.5 / largest if largest else 1.0
    return {
        "attack": outcome.name,
        "epsilon": None if outcome.epsilon is None else epsilon_text(outcome.epsilon),
        "times": f"{times:.2g}",
        "images": [
            {
                "label": examples.class_names[int(examples.labels[i])],
                "clean": figures.picture(before[i]),
                "adversarial": figures.picture(outcome.images[i]),
                "change": figures.picture(0.5 + times * change[i]),
                "before": float(clean.judgement.probability_correct[i]),
                "after": float(outcome.judgement.probability_correct[i]),
            }
            for i in range(len(before))
        ],
    }
