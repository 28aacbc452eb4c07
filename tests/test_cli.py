import dataclasses
import json
import re
import subprocess
import sys

import pytest

from wca_tf.attacks import ATTACKS
from wca_tf.config import EvaluateConfig, TrainConfig
from wca_tf.evaluation.measures import format_results

DATASETS = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn_cropped")
COVARIANCES = ("none", "isotropic", "anisotropic")
PARSE_ALL = """
import dataclasses, json, sys
from absl import flags
from wca_tf.cli.flags import config_from_flags, define_flags
from wca_tf.config import TrainConfig

define_flags(TrainConfig)
parsed = {}
for path in sys.argv[1:]:
    flags.FLAGS.unparse_flags()
    flags.FLAGS(["train", f"--flagfile={path}"])
    parsed[path] = dataclasses.asdict(config_from_flags(TrainConfig))
print(json.dumps(parsed))
"""


@pytest.fixture(scope="module")
def configs(root):
    """name -> TrainConfig of every file in configs/, through absl."""
    paths = sorted((root / "configs").glob("*.flags"))
    command = [sys.executable, "-c", PARSE_ALL, *map(str, paths)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    parsed = json.loads(done.stdout)
    return {path.stem: TrainConfig(**parsed[str(path)]) for path in paths}


def fails_in_one_line(command, directory, name, *arguments):
    """The error line of a command that ends at once with exit 2 and leaves nothing behind."""
    finished = []
    for _ in range(3):  # a busy machine may be slow once
        finished.append(command(name, *arguments, cwd=directory))
        if not 1 <= finished[-1].seconds < 3:
            break
    done = finished[-1]
    assert done.code == 2, done
    assert done.out == ""
    assert len(done.err.splitlines()) == 1, done.err
    assert done.err.startswith("error: ")
    assert list(directory.iterdir()) == []
    assert min(each.seconds for each in finished) < 1.0  # TensorFlow alone takes several
    return done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model_dir=m --epoch=3", "epoch"),
        ("--model_dir=m --epochs=three", "epochs"),
        ("--model_dir=m --epochs=0", "--epochs"),
        ("--model_dir=m --learning_rate=nan", "--learning_rate"),
        ("--model_dir=m --dataset=no_such_set --tfds_data_dir=data", "no_such_set"),
        ("--model_dir=m --dataset=folder:absent", "absent"),
        ("--model_dir=m --backbone=resnet19", "resnet19"),
        ("--model_dir=m --defence=wca:covariance=full", "full"),
        ("--model_dir=m stray", "stray"),
        ("--model_dir=m --flagfile=absent.flags", "absent.flags"),
        ("--model_dir=m --flagfile=.", "flagfile|[Dd]irectory"),
        ("", "--model_dir"),
        ("--model_dir=", "--model_dir"),
    ],
)
def test_a_wrong_training_command_ends_at_once_with_one_line(command, tmp_path, arguments, message):
    assert re.search(message, fails_in_one_line(command, tmp_path, "train", *arguments.split()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model_dir=m --attacks=pdg", "pdg"),
        ("--model_dir=m --attacks=pgd:steps=0", "steps"),
        ("--model_dir=m --attacks=", "--attacks"),
        ("--model_dir=m --attacks=pgd --epsilons=l2:0.5", "for attacks of linf"),
        ("--model_dir=m --attacks=z_margin:norm=l1", "l1"),
        ("--model_dir=m --attacks=cw:norm=linf", "norm=linf"),
        ("--model_dir=m --attacks=n_pixel:norm=linf", "norm=linf"),
        ("--model_dir=m --epsilons=0 --checklist", "epsilon above 0"),
        ("--model_dir=m --self_test=3", "self_test"),
        ("--model_dir=m --epsilons=-0.1", "-0.1"),
        ("--model_dir=m --epsilons=8/0", "8/0"),
        ("--model_dir=m --epsilon=0.1", "epsilon"),
        ("--model_dir=m --split=train", "split"),
        ("--model_dir=m stray", "stray"),
        ("--model_dir=m --flagfile=absent.flags", "absent.flags"),
        ("", "--model_dir"),
        ("--model_dir=no_such_directory", "no_such_directory"),
    ],
)
def test_a_wrong_evaluation_command_ends_at_once_with_one_line(command, tmp_path, arguments, message):
    assert re.search(message, fails_in_one_line(command, tmp_path, "evaluate", *arguments.split()))


