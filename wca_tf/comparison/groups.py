"""Evaluations as groups of nets that can be compared: the same images, the same radius, the same attacks."""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wca_tf.attacks.radii import Radius
from wca_tf.core.errors import InputError, one_line
from wca_tf.evaluation.record import Evaluation
from wca_tf.evaluation.report.sections import NORM_NAMES, UPPER_BOUND
from wca_tf.gaussian.intervals import Number
from wca_tf.nets.judge import Judgement

# The paper's protocol: PGD whose gradient averages over draws, judged by one draw for each image.
PROTOCOL = "pgd"
# The attack of the authors of each defence, `Defence.protocol`: it differs from net to net.
AUTHORS_OWN = "the authors' own attack"
QUERIES = 100
ALONE = "no other net beside it: the other evaluations have other images, or another radius"


@dataclasses.dataclass(frozen=True)
class Row:
    """The numbers of a net at a radius, each with its 95 % interval.

    Attributes:
        net: the name of the net in the comparison.
        report: the directory or the file of its evaluation.
        clean: the expected accuracy on clean images.
        one_draw: the accuracy by one draw of the noise, under each attack that all nets met, by name; under
            `AUTHORS_OWN` that of the authors of this net's defence, where it was run.
        worst_case: the expected accuracy in the worst case over the attacks that all nets met.
        gain: the worst case less that of the first net of the group, in pairs of the same image; `None` for the first
            net.
        queries: the mean of P(correct)ⁿ in the worst case, n = 100.
        expected: the expected accuracy under the same attacks, by name.
        own: the name of the authors' attack, where it was run.
    """

    net: str
    report: Path
    clean: Number
    one_draw: dict[str, Number]
    worst_case: Number
    gain: Number | None
    queries: Number
    expected: dict[str, Number]
    own: str = ""

    @property
    def protocol(self) -> Number | None:
        """The accuracy by the paper's protocol; `None` where some net was not attacked so."""
        return self.one_draw.get(PROTOCOL)

    @property
    def overstated(self) -> float | None:
        """By how much the protocol's expected accuracy is above the worst case; `None` without the protocol."""
        return self.overstated_by(PROTOCOL)

    def overstated_by(self, protocol: str) -> float | None:
        """Return by how much an attack's expected accuracy is above the worst case; `None` without the attack.

        One draw may be lucky or not, and would hide what the attack overstates.
        """
        number = self.expected.get(protocol)
        return None if number is None else number["value"] - self.worst_case["value"]


@dataclasses.dataclass(frozen=True)
class Group:
    """Nets that met the same attacks on the same images at the same radius.

    Attributes:
        data: the data set, its split and the number of images.
        radius: the radius.
        rows: a row for each net, in the order given.
        notes: the attacks that are left out, because some net did not meet them; what else differs.
    """

    data: str
    radius: Radius
    rows: list[Row]
    notes: list[str]

    @property
    def radius_text(self) -> str:
        """The radius as text, such as "8/255", with the norm if it is not l∞."""
        norm = self.radius.norm or "linf"
        return Radius(self.radius.epsilon).text + ("" if norm == "linf" else f" ({NORM_NAMES[norm]})")


def read_evaluation(path: Path) -> Evaluation:
    """Read a report directory, or a file of `Evaluation.save`.

    Raises:
        InputError: it is absent, broken, unfinished or of another version.
    """
    evaluation = Evaluation.read(path)
    try:
        name = _name(evaluation)
        for radius in evaluation.radii:  # makes every number once, so that broken contents are found here
            attacks = list(_attacks_at(evaluation, radius).values())
            _row(name, evaluation, attacks, _worst_case(evaluation, radius, attacks))
    except Exception as error:  # broken contents raise anything
        raise InputError(f"expected a whole evaluation in {path}, which cannot be read: {one_line(error)}") from None
    return evaluation


def merge_shards(evaluations: list[Evaluation]) -> list[Evaluation]:
    """Return the evaluations, with all parts of an evaluation as one, in the place of the first of them."""
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        groups.setdefault(_whole(evaluation), []).append(evaluation)
    return [Evaluation.merge(parts) if "shard" in parts[0].described else parts[0] for parts in groups.values()]


