"""wca-reproduce: the paper's tables and figures, our numbers beside the paper's.

    bin/reproduce --experiment=ablation --scale=tiny --report_dir=runs/ablation
    bin/reproduce --experiment=ablation --dataset=cifar10 --report_dir=runs/ablation_cifar10
    bin/reproduce --list
    bin/reproduce --experiment=all --report_dir=runs/results

Trains what is missing, attacks it, and writes table.md, table.json and figures (PNG and SVG) into --report_dir. The
table says which settings are not the paper's. Nets and their evaluations are in --models_dir, where other experiments
find them. After Ctrl-C the same command continues. A long experiment writes its table so far into unfinished.md after
each row.

--experiment=all gives each experiment a directory in --report_dir, and makes a page of all tables there, index.html.
"""

import sys

from absl import flags

from wca_tf.cli.flags import config_from_flags, define_flags, import_tensorflow, run, show_in_help
from wca_tf.core.paths import expand_user
from wca_tf.experiments import EXPERIMENTS
from wca_tf.experiments.config import ALL, ReproduceConfig, absent_data, check_data_present


def main() -> None:
    """Reproduce as the parsed flags say."""
    if flags.FLAGS.list:
        print(list_experiments())
        sys.exit(0)
    config = config_from_flags(ReproduceConfig)
    check_present = absent_data if config.experiment == ALL else check_data_present
    check_present(config)
    import_tensorflow()  # only when the flags are right: it takes seconds
    from wca_tf.experiments.reproduce import reproduce, reproduce_all  # it loads TensorFlow

    if config.experiment == ALL:
        print(f"\nwritten: {reproduce_all(config)}, with the tables and figures of all experiments")
        return
    table = reproduce(config)
    print(f"\n{table.markdown()}\nwritten: table.md, table.json and figures in {expand_user(config.report_dir)}")


def list_experiments() -> str:
    """Return a description of each experiment: its table of the paper, its data and cost, and its command."""
    lines = []
    for name, experiment in EXPERIMENTS.items():
        lines += [
            f"{name}: {experiment.what} ({experiment.paper})",
            f"    {sum(experiment.nets)} nets; data: {', '.join(experiment.small)}; {experiment.cost}"
            + (f"; --scale=paper: {', '.join(experiment.full)}" if experiment.full != experiment.small else ""),
            f"    bin/reproduce --experiment={name} --scale=small --report_dir=runs/results/{name}"
            + " --mini_imagenet=DIR" * ("mini_imagenet" in experiment.small),
            *(
                f"    --dataset={each}: a table of its own, also with --experiment={ALL}; {cost}"
                for each, cost in experiment.also.items()
            ),
        ]
    lines.append(f"{ALL}: every one of these whose data are there, and a page of their tables")
    lines.append(f"    bin/reproduce --experiment={ALL} --scale=small --report_dir=runs/results")
    return "\n".join(lines)


def console() -> None:
    """Run bin/reproduce, or wca-reproduce."""
    define_flags(ReproduceConfig)
    flags.DEFINE_bool("list", False, "describe the experiments, and stop")
    show_in_help("list")
    run(main, __doc__ or "")
