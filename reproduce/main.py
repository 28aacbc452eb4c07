"""bin/reproduce: the paper's tables and figures, our numbers beside the paper's.

    bin/reproduce --list
    bin/reproduce --experiment=ablation --scale=tiny                     digits, minutes
    bin/reproduce --experiment=fashion_mnist --tfds_data_dir=DIR         hours on 2 cores
    bin/reproduce --tables                                               all pages of docs/results, from the evidence

Trains the nets and runs the attacks that the evidence lacks, then writes a page with table and charts. The evidence is
what each attack left of each image; experiments share nets and evidence. After Ctrl-C the same command continues.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from absl import flags

from reproduce.engine import Engine, duration
from reproduce.evidence import Evidence
from reproduce.experiments import ALL, EXPERIMENTS, check_names, datasets_of, page_name
from reproduce.nets import FOLDER, Net
from reproduce.pages import write_index, write_page
from reproduce.study import Study
from reproduce.tables import Filled
from wca_tf import DataConfig, InputError, check_dataset_present
from wca_tf.cli.flags import import_tensorflow, run, show_in_help

ROOT = Path(__file__).resolve().parent.parent
COMMITTED = ROOT / "reproduce" / "evidence"
PAGES = ROOT / "docs" / "results"
FLAGS = flags.FLAGS
TEXTS = {
    "experiment": ("", f"its name; --list describes each; {ALL} runs every one"),
    "scale": ("small", "tiny: digits, minutes; small: hours on 2 cores; paper: the paper's settings"),
    "dataset": ("", "in place of the experiment's own, such as cifar10"),
    "models_dir": ("runs/reproduce", "where trained nets are kept; experiments share them"),
    "evidence_dir": ("", "where the evidence is kept; empty: models_dir/evidence"),
    "pages_dir": ("", "where pages go; empty: models_dir/pages, with --tables docs/results"),
    "tfds_data_dir": (DataConfig.tfds_data_dir, "where TFDS data are, or go with --download"),
    "mini_imagenet": ("", "the folder of mini-ImageNet, CLASS/*.jpg"),
}
SWITCHES = {
    "list": "describe the experiments, and stop",
    "tables": "make every page again from the evidence in the repository, and train nothing",
    "download": "fetch the TFDS sets that are absent; without it nothing is fetched",
}


def main() -> None:
    """Reproduce as the flags say."""
    if FLAGS.list:
        print(list_experiments())
    elif FLAGS.tables:
        import_tensorflow()
        make_tables(COMMITTED, Path(FLAGS.pages_dir).expanduser() if FLAGS.pages_dir else PAGES)
    else:
        check_names(FLAGS.experiment, FLAGS.scale)
        run_experiments(list(EXPERIMENTS) if FLAGS.experiment == ALL else [FLAGS.experiment])


def list_experiments() -> str:
    """Return a description of each experiment, and its command."""
    lines = []
    for name, experiment in EXPERIMENTS.items():
        lines += [
            f"{name}: {experiment.what} ({experiment.paper})",
            f"    data: {', '.join(experiment.small)}; --scale=paper: {', '.join(experiment.full)}",
            f"    {command(name)}",
        ]
    return "\n".join(lines)


def command(name: str, scale: str = "small", dataset: str = "") -> str:
    """Return the command of an experiment; the data set is named where it is not its own."""
    own = EXPERIMENTS[name].datasets(scale)
    at = f" --scale={scale}" * (scale != "small") + f" --dataset={dataset}" * (bool(dataset) and dataset not in own)
    return f"bin/reproduce --experiment={name}{at}"


def make_tables(evidence_dir: Path, pages_dir: Path, scale: str = "small") -> list[str]:
    """Write the page of every experiment whose evidence is complete, and the list of them; return their names."""
    study = Study(Evidence(evidence_dir, scale), Engine(Evidence(evidence_dir, scale), Path(), {}, dry=True))
    made = {}
    for name, experiment in EXPERIMENTS.items():
        for dataset in dict.fromkeys((*experiment.small, *experiment.choice)):
            filled = [study.fill(table) for table in experiment.declare(dataset, scale)]
            if not any(each.missing for each in filled):
                made[_write(study, name, dataset, filled, pages_dir)] = filled[0].table.title
    write_index(made, pages_dir)
    print(f"written: {len(made)} pages in {pages_dir}")
    return list(made)


def _write(study: Study, name: str, dataset: str, filled: list[Filled], pages_dir: Path) -> str:
    """Write the page of an experiment on a data set; return its name."""
    page = page_name(name, dataset, study.scale)
    write_page(page, EXPERIMENTS[name].what, command(name, study.scale, dataset), filled, pages_dir)
    return page


def run_experiments(names: list[str]) -> None:
    """Run experiments one after the other; where there are several, one that fails does not stop the others.

    Raises:
        InputError: data are absent; or some of several experiments failed.
    """
    models_dir = Path(FLAGS.models_dir).expanduser()
    evidence = Evidence(Path(FLAGS.evidence_dir or models_dir / "evidence").expanduser(), FLAGS.scale)
    pages = Path(FLAGS.pages_dir or models_dir / "pages").expanduser()
    data: dict[str, Any] = {"tfds_data_dir": FLAGS.tfds_data_dir, "download": FLAGS.download}
    for folder in (evidence.folder, pages):
        folder.mkdir(parents=True, exist_ok=True)  # else hours of training come before the error
    study = Study(evidence, Engine(evidence, models_dir, data, FLAGS.mini_imagenet))
    planned = [(name, dataset) for name in names for dataset in datasets_of(name, FLAGS.scale, FLAGS.dataset)]
    absent = {each: line for each in planned if (line := _absent(each[1], data))}
    if len(absent) == len(planned):
        raise InputError(next(iter(absent.values())))
    import_tensorflow()  # only when the flags are right: it takes seconds
    present = [each for each in planned if each not in absent]
    tables = [table for name, dataset in present for table in EXPERIMENTS[name].declare(dataset, FLAGS.scale)]
    study.engine.expected = len(study.nets_to_come(tables))
    failed = []
    for name, dataset in planned:
        if (name, dataset) in absent:
            print(f"skipped: {name} on {dataset}: {absent[name, dataset]}")
            continue
        try:
            _run(study, name, dataset, pages)
        except Exception as error:
            if len(planned) == 1:
                raise
            if not isinstance(error, InputError):
                traceback.print_exc()
            failed.append(f"{name} on {dataset}: {error}")
    if failed:
        raise InputError(f"{len(failed)} of {len(planned)} experiments failed: {'; '.join(failed)}")


def _absent(dataset: str, data: dict[str, Any]) -> str:
    """Return the line that names data that are absent; empty where they are there."""
    name = Net(dataset, "none").config(FLAGS.scale)["dataset"]
    if name.startswith(FOLDER):
        if not FLAGS.mini_imagenet:
            return "expected --mini_imagenet=DIR, a folder of CLASS/*.jpg"
        name = FOLDER + FLAGS.mini_imagenet
    try:
        check_dataset_present(DataConfig(name, **data))
    except InputError as error:
        return str(error)
    return ""


def _run(study: Study, name: str, dataset: str, pages: Path) -> None:
    experiment = EXPERIMENTS[name]
    if experiment.measure:
        experiment.measure(study, dataset)
    page = _write(study, name, dataset, [study.fill(each) for each in experiment.declare(dataset, study.scale)], pages)
    print(f"\n{(pages / f'{page}.md').read_text()}\nwritten: {pages / page}.md, with its charts")
    print(f"== {name}: {len(study.engine.begun)} nets in {duration(study.engine.seconds)}")


def console() -> None:
    """Define the flags, and run the command."""
    for name, (default, text) in TEXTS.items():
        flags.DEFINE_string(name, default, text)
    for name, text in SWITCHES.items():
        flags.DEFINE_bool(name, False, text)
    for name in (*TEXTS, *SWITCHES):
        show_in_help(name)
    run(main, __doc__ or "")
