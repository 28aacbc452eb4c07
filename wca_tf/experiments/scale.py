"""Table 7: ResNet-18 on Imagenette and mini-ImageNet. Table 9: Wide-ResNet-34-10 on CIFAR-10."""

from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.paper import EPSILON, IMAGENET, NETS, RADII, WIDE
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table

BATCH = 100  # images of the wide net that are attacked at a time: more need more memory


def reproduce(run: Run) -> Table:
    """Return a table with a row per net; for the wide net there is a column per radius of PGD."""
    columns = ["clean", f"fgsm {EPSILON}", *(f"pgd {radius}" for radius in RADII)]
    table = Table("Larger nets and images: Tables 7 and 9 of the paper", columns)
    for dataset in ("imagenette", "mini_imagenet"):
        for label, variant in NETS:
            evaluated = run.evaluated(dataset, variant, ["fgsm", "pgd"])
            paper = [value / 100 for value in IMAGENET[dataset, variant]]
            table.add(f"{dataset}, {label}", "clean", evaluated.number("clean"), paper[0])
            for attack, theirs in zip(("fgsm", "pgd"), paper[1:], strict=True):
                table.add(
                    f"{dataset}, {label}", f"{attack} {EPSILON}", evaluated.number(attack, RADII[EPSILON]), theirs
                )
        table.notes += run.notes(dataset, NETS, ["pgd"])
    for label, variant in NETS:
        evaluated = run.evaluated("cifar10_wide", variant, ["pgd"], ",".join(RADII), batch_size=BATCH)
        paper = [value / 100 for value in WIDE[variant]]
        table.add(f"WRN-34-10, {label}", "clean", evaluated.number("clean"), paper[0])
        for (text, radius), theirs in zip(RADII.items(), paper[1:], strict=True):
            table.add(f"WRN-34-10, {label}", f"pgd {text}", evaluated.number("pgd", radius), theirs)
    table.notes += run.notes("cifar10_wide", NETS, ["pgd"])
    bar_chart(table, run.report_dir, "scale", ("paper", "here"))
    return table