@pytest.mark.parametrize(
    ("name", "config_class", "others"),
    [
        ("train", TrainConfig, ["model_dir"]),
        ("evaluate", EvaluateConfig, ["model_dir", "report_dir", "strict", "self_test"]),
    ],
)
def test_help_lists_every_flag_with_its_meaning(command, name, config_class, others):
    done = command(name, "--help")
    assert done.code in (0, 1)  # absl's own is 1
    assert done.err == ""
    assert done.seconds < 5
    text = " ".join(done.out.split())
    for flag in [field.name for field in dataclasses.fields(config_class)] + others:
        assert re.search(rf"--(\[no\])?{flag}: ", text), flag
    for field in dataclasses.fields(config_class):
        assert " ".join(field.metadata["help"].split()) in text, field.name
    assert f"bin/{name} --" in text
    if name == "evaluate":
        assert all(re.search(rf"\b{attack}\b", text) for attack in ATTACKS)


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_without_its_dependencies_a_command_says_to_run_quickstart(command, tmp_path, name):
    interpreter = (sys._base_executable, "-I", "-S")  # no site-packages
    done = command(name, "--model_dir=m", cwd=tmp_path, interpreter=interpreter)
    assert done.code == 2
    assert done.out == ""
    assert len(done.err.splitlines()) == 1, done.err
    assert done.err.startswith("error: ")
    assert f"bin/quickstart, then .venv/bin/python bin/{name}" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_every_dataset_has_a_config_for_every_covariance(configs, dataset, covariance):
    config = configs[f"{dataset}_{covariance}"]
    assert config.dataset == dataset
    defence = config.parsed_defence
    assert getattr(defence, "covariance", "none") == covariance
    assert defence.feature_dim == (256 if dataset == "cifar100" else 32)
    assert config.batch_size == 128
    assert config.epochs == (30 if dataset == "digits" else 600)
    in_colour = dataset in ("cifar10", "cifar100", "svhn_cropped")
    assert config.backbone == ("resnet18" if in_colour else "lenet_plus_plus")
    assert config.augmentation == ("crop_flip" if dataset.startswith("cifar") else "none")
    if covariance != "none" and dataset != "digits":
        assert config.learning_rate == (1e-2 if in_colour else 1e-4)
        assert defence.weight_decay == 1e-4


def test_configs_are_those_of_the_experiments_alone(configs):
    larger = ("cifar10_wide_resnet34_10", "imagenette", "mini_imagenet")
    ablation = {f"{dataset}_{covariance}" for dataset in DATASETS for covariance in COVARIANCES}
    assert set(configs) == ablation | {
        f"{net}_{covariance}" for net in larger for covariance in ("none", "anisotropic")
    }


def test_every_config_says_the_command_that_uses_it(root):
    for path in (root / "configs").glob("*.flags"):
        name = path.stem
        assert f"# command: bin/train --flagfile=configs/{name}.flags " in path.read_text()
        assert f"--model_dir=runs/{name}\n" in path.read_text()


def test_evaluate_works_from_another_directory_and_prints_the_table(command, trained, tmp_path):
    (tmp_path / "net").symlink_to(trained)
    (tmp_path / "my.flags").write_text("--attacks=fgsm\n--epsilons=0.1\n--num_examples=10\n--eot_samples=2\n")
    done = command("evaluate", "--flagfile=my.flags", "--model_dir=net", "--report_dir=out/report", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "error" not in done.err and "Traceback" not in done.err
    assert "cuda" not in done.err.lower()  # TensorFlow's start-up notes
    results = json.loads((tmp_path / "out" / "report" / "results.json").read_text())
    assert format_results(results) in done.out
    files = {"results.json", "examples.npz", "report.html", "model_card.md"}
    assert files <= {path.name for path in (tmp_path / "out" / "report").iterdir()}
    assert "report.html" in done.out


def test_an_error_found_after_tensorflow_was_loaded_is_one_line_too(command, tmp_path):
    done = command("train", "--model_dir=m", "--defence=wca:feature_dim=9", cwd=tmp_path)
    assert done.code == 2
    assert [line for line in done.err.splitlines() if line.startswith("error: ")] == done.err.splitlines()
    assert "feature_dim=9" in done.err
    assert list(tmp_path.iterdir()) == []


def test_an_attack_that_cannot_be_built_is_one_line_and_nothing_is_written(command, trained, contents, tmp_path):
    before = contents(trained)
    done = command("evaluate", f"--model_dir={trained}", "--attacks=fgsm,transfer:source=/nowhere", cwd=tmp_path)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1, done.err
    assert done.err.startswith("error: ") and "/nowhere" in done.err
    assert contents(trained) == before
