"""Table 7: ResNet-18 on Imagenette and mini-ImageNet. Table 9: Wide-ResNet-34-10 on CIFAR-10."""

from functools import partial

from wca_tf.experiments import LARGER
from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import EPSILON, IMAGENET, NETS, RADII, WIDE
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table

BATCH = 100  # images of the wide net that are attacked at a time: more need more memory
TRAINED = "trained"  # the column that says for how long
WIDE_IMAGES = {"tiny": 20, "small": 100, "paper": 0}  # 0 for all


def reproduce(run: Run) -> Table:
    """Return a table with a row per data set and net; for the wide net there is a column per radius of PGD."""
    table = Table("Larger nets and images: Tables 7 and 9 of the paper", ["clean"])
    wide_images = WIDE_IMAGES[run.config.scale]
    for dataset in LARGER if run.config.scale == "tiny" else run.datasets:  # tiny: small digits in place of each
        wide = dataset == "cifar10_wide"
        for label, variant in NETS:
            name = f"WRN-34-10, {label}" if wide else f"{dataset}, {label}"
            fill = partial(_add_wide if wide else _add_imagenet, run, dataset, variant, name)
            kept_rows(run, table, name, [run.net(dataset, variant)], fill, wide_images if wide else None)
        table.notes += run.notes(dataset, NETS, ["pgd"], num_examples=wide_images if wide else None)
    bar_chart(table, run.report_dir, "scale", ("paper", "here"))
    return table


def _add_imagenet(run: Run, dataset: str, variant: str, name: str, table: Table) -> None:
    """Train a net and fill its row of Table 7."""
    evaluated = run.evaluated(dataset, variant, ["fgsm", "pgd"])
    table.add(name, TRAINED, text=run.trained_for(run.model_dir(dataset, variant)))
    clean, *attacked = (value / 100 for value in IMAGENET[dataset, variant])
    table.add(name, "clean", evaluated.number("clean"), clean)
    for attack, theirs in zip(("fgsm", "pgd"), attacked, strict=True):
        table.add(name, f"{attack} {EPSILON}", evaluated.number(attack, RADII[EPSILON]), theirs)


def _add_wide(run: Run, dataset: str, variant: str, name: str, table: Table) -> None:
    """Train a wide net and fill its row of Table 9."""
    asked = {"batch_size": BATCH, "num_examples": WIDE_IMAGES[run.config.scale]}
    evaluated = run.evaluated(dataset, variant, ["pgd"], ",".join(RADII), **asked)
    table.add(name, TRAINED, text=run.trained_for(run.model_dir(dataset, variant)))
    clean, *attacked = (value / 100 for value in WIDE[variant])
    table.add(name, "clean", evaluated.number("clean"), clean)
    for (text, radius), theirs in zip(RADII.items(), attacked, strict=True):
        table.add(name, f"pgd {text}", evaluated.number("pgd", radius), theirs)
