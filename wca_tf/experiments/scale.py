"""Tables 7 and 9: Wide-ResNet-34-10 on CIFAR-10, and ResNet-18 on Imagenette and mini-ImageNet."""

from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.epsilon_sweep import RADII
from wca_tf.experiments.run import EPSILON, Run, parse_radii
from wca_tf.experiments.stronger import NETS
from wca_tf.experiments.tables import Table

WIDE = {"none": (97, 63, 60, 26, 12, 0, 0, 0, 0), "anisotropic": (97, 80, 80, 77, 73, 70, 34, 10, 0)}
IMAGENET = {
    ("imagenette", "none"): (75.5, 8.4, 0.0),
    ("imagenette", "anisotropic"): (74.2, 59.3, 48.7),
    ("mini_imagenet", "none"): (51.9, 5.0, 0.0),
    ("mini_imagenet", "anisotropic"): (51.3, 41.6, 30.4),
}


def reproduce(run: Run) -> Table:
    """A row per net; for the wide net a column per radius of PGD."""
    columns = ["clean", f"fgsm {EPSILON}", *(f"pgd {radius}" for radius in RADII.split(","))]
    table = Table("Larger nets and images: Tables 7 and 9 of the paper", columns)
    for dataset in ("imagenette", "mini_imagenet"):
        for label, variant in NETS:
            evaluated = run.evaluated(dataset, variant, ["fgsm", "pgd"])
            [radius] = parse_radii(EPSILON)
            paper = [value / 100 for value in IMAGENET[dataset, variant]]
            table.add(f"{dataset}, {label}", "clean", evaluated.number("clean"), paper[0])
            for attack, theirs in zip(("fgsm", "pgd"), paper[1:], strict=True):
                table.add(f"{dataset}, {label}", f"{attack} {EPSILON}", evaluated.number(attack, radius), theirs)
        table.notes += run.notes(dataset, tuple(variant for _, variant in NETS), ["pgd"])
    for label, variant in NETS:
        evaluated = run.evaluated("cifar10_wide", variant, ["pgd"], RADII)
        paper = [value / 100 for value in WIDE[variant]]
        table.add(f"WRN-34-10, {label}", "clean", evaluated.number("clean"), paper[0])
        for text, radius, theirs in zip(RADII.split(","), parse_radii(RADII), paper[1:], strict=True):
            table.add(f"WRN-34-10, {label}", f"pgd {text}", evaluated.number("pgd", radius), theirs)
    table.notes += run.notes("cifar10_wide", tuple(variant for _, variant in NETS), ["pgd"])
    bar_chart(table, run.report_dir, "scale", ("paper", "here"))
    return table
