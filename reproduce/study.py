"""The study: fills tables from the evidence, and lets the engine add what the evidence lacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from reproduce.budgets import written
from reproduce.engine import Engine, Need
from reproduce.evidence import Evidence
from reproduce.nets import Net
from reproduce.tables import EPSILON, Cell, Chosen, Filled, Missing, Reading, Row, Site, Table


@dataclasses.dataclass(frozen=True)
class Study:
    """The evidence, and the engine that adds to it."""

    evidence: Evidence
    engine: Engine

    @property
    def scale(self) -> str:
        return self.evidence.scale

    def fill(self, table: Table) -> Filled:
        """Return a table with its cells; first train and attack what the evidence lacks."""
        missing: list[str] = []
        nets = {row.label: [self._resolve(net, missing) for net in row.nets] for row in table.rows}
        self.engine.provide(
            need
            for row in table.rows
            for net in nets[row.label]
            for column in table.columns
            for need in column.needs(self, row, net)
        )
        cells = {
            row.label: {column.name: self._cell(row, nets[row.label], column, missing) for column in table.columns}
            for row in table.rows
        }
        sites = [
            column.site(self, row, net) for row in table.rows for net in nets[row.label] for column in table.columns
        ]
        return Filled(table, cells, nets, sites, list(dict.fromkeys(missing)), self)

    def nets_to_come(self, tables: Sequence[Table]) -> set[str]:
        """Return the names of the nets that the evidence of tables lacks; all candidates count where one is chosen."""
        names = set()
        for table in tables:
            for row in table.rows:
                chosen = [net for net in row.nets if isinstance(net, Chosen)]
                nets = [net for net in row.nets if isinstance(net, Net)]
                for net in [*nets, *(each for one in chosen for each in (*one.beside, *one.candidates))]:
                    needs = [need for column in table.columns for need in column.needs(self, row, net)]
                    names |= {n.net.name(self.scale) for n in needs if not self.engine.is_there(n.net, [n])}
        return names

    def _resolve(self, net: Net | Chosen, missing: list[str]) -> Net:
        """Return the chosen net of candidates; where the evidence of one is missing, the choice is too."""
        if isinstance(net, Net):
            return net
        part, attack = "validation", written(net.attack, self.scale, "validation") if net.attack else ""
        self.engine.provide(Need(each, part, attack, EPSILON) for each in (*net.beside, *net.candidates))
        sites = [Site(self, each, part, (attack,), EPSILON) for each in net.candidates]
        try:
            sites = [site for site in sites if not site.training["diverged"]]
            return sites[net.choose(sites)].net if sites else net.candidates[0]
        except Missing as error:
            missing.append(str(error))
            return net.candidates[0]

    def _cell(self, row: Row, nets: Sequence[Net], column: Reading, missing: list[str]) -> Cell:
        cells = [self._cell_of(row, net, column, missing) for net in nets or (None,)]
        if len(cells) == 1:
            return cells[0]
        values = [cell.value for cell in cells if cell.value is not None]
        if len(values) < len(cells):
            return Cell(text=", ".join(dict.fromkeys(cell.shown() for cell in cells)))
        ends, bound = (min(values), max(values)), any(cell.is_upper_bound for cell in cells)
        return Cell(sum(values) / len(values), *ends, signed=cells[0].signed, is_upper_bound=bound)

    def _cell_of(self, row: Row, net: Net | None, column: Reading, missing: list[str]) -> Cell:
        site = column.site(self, row, net)
        try:
            if site.net and site.training["diverged"] and not site.net.epoch:
                return Cell(text="diverged")
            return column.cell(site)
        except Missing as error:
            missing.append(str(error))
            return Cell()
