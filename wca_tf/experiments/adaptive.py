"""The cascade `adaptive` beside its members, each run whole: what it leaves, and what it takes."""

from functools import partial

from wca_tf.attacks import parse_attack
from wca_tf.attacks.cascade import Adaptive, MultiTargeted
from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import NETS
from wca_tf.experiments.run import BY_COPY, Run
from wca_tf.experiments.tables import Table

RADII = {"8/255": 8 / 255, "0.1": 0.1}


def reproduce(run: Run) -> Table:
    """Return a table with a row per net and radius: the worst case of both, and the cascade's share of the time."""
    [dataset] = run.datasets
    table = Table(f"The cascade adaptive beside its members on {dataset}", [])
    for label, variant in NETS:
        kept_rows(run, table, label, [run.net(dataset, variant)], partial(_add_net, run, dataset, label, variant))
    table.legend = "Expected accuracy in %, ± the 95 % half-width."
    table.notes = run.notes(dataset, NETS, ["adaptive"])
    table.notes.append(f"times include making the graphs; {run.budget.batch_size} images at a time")
    if run.budget.faster:
        table.notes.append(BY_COPY)
    bar_chart(table, run.report_dir, "adaptive", ("paper", f"here, {dataset}"))
    return table


def _add_net(run: Run, dataset: str, label: str, variant: str, table: Table) -> None:
    """Train and attack a net, and fill its rows."""
    cascade = run.budget.written("adaptive")
    members = _members(cascade, has_noise=variant != "none")
    found = run.evaluated(dataset, variant, [*members, cascade], ",".join(RADII), **run.budget.faster)
    for text, radius in RADII.items():
        row = f"{label}, {text}"
        table.add(row, "members whole, worst case", found.worst_case(members, radius))
        table.add(row, "adaptive", found.number(cascade, radius, "expected_accuracy"))
        whole = sum(found.number(name, radius, "seconds") for name in members)
        own = found.number(cascade, radius, "seconds")
        table.add(row, "seconds of its members", text=f"{whole:.0f}")
        table.add(row, "seconds of adaptive", text=f"{own:.0f}")
        table.add(row, "ratio", text=f"{own / whole:.2f}")


def _members(cascade: str, has_noise: bool) -> list[str]:
    """Return the members of the cascade on a net with Gaussian logits, as written."""
    attack = parse_attack(cascade)
    assert isinstance(attack, Adaptive)  # noqa: S101 by its name
    towards_each = MultiTargeted(steps=attack.class_steps, classes=attack.classes).spelled
    members = [towards_each if each.target_classes else each.attack.spelled for each in attack.stages()]
    return [member for member in members if has_noise or not member.startswith("transfer:source_objective=dlr")]
