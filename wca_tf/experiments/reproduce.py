"""reproduce(config): run an experiment of the paper and leave its table and figures in a directory."""

from wca_tf.config import ReproduceConfig, config_to_json
from wca_tf.experiments import EXPERIMENTS, run_experiment
from wca_tf.experiments.run import Run
from wca_tf.experiments.settings import check_data_present
from wca_tf.experiments.tables import Table, write_table
from wca_tf.files import exclusive_directory
from wca_tf.model_dir import versions


def reproduce(config: ReproduceConfig) -> Table:
    """Train what is missing, attack it, and write table.md, table.json and figures into config.report_dir.

    Raises:
        InputError: absent data; a directory in use, or not writable; whatever training and evaluation refuse.
    """
    check_data_present(config)
    run = Run(config)
    experiment = EXPERIMENTS[config.experiment]
    with exclusive_directory(run.report_dir):
        table = run_experiment(config.experiment, run)
        about = {"experiment": config.experiment, "paper": experiment.paper, "scale": config.scale}
        write_table(table, run.report_dir, {**about, "config": config_to_json(config), "versions": versions()})
    return table
