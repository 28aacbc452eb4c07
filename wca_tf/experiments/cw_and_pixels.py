"""Table 2: C&W for each confidence kappa, and n-pixel for each n, by the paper's rule and on the margin."""

from functools import partial

from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import CW, CW_CLEAN, NETS, PIXELS
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table
from wca_tf.gaussian.intervals import distance_text

# The paper's rule ends a search when its population has converged, in 1,000 generations at most.
PAPERS_RULE = {"tiny": "n_pixel:population=20:generations=2", "small": "n_pixel:generations=20", "paper": "n_pixel"}
ON_MARGIN = {
    "tiny": "n_pixel:objective=margin:population=10:generations=2",
    "small": "n_pixel:objective=margin:population=100:generations=80",
    "paper": "n_pixel:objective=margin",
}
IMAGES = {"tiny": 20, "small": 100, "paper": 0}  # 0 for all
# With few steps a larger rate passes the nearest image.
CARLINI_WAGNER = {
    "tiny": "cw:steps=10:searches=2:learning_rate=0.1",
    "small": "cw:steps=40:searches=4:learning_rate=0.003:initial_constant=0.01",
    "paper": "cw",
}


def reproduce(run: Run) -> Table:
    """Return a table with a row per attack, and columns per net. The paper has numbers for WCA-Net only."""
    [dataset] = run.datasets
    images = IMAGES[run.config.scale]
    table = Table(f"C&W and n-pixel on {dataset}: Table 2 of the paper (CIFAR-10)", [])
    for label, variant in NETS:
        fill = partial(_add_columns, run, dataset, label, variant)
        attacks = [attack for attack, _ in _rows(run).values()]
        kept_rows(run, table, label, [run.net(dataset, variant)], fill, [images, attacks])
    table.notes = run.notes(dataset, NETS, [], num_examples=images)
    rule = PAPERS_RULE[run.config.scale]
    table.notes += [
        "C&W has no radius: on a random net its accuracy says how large the noise is beside kappa",
        f"C&W: {CARLINI_WAGNER[run.config.scale]}; the paper's: 1,000 steps, 9 searches, learning rate 5e-4, initial "
        "constant 1e-3",
        f"n pixels: the paper's rule, {rule}; the paper allows 1,000 generations",
        "median generations: after how many the search of an image ended, by the rule or by its limit; at most: of all "
        "images. Where it is the limit, the paper's number is of a longer search",
        "found: the share of images where the search of C&W ended with an image that it counts as misclassified",
        f"n pixels, margin: {ON_MARGIN[run.config.scale]}, which ends no search early",
    ]
    shown = [label for label, _ in NETS]  # without the share of images that C&W finds
    bar_chart(table, run.report_dir, "cw_and_pixels", ("paper, CIFAR-10", f"here, {dataset}"), shown)
    return table


def _rows(run: Run) -> dict[str, tuple[str, float | None]]:
    """Return for each row its attack as written, and the paper's accuracy of WCA-Net in %, if it has one."""
    scale = run.config.scale
    cw = {f"C&W, kappa {kappa}": (f"{CARLINI_WAGNER[scale]}:confidence={kappa}", value) for kappa, value in CW.items()}
    named = {n: f"{n} pixel{'s' * (n > 1)}" for n in PIXELS}
    pixels = {named[n]: (f"{PAPERS_RULE[scale]}:pixels={n}", value) for n, value in PIXELS.items()}
    on_margin = {f"{named[n]}, margin": (f"{ON_MARGIN[scale]}:pixels={n}", None) for n in PIXELS}
    return {**cw, **pixels, **on_margin}


def _add_columns(run: Run, dataset: str, label: str, variant: str, table: Table) -> None:
    """Train a net and fill its columns."""
    rows, has_numbers = _rows(run), variant == "anisotropic"
    attacks = [written for written, _ in rows.values()]
    evaluated = run.evaluated(dataset, variant, attacks, num_examples=IMAGES[run.config.scale])
    table.add("clean", label, evaluated.number("clean"), CW_CLEAN / 100 if has_numbers else None)
    for row, (written, paper) in rows.items():
        theirs = paper / 100 if has_numbers and paper is not None else None
        table.add(row, label, evaluated.number(written), theirs)
        entry = evaluated.entry(written)
        table.add(row, f"{label}, median l2", text=distance_text(entry["distortion"]["l2"]["median"]))
        if entry["found"]:
            table.add(row, f"{label}, found", entry["found"])
        if entry["generations"]:
            table.add(
                row, f"{label}, median generations", text="{median:g}, at most {max:g}".format_map(entry["generations"])
            )