def _whole(evaluation: Evaluation) -> str:
    """Return a text that only the parts of the same evaluation share."""
    described = evaluation.described
    if "shard" not in described:
        return str(evaluation.directory)
    config = {name: value for name, value in described["config"].items() if name != "shard"}
    of_all = [described["model"], described["images_sha256"], config, described["shard"]["parts"]]
    return json.dumps(of_all, sort_keys=True)


def _attacks_at(evaluation: Evaluation, radius: Radius) -> dict[str, dict[str, Any]]:
    """Return the rows of the attacks at a radius by an identity: the name and every option, as text.

    The precision of the net that an attack saw counts as one of its options.
    """
    shared = {"attack_precision": evaluation["config"]["attack_precision"]}
    entries = [
        {**entry, "config": {**entry["config"], **shared}}
        for entry in evaluation["attacks"]
        if (entry["norm"], entry["epsilon"]) == (radius.norm, radius.epsilon)
    ]
    return {json.dumps([entry["name"], entry["config"]], sort_keys=True): entry for entry in entries}


def compare(evaluations: list[Evaluation]) -> list[Group]:
    """Return a group for each choice of images and radius, with the nets that were attacked so.

    The parts of an evaluation that `--shard` divided are one net.

    Raises:
        InputError: the same directory twice; a missing part; nets that met no attack in common, or none with a radius.
    """
    for evaluation in evaluations:
        if not evaluation.radii:
            raise InputError(f"expected attacks with a radius in {evaluation.directory}, received none, such as pgd")
    paths = [_path(evaluation).resolve() for evaluation in evaluations]
    if len(set(paths)) < len(paths):
        raise InputError("expected each evaluation once, received the same directory twice")
    evaluations = merge_shards(evaluations)
    names = _names(evaluations)
    members: dict[tuple[str, Radius], list[int]] = {}
    for number, evaluation in enumerate(evaluations):
        for radius in evaluation.radii:
            members.setdefault((evaluation["images_sha256"], radius), []).append(number)
    data = _data(evaluations)
    groups = [
        _group(data[images], [evaluations[number] for number in numbers], [names[number] for number in numbers], radius)
        for (images, radius), numbers in members.items()
    ]
    alone = [len(group.rows) == 1 < len(evaluations) for group in groups]
    return [
        dataclasses.replace(group, notes=[*group.notes, ALONE]) if single else group
        for group, single in zip(groups, alone, strict=True)
    ]


def _group(data: str, evaluations: list[Evaluation], names: list[str], radius: Radius) -> Group:
    met = [_attacks_at(evaluation, radius) for evaluation in evaluations]
    common = [key for key in met[0] if all(key in attacks for attacks in met)]
    if not common:
        raise InputError(
            f"expected an attack with the same options on every net of {data}, received {_difference(names, met)}"
        )
    shared = [[attacks[key] for key in common] for attacks in met]
    worst = [_worst_case(each, radius, attacks) for each, attacks in zip(evaluations, shared, strict=True)]
    rows = []
    for name, evaluation, entries, judged in zip(names, evaluations, shared, worst, strict=True):
        gain = None if judged is worst[0] else judged.less(worst[0])
        rows.append(_with_own(_row(name, evaluation, entries, judged, gain), evaluation, radius))
    notes = []
    for name, attacks in zip(names, met, strict=True):
        if alone := [entry["name"] for key, entry in attacks.items() if key not in common]:
            notes.append(f"left out, because not every net met them with the same options: {', '.join(alone)} ({name})")
    if len(seeds := {evaluation["config"]["seed"] for evaluation in evaluations}) > 1:
        notes.append(f"attacked and judged with different seeds: {', '.join(map(str, sorted(seeds)))}")
    for row, evaluation in zip(rows, evaluations, strict=True):
        if not row.own and (own := _protocol(evaluation)) and any(row.own for row in rows):
            notes.append(f"not attacked by the attack of its authors, {own}: {row.net}")
    if any("upper_bound" in number for row in rows for number in (row.worst_case, row.queries)):
        notes.append(UPPER_BOUND)
    return Group(data, radius, rows, notes)


