"""Every attack on the nets of the ablation, at epsilon = 0.1."""

from collections.abc import Iterator
from functools import partial

from wca_tf.attacks import parse_attack
from wca_tf.evaluation.intervals import distance_text
from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import ABLATION_LABELS, CW, PIXELS
from wca_tf.experiments.run import BY_COPY, Evaluated, Run
from wca_tf.experiments.tables import Table

EPSILON = 0.1
BALL = (
    *("fgsm", "pgd", "pgd:steps=40", "margin", "z_margin", "z_margin:restarts=10", "apgd_ce", "apgd_dlr", "auto_rand"),
    *("transfer", "transfer:source_objective=dlr", "square", "adaptive"),
)
COMPARED = ("z_margin:restarts=10", "adaptive")  # each beside the worst case of all other attacks in the ball
PIXEL_BY_MARGIN = "n_pixel:objective=margin:population=100:generations=80"
# Images for the attacks in a ball and C&W, for PGD with restarts, and for n_pixel; 0 for all.
IMAGES = {"tiny": (20, 20, 20), "small": (500, 200, 100), "paper": (0, 1000, 200)}


def reproduce(run: Run) -> Table:
    """Return a table with a row per attack, and the numbers of each net in its columns."""
    [dataset] = run.datasets
    table = Table(f"Every attack on {dataset}, epsilon = {EPSILON}", [])
    for label, variant in ABLATION_LABELS:
        kept_rows(run, table, label, [run.net(dataset, variant)], partial(_add_net, run, dataset, label, variant))
    table.notes = run.notes(dataset, ABLATION_LABELS, ["cw", "n_pixel", "pgd_restarts", "square", "adaptive"])
    table.notes.append("the number of test images is of the attacks in a ball; the others have their own")
    if run.budget.faster:
        table.notes.append(BY_COPY)
    bar_chart(table, run.report_dir, "attack_suite", ("paper", f"here, {dataset}"))
    return table


def _add_net(run: Run, dataset: str, label: str, variant: str, table: Table) -> None:
    """Train and attack a net, and fill its columns."""
    ball = [run.budget.written(name) for name in BALL]
    compared = {name: [run.budget.written(name)] for name in COMPARED}
    compared["all others"] = [name for name in ball if [name] not in compared.values()]
    compared["all"] = ball
    for images, attacks in _plan(run, ball):
        found = run.evaluated(dataset, variant, attacks, str(EPSILON), num_examples=images, **run.budget.faster)
        for attack in attacks:
            _add_numbers(table, attack, label, found)
            table.add(attack, "images", text=str(found.results["num_examples"]))
        if ball[0] in attacks:
            table.add("clean", f"{label}: one draw", found.number("clean"))
            for name, several in compared.items():
                table.add(f"worst case of {name}", f"{label}: expected", found.worst_case(several, EPSILON))


def _plan(run: Run, ball: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of images, and the attacks that are made on so many."""
    in_ball, restarted, pixels = IMAGES[run.config.scale]
    yield in_ball, [*ball, *(f"{run.budget.written('cw')}:confidence={kappa}" for kappa in CW)]
    yield restarted, [run.budget.written("pgd_restarts")]
    by_margin = run.budget.searches.get("n_pixel", PIXEL_BY_MARGIN)
    yield pixels, [*(f"{run.budget.written('n_pixel')}:pixels={count}" for count in PIXELS), by_margin]


def _add_numbers(table: Table, attack: str, label: str, found: Evaluated) -> None:
    """Add the four numbers of an attack on a net, and how far and how often it finds an image."""
    entry = found.entry(attack, EPSILON if parse_attack(attack).has_radius else None)
    names = {"one draw": "accuracy", "expected": "expected_accuracy", "noise-free": "noise_free_accuracy"}
    for column, name in names.items():
        table.add(attack, f"{label}: {column}", entry[name])
    table.add(attack, f"{label}: 100 queries", entry["n_query_accuracy"]["100"])
    table.add(attack, f"{label}: median l2", text=distance_text(entry["distortion"]["l2"]["median"]))
    if entry["found"]:
        table.add(attack, f"{label}: found", entry["found"])
    if entry["generations"]:
        table.add(attack, f"{label}: median generations", text=f"{entry['generations']['median']:g}")
