"""Table 2: C&W for each confidence kappa, and n-pixel for each n."""

from wca_tf.evaluation.intervals import distance_text
from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.paper import CW, CW_CLEAN, NETS, PIXELS
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table


def reproduce(run: Run) -> Table:
    """Return a table with a row per attack, and columns per net. The paper has numbers for WCA-Net only."""
    [dataset] = run.datasets
    table = Table(f"C&W and n-pixel on {dataset}: Table 2 of the paper (CIFAR-10)", [])
    cw = {f"C&W, kappa {kappa}": (f"{run.budget.written('cw')}:confidence={kappa}", v) for kappa, v in CW.items()}
    pixels = {f"{n} pixels": (f"{run.budget.written('n_pixel')}:pixels={n}", v) for n, v in PIXELS.items()}
    attacks = cw | pixels
    for label, variant in NETS:
        evaluated = run.evaluated(dataset, variant, [written for written, _ in attacks.values()])
        has_numbers = variant == "anisotropic"
        table.add("clean", label, evaluated.number("clean"), CW_CLEAN / 100 if has_numbers else None)
        for row, (written, paper) in attacks.items():
            table.add(row, label, evaluated.number(written), paper / 100 if has_numbers else None)
            entry = evaluated.entry(written)
            table.add(row, f"{label}, median l2", text=distance_text(entry["distortion"]["l2"]["median"]))
            if entry["found"]:
                table.add(row, f"{label}, found", entry["found"])
            if entry["generations"]:
                table.add(row, f"{label}, median generations", text=f"{entry['generations']['median']:g}")
    table.notes = run.notes(dataset, NETS, ["cw", "n_pixel"])
    table.notes.append("C&W has no radius: on a random net its accuracy says how large the noise is beside kappa")
    bar_chart(table, run.report_dir, "cw_and_pixels", ("paper, CIFAR-10", f"here, {dataset}"))
    return table
