"""reproduce(config): run an experiment of the paper and leave its table and figures in a directory."""

import importlib
from pathlib import Path

from wca_tf.core import files
from wca_tf.core.errors import InputError
from wca_tf.core.files import exclusive_directory
from wca_tf.experiments import EXPERIMENTS
from wca_tf.experiments.run import Run
from wca_tf.experiments.settings import ReproduceConfig, check_data_present
from wca_tf.experiments.tables import Table, write_table
from wca_tf.runs.model_dir import versions


def reproduce(config: ReproduceConfig) -> Table:
    """Train what is missing, attack it, and write table.md, table.json and figures into config.report_dir.

    Raises:
        InputError: data are absent, the directory is in use or not writable, or it holds another table; or training or
            evaluation raises it.
    """
    check_data_present(config)
    run = Run(config)
    experiment = EXPERIMENTS[config.experiment]
    _check_own(config, run.report_dir / "table.json")
    with exclusive_directory(run.report_dir):
        table = importlib.import_module(f"wca_tf.experiments.{config.experiment}").reproduce(run)
        about = {"experiment": config.experiment, "paper": experiment.paper, "scale": config.scale}
        write_table(table, run.report_dir, {**about, "versions": versions()})
    return table


def _check_own(config: ReproduceConfig, path: Path) -> None:
    """Raise InputError when the report directory holds another experiment's table, or one of another scale."""
    if not path.exists():
        return
    stored = files.read_json(path)
    other = [stored.get(name) for name in ("experiment", "scale")] if isinstance(stored, dict) else []
    if other != [config.experiment, config.scale]:
        what = " at scale ".join(map(str, other)) or "something else"
        raise InputError(f"{path} is of {what}: name another --report_dir")
