"""Every attack on the nets of the ablation, at epsilon = 0.1."""

from collections.abc import Iterator
from functools import partial

from wca_tf.attacks import parse_attack
from wca_tf.experiments.charts import dot_chart
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import ABLATION_LABELS, CW, PIXELS
from wca_tf.experiments.run import BY_COPY, Evaluated, Run
from wca_tf.experiments.tables import Table
from wca_tf.gaussian.intervals import distance_text

EPSILON = 0.1
BALL = (
    *("fgsm", "pgd", "pgd:steps=40", "margin", "z_margin", "z_margin:restarts=10", "apgd_ce", "apgd_dlr", "auto_rand"),
    *("multi_targeted", "transfer", "transfer:source_objective=dlr", "square", "adaptive"),
)
COMPARED = ("z_margin:restarts=10", "adaptive")  # each beside the worst case of all other attacks in the ball
PIXEL_BY_MARGIN = "n_pixel:objective=margin:population=100:generations=80"
# Images for the attacks in a ball and C&W, for PGD with restarts, and for n_pixel; 0 for all.
IMAGES = {"tiny": (20, 20, 20), "small": (500, 200, 100), "paper": (0, 1000, 200)}


def reproduce(run: Run) -> Table:
    """Return a table with a row per attack, and the numbers of each net in its columns."""
    [dataset] = run.datasets
    table = Table(f"Every attack on {dataset}, epsilon = {EPSILON}", ["images"])
    for label, variant in ABLATION_LABELS:
        kept_rows(run, table, label, [run.net(dataset, variant)], partial(_add_net, run, dataset, label, variant))
    table.notes = run.notes(dataset, ABLATION_LABELS, ["cw", "n_pixel", "pgd_restarts", "square", "adaptive"])
    table.notes.append(f"pixels on the margin: {_by_margin(run)}")
    if run.budget.faster:
        table.notes.append(BY_COPY)
    nets = {f"{label}: expected": label for label, _ in ABLATION_LABELS}
    dot_chart(table, run.report_dir, "attack_suite", nets, "expected accuracy, %")
    return table


def _add_net(run: Run, dataset: str, label: str, variant: str, table: Table) -> None:
    """Train and attack a net, and fill its columns."""
    ball = [run.budget.written(name) for name in BALL]
    for images, attacks in _plan(run, ball):
        asked = {"num_examples": images, **run.budget.faster}
        found = run.evaluated(dataset, variant, list(attacks.values()), str(EPSILON), **asked)
        if ball[0] in attacks:
            table.add("clean", "images", text=str(found.results["num_examples"]))
            table.add("clean", f"{label}: one draw", found.number("clean"))
            table.add("clean", f"{label}: expected", found.number("clean", what="expected_accuracy"))
        for row, attack in attacks.items():
            table.add(row, "images", text=str(found.results["num_examples"]))
            _add_numbers(table, row, attack, label, found)
        if ball[0] in attacks:
            _add_worst_cases(table, run, label, found, ball)


def _by_margin(run: Run) -> str:
    return run.budget.searches.get("n_pixel", PIXEL_BY_MARGIN)


def _plan(run: Run, ball: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of images, and the attacks that are made on so many, as rows of the table name them."""
    in_ball, restarted, pixels = IMAGES[run.config.scale]
    cw = {f"C&W, kappa {kappa}": f"{run.budget.written('cw')}:confidence={kappa}" for kappa in CW}
    yield in_ball, {**{name: name for name in ball}, **cw}
    yield restarted, {name: name for name in [run.budget.written("pgd_restarts")]}
    by_paper = {f"{n} pixel{'s' * (n > 1)}": f"{run.budget.written('n_pixel')}:pixels={n}" for n in PIXELS}
    yield pixels, {**by_paper, "1 pixel, on the margin": _by_margin(run)}


def _add_numbers(table: Table, row: str, attack: str, label: str, found: Evaluated) -> None:
    """Add the four numbers of an attack on a net, and how far and how often it finds an image."""
    entry = found.entry(attack, EPSILON if parse_attack(attack).has_radius else None)
    names = {"one draw": "accuracy", "expected": "expected_accuracy", "noise-free": "noise_free_accuracy"}
    for column, name in names.items():
        table.add(row, f"{label}: {column}", entry[name])
    table.add(row, f"{label}: 100 queries", entry["n_query_accuracy"]["100"])
    table.add(row, f"{label}: median l2", text=distance_text(entry["distortion"]["l2"]["median"]))
    if entry["found"]:
        table.add(row, f"{label}: found", entry["found"])
    if entry["generations"]:
        table.add(row, f"{label}: median generations", text=f"{entry['generations']['median']:g}")


def _add_worst_cases(table: Table, run: Run, label: str, found: Evaluated, ball: list[str]) -> None:
    """Add the worst case per image of each attack of `COMPARED`, of all others in the ball, and of all."""
    written = {name: run.budget.written(name) for name in COMPARED}
    compared = {name: [attack] for name, attack in written.items()}
    compared["all others"] = [attack for attack in ball if attack not in written.values()]
    compared["all"] = ball
    for name, several in compared.items():
        table.add(f"worst case of {name}", f"{label}: expected", found.worst_case(several, EPSILON))
