"""reproduce(config): run an experiment of the paper and leave its table and figures in a directory; or all of them."""

import importlib
import traceback
from pathlib import Path

from wca_tf.core import files
from wca_tf.core.errors import InputError, one_line
from wca_tf.core.files import exclusive_directory
from wca_tf.core.paths import expand_user
from wca_tf.experiments import EXPERIMENTS
from wca_tf.experiments.config import ReproduceConfig, absent_data, check_data_present, each_experiment
from wca_tf.experiments.index_page import index_page
from wca_tf.experiments.kept_rows import UNFINISHED
from wca_tf.experiments.net_times import NetTimes, duration
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table, write_table
from wca_tf.runs.model_dir import versions


def reproduce(config: ReproduceConfig) -> Table:
    """Train what is missing, attack it, and write table.md, table.json and figures into config.report_dir.

    Raises:
        InputError: data are absent, the directory is in use or not writable, or it holds another table; or training or
            evaluation raises it.
    """
    check_data_present(config)
    experiment = EXPERIMENTS[config.experiment]
    run = Run(config, NetTimes(experiment.number_of_nets(config.datasets) if config.scale == "small" else 0))
    check_own(config, run.report_dir / "table.json")
    with exclusive_directory(run.report_dir):
        table = importlib.import_module(f"wca_tf.experiments.{config.experiment}").reproduce(run)
        about = {"experiment": config.experiment, "paper": experiment.paper, "scale": config.scale}
        cost = run.times.cost()
        more = {"datasets": list(config.datasets), "versions": versions(), "cost": cost}
        write_table(table, run.report_dir, {**about, **more})
        (run.report_dir / UNFINISHED).unlink(missing_ok=True)
    trained, attacked = duration(cost["training_seconds"]), duration(cost["attack_seconds"])
    print(f"== {config.experiment}: {cost['nets']} nets, {trained} of training, {attacked} of attacks")
    return table


def reproduce_all(config: ReproduceConfig) -> Path:
    """Run every experiment whose data are present, each in a directory of its name; return the path of an index page.

    An experiment that fails does not keep the others from running. The same call continues where the last one ended.

    Raises:
        InputError: no data are present, or a directory holds another table; at the end, when an experiment failed.
    """
    asked, absent = each_experiment(config), absent_data(config)
    for one in asked.values():
        check_own(one, expand_user(one.report_dir) / "table.json")
    states = {name: f"skipped: {absent[name]}" for name in asked if name in absent}
    with exclusive_directory(expand_user(config.report_dir)) as directory:
        page = directory / "index.html"
        for number, (name, one) in enumerate(asked.items(), 1):
            print(f"\n=== experiment {number} of {len(asked)}: {name}, {EXPERIMENTS[one.experiment].paper}")
            if name not in absent:
                states[name] = _run(one)
            print(states[name])
            files.write_text(page, index_page(directory, asked, states))
    if failed := [name for name, state in states.items() if state.startswith("failed")]:
        raise InputError(f"{len(failed)} of {len(asked)} experiments failed, see {page}: {', '.join(failed)}")
    return page


def _run(config: ReproduceConfig) -> str:
    """Run an experiment; return "done", or why it failed."""
    try:
        reproduce(config)
    except InputError as error:
        return f"failed: {error}"
    except Exception as error:  # the other experiments may run
        traceback.print_exc()
        return f"failed: {type(error).__name__}: {one_line(error)}"
    return "done"


def check_own(config: ReproduceConfig, path: Path) -> None:
    """Raise InputError when the directory holds a table of another experiment, scale or data set, or a foreign one."""
    files.check_nothing_foreign(path.parent, path.name, ["table.md"])
    if not path.exists():
        return
    stored = files.read_json(path)
    other = [stored.get(name) for name in ("experiment", "scale")] if isinstance(stored, dict) else []
    if other != [config.experiment, config.scale]:
        what = " at scale ".join(map(str, other)) or "something else"
        raise InputError(f"{path} is of {what}: name another --report_dir")
    datasets = stored.get("datasets", list(config.datasets))  # earlier tables lack it
    if datasets != list(config.datasets):
        raise InputError(f"{path} is of the data {datasets}: name another --report_dir")