def _difference(names: list[str], met: list[dict[str, dict[str, Any]]]) -> str:
    """Return the options in which attacks of the same name differ; the attacks of each net where names differ too."""
    named = [{entry["name"]: entry["config"] for entry in attacks.values()} for attacks in met]
    shared = sorted(set.intersection(*(set(each) for each in named)))
    if not shared:
        return "; ".join(f"{name}: {', '.join(each)}" for name, each in zip(names, named, strict=True))
    configs = [each[shared[0]] for each in named]
    keys = sorted({key for config in configs for key in config})
    differing = [key for key in keys if any(config.get(key) != configs[0].get(key) for config in configs)]
    return f"{shared[0]} with different {', '.join(differing)}"


def _protocol(results: Mapping[str, Any]) -> str:
    """Return the attack of the authors of a net's defence; empty where they attack nothing or nothing is known."""
    return str(results.get("authors_attack", ""))


def _with_own(row: Row, evaluation: Evaluation, radius: Radius) -> Row:
    """Return the row with the attack of the authors among its protocols, where it was run."""
    own = _protocol(evaluation)
    found = [entry for entry in _attacks_at(evaluation, radius).values() if entry["name"] == own]
    if not found:
        return row
    return dataclasses.replace(
        row,
        own=own,
        one_draw={AUTHORS_OWN: found[0]["accuracy"], **row.one_draw},
        expected={AUTHORS_OWN: found[0]["expected_accuracy"], **row.expected},
    )


def _data(evaluations: list[Evaluation]) -> dict[str, str]:
    """Return for each digest of images the data set, its split and the number of images.

    Images in memory have no name. Where other images have the same text, the begin of their digest is part of it.
    """
    names = {}
    for results in evaluations:
        name = "images in memory" if results["split"] == "given" else f"{results['dataset']} {results['split']}"
        names[results["images_sha256"]] = f"{name}, {results['num_examples']} images"
    count = Counter(names.values())
    return {sha: f"{text} ({sha[:6]})" if count[text] > 1 else text for sha, text in names.items()}


def _worst_case(evaluation: Evaluation, radius: Radius, attacks: list[dict[str, Any]]) -> Judgement:
    return evaluation.worst_case([entry["name"] for entry in attacks], radius)


def _path(evaluation: Evaluation) -> Path:
    """Return the directory or the file of an evaluation that was read."""
    return evaluation.directory or Path()


def _row(
    name: str, evaluation: Evaluation, attacks: list[dict[str, Any]], worst: Judgement, gain: Number | None = None
) -> Row:
    return Row(
        net=name,
        report=_path(evaluation),
        clean=evaluation["clean"]["expected_accuracy"],
        one_draw={entry["name"]: entry["accuracy"] for entry in attacks},
        worst_case=worst.n_query_accuracy(1),
        gain=gain,
        queries=worst.n_query_accuracy(QUERIES),
        expected={entry["name"]: entry["expected_accuracy"] for entry in attacks},
    )


def _names(evaluations: list[Evaluation]) -> list[str]:
    """Return a name for each net: its defence, or its own name. Equal names get the name of a directory."""
    names = [_name(evaluation) for evaluation in evaluations]
    model_dirs = [Path(evaluation["model_dir"] or _path(evaluation)).name for evaluation in evaluations]
    for places in (model_dirs, [str(_path(evaluation)) for evaluation in evaluations]):
        count = Counter(names)
        names = [f"{name} ({place})" if count[name] > 1 else name for name, place in zip(names, places, strict=True)]
    return names


def _name(results: Mapping[str, Any]) -> str:
    training, draws = results["training"], results["config"]["average_draws"]
    name = results["model"]["name"] if training is None else training["defence"]
    if name.split(":")[0] == "none":  # in a sentence "none" reads as no net at all
        name = name.replace("none", "undefended", 1)
    if training and training["adversarial"] != "none":
        name += f", adversarial={training['adversarial']}"
    return name + (f", mean of {draws} draws" if draws > 1 else "")
