"""Tables as declarations: rows of nets, columns of readings. The evidence fills them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import wca_tf
from reproduce.budgets import written
from reproduce.engine import Need
from reproduce.nets import Net

if TYPE_CHECKING:
    from reproduce.study import Study

EPSILON = "8/255"


class Missing(Exception):
    """The evidence lacks what a reading needs."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number with its 95 % interval, as shares from 0 to 1; or a text in its place.

    A worst case over draws that may be no more than an upper bound has the sign ≤.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    signed: bool = False
    is_upper_bound: bool = False

    @classmethod
    def of(cls, number: Mapping[str, Any], signed: bool = False) -> Cell:
        """Return the cell of a number of results.json."""
        ends = number["value"], number.get("low"), number.get("high")
        return cls(*ends, signed=signed, is_upper_bound="upper_bound" in number)

    def shown(self) -> str:
        """Return the cell as a reader sees it: in %, ± the longer side of the interval.

        Examples:
            >>> Cell(0.5, 0.4, 0.6).shown(), Cell(0.714).shown(), Cell(0.01, 0.0, 0.04, signed=True).shown()
            ('50.0 ± 10.0', '71.4', '+1.0 ± 3.0')
        """
        if self.value is None:
            return self.text or "–"
        shown = "≤ " * self.is_upper_bound + f"{100 * self.value:{'+' * self.signed}.1f}".replace("-", "−")
        if self.low is None or self.high is None:
            return shown
        return f"{shown} ± {100 * max(self.high - self.value, self.value - self.low):.1f}"


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A net that is chosen of candidates by what the evidence says of them.

    Attributes:
        candidates: the nets.
        choose: (a site of each candidate that did not diverge) -> the place of the chosen one among them.
        attack: the attack on validation images that the choice looks at; empty where it looks at the training alone.
        beside: nets that the choice looks at too.
    """

    candidates: tuple[Net, ...]
    choose: Callable[[Sequence[Site]], int]
    attack: str = ""
    beside: tuple[Net, ...] = ()


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        label: its name.
        nets: a net; nets that differ in their seed alone: then a cell has their mean, and their range as interval; none
            for an experiment of its own.
        radius: of its readings, as written.
        attack: of its readings that name no attack.
        part: the part of the evaluation that its readings are of.
    """

    label: str
    nets: tuple[Net | Chosen, ...] = ()
    radius: str = EPSILON
    attack: str = ""
    part: str = "judged"


@dataclasses.dataclass(frozen=True)
class Site:
    """What a reading reads: one net of a row, named `label`, under the reading's attacks as written."""

    study: Study
    net: Net
    part: str
    attacks: tuple[str, ...]
    radius: str | None
    label: str = ""

    @property
    def evaluation(self) -> wca_tf.Evaluation:
        """The evaluation; raises Missing where there is none."""
        found = self.study.evidence.evaluation(self.net, self.part)
        if found is None:
            raise Missing(f"{self.net.name(self.study.scale)}, {self.part}")
        return found

    @property
    def training(self) -> dict[str, Any]:
        """The line of the training; raises Missing where there is none of today's settings."""
        line = self.study.evidence.training(self.net)
        if line is None or not self.study.evidence.is_trained(self.net):
            raise Missing(self.net.training(self.study.scale))
        return line

    @property
    def epoch(self) -> dict[str, float]:
        """The metrics of the epoch that is judged."""
        wanted = self.net.epoch or self.training["best"]
        return next(line for line in self.training["epochs"] if line["epoch"] == wanted)

    def outcome(self) -> Any:
        """Return the outcome of the attack; raises Missing where there is none."""
        try:
            return self.evaluation.attack(self.attacks[0], self.radius)
        except wca_tf.InputError as error:
            raise Missing(str(error)) from None

    def worst(self, attacks: Sequence[str] | None = None) -> Any:
        """Return the judgement in the worst case over attacks; over all of the evaluation where absent."""
        try:
            return self.evaluation.worst_case(attacks, self.radius)
        except wca_tf.InputError as error:
            raise Missing(str(error)) from None

    def beside(self, net: Net) -> Site:
        """Return the same site of another net."""
        return dataclasses.replace(self, net=net)


@dataclasses.dataclass(frozen=True)
class Reading:
    """A column of a table: which attacks it needs, and the cell that it makes of the evidence.

    Attributes:
        name: the column's name.
        cell: (site) -> the cell.
        attacks: as in `budgets.ATTACKS`, with {} for the row's attack; the row's attack where empty.
        radius: as written; the row's where empty; `None` for attacks without a radius.
        part: the part of the evaluation; the row's where empty.
        net: another net than the row's; or (the row's net) -> the net.
        against: (the row's net) -> a net to compare with, which meets the same attacks.
        certified: radii to certify.
        trains_only: whether it reads the training alone.
    """

    name: str
    cell: Callable[[Site], Cell]
    attacks: tuple[str, ...] = ()
    radius: str | None = ""
    part: str = ""
    net: Net | Callable[[Net], Net] | None = None
    against: Callable[[Net], Net] | None = None
    certified: str = ""
    trains_only: bool = False

    def site(self, study: Study, row: Row, net: Net | None) -> Site:
        """Return what it reads in a row."""
        part = self.part or row.part
        names = () if self.trains_only else self.attacks or ((row.attack,) if row.attack else ())
        attacks = tuple(written(name.format(row.attack), study.scale, part) for name in names)
        radius = row.radius if self.radius == "" else self.radius
        if len(attacks) == 1 and not wca_tf.parse_attack(attacks[0]).has_radius:
            radius = None
        chosen: Any = (self.net(net) if callable(self.net) and net else self.net) or net
        return Site(study, chosen, part, attacks, radius, row.label)

    def needs(self, study: Study, row: Row, net: Net) -> list[Need]:
        """Return what it needs in a row."""
        site = self.site(study, row, net)
        nets = [site.net] + ([self.against(site.net)] if self.against else [])
        return [
            Need(each, site.part, attack, site.radius, self.certified)
            for each in nets
            for attack in site.attacks or ("",)
        ]


@dataclasses.dataclass(frozen=True)
class Table:
    """The declaration of a table, and of its page.

    Attributes:
        title: the title, which names the table or figure of the paper.
        rows: the rows.
        columns: the columns.
        paper: the paper's numbers as shares, by (label of the row, name of the column).
        notes: what a reader must know, in sentences.
        charts: (table, directory) -> the names of the figures that it writes there.
        baseline: the label of a row of which each other row changes what its label says; empty where there is none.
    """

    title: str
    rows: Sequence[Row]
    columns: Sequence[Reading]
    paper: Mapping[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    charts: Sequence[Callable[[Filled], Any]] = ()
    baseline: str = ""


@dataclasses.dataclass(frozen=True)
class Filled:
    """A table with its cells.

    Attributes:
        table: the declaration.
        cells: label -> column -> cell.
        nets: label -> the nets of the row, after choices.
        sites: what its readings read.
        missing: what the evidence lacks.
    """

    table: Table
    cells: dict[str, dict[str, Cell]]
    nets: dict[str, list[Net]]
    sites: list[Site]
    missing: list[str]
    study: Study
