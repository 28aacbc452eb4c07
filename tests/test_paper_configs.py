"""Every file in configs/ trains: its net, on a few small images that this file makes."""

import dataclasses
import functools
import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

from reproduce.nets import VARIANTS, settings
from wca_tf.data.batches import evaluation_batches
from wca_tf.data.examples import Examples
from wca_tf.defences import defence_names, parse_defence
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.new_model import new_model

NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.flags"))
DATASETS = {  # dataset -> (channels, classes)
    "digits": (1, 10),
    "mnist": (1, 10),
    "fashion_mnist": (1, 10),
    "cifar10": (3, 10),
    "cifar100": (3, 100),
    "svhn_cropped": (3, 10),
    "imagenette/160px-v2": (3, 10),
    "folder:mini_imagenet": (3, 100),
}
SIZES = {"lenet_plus_plus": 25, "resnet18": 8, "resnet18_imagenet": 32, "wide_resnet34_10": 8}
ABLATION = ("cifar10", "cifar100", "svhn_cropped", "fashion_mnist")  # the paper's, with isotropic noise too
OTHERS = ("mnist", "imagenette", "mini_imagenet", "cifar10_wide_resnet34_10")
BATCH_SIZE = 2
STEPS = 2

PARSE_ALL = """
import dataclasses, json, sys
from absl import flags
from wca_tf.cli.flags import config_from_flags, define_flags
from wca_tf.runs.config import TrainConfig

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
    return parsed_files(root, root / "configs")


def parsed_files(root, directory):
    paths = sorted(directory.glob("*.flags"))
    command = [sys.executable, "-c", PARSE_ALL, *map(str, paths)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    parsed = json.loads(done.stdout)
    return {path.stem: TrainConfig(**parsed[str(path)]) for path in paths}


def test_every_other_defence_has_a_flag_file_with_adversarial_training(root):
    found = parsed_files(root, root / "configs" / "defences")
    assert found.keys() == set(defence_names()) - {"none", "wca"}
    for name, config in found.items():
        options = VARIANTS.get(f"baseline_{name}", {"defence": name})  # of the experiment "defences", where it has it
        assert config.parsed_defence == parse_defence(options["defence"]) and config.adversarial == "at"
    assert {name for name in found if f"baseline_{name}" not in VARIANTS} == {"random_ensemble"}


def random_examples(size, channels, classes):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (BATCH_SIZE * STEPS, size, size, channels), np.uint8)
    return Examples(images, rng.integers(0, classes, len(images)), tuple(map(str, range(classes))))


@functools.cache
def trained(config, channels, classes):
    """(metrics of the last step, paths of all weights, paths of those that no step moved) of a net, once for each."""
    examples = random_examples(SIZES[config.backbone], channels, classes)
    model = new_model(config, examples)
    model.run_eagerly = True  # to make a graph takes longer than the steps
    before = {variable.path: variable.numpy() for variable in model.trainable_variables}
    for images, labels, _ in evaluation_batches(examples, BATCH_SIZE):
        metrics = model.train_on_batch(images, labels, return_dict=True)
    still = {variable.path for variable in model.trainable_variables if np.all(variable == before[variable.path])}
    return metrics, before.keys(), still


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.slow] if not name.startswith(("digits", "fashion_mnist", "cifar100_aniso")) else []
        )
        for name in NAMES
    ],
)
def test_a_config_trains_every_weight_of_its_net(configs, name):
    config = configs[name]
    here = {"dataset": "made here", "image_size": 0, "augmentation": "none", "batch_size": BATCH_SIZE, "epochs": 1}
    metrics, paths, still = trained(dataclasses.replace(config, **here), *DATASETS[config.dataset])
    assert {"loss", "ce", "penalty", "accuracy"} <= metrics.keys()
    assert all(np.isfinite(value) for value in metrics.values()), metrics
    assert not still
    assert any(path.endswith("scale_vector") for path in paths) == config.defence.startswith("wca")


@pytest.mark.parametrize("name", NAMES)
def test_a_flag_file_says_what_the_experiments_train(configs, name):
    dataset, _, variant = name.rpartition("_")
    dataset = dataset.replace("_resnet34_10", "")
    assert TrainConfig(**settings(dataset, variant, "paper")) == configs[name]


@pytest.mark.parametrize("experiment", ABLATION + OTHERS)
def test_every_experiment_of_the_paper_has_an_undefended_and_a_defended_net(configs, experiment):
    defended = ("isotropic", "anisotropic") if experiment in ABLATION else ("anisotropic",)
    undefended = configs[f"{experiment}_none"]
    assert (undefended.learning_rate, undefended.parsed_defence.weight_decay) == (1e-3, 0)
    assert undefended.learning_rate_schedule == "constant"
    for covariance in defended:
        config = configs[f"{experiment}_{covariance}"]
        same = {"learning_rate": 1e-3, "defence": undefended.defence, "learning_rate_schedule": "constant"}
        assert dataclasses.replace(config, **same) == undefended
        defence = config.parsed_defence
        assert config.learning_rate == (1e-4 if config.backbone == "lenet_plus_plus" else 1e-2)
        assert (defence.weight_decay, defence.covariance) == (1e-4, covariance)
        assert (config.batch_size, config.epochs) == (128, 600)
        assert (
            defence.feature_dim
            == undefended.parsed_defence.feature_dim
            == (256 if DATASETS[config.dataset][1] == 100 else 32)
        )


@pytest.mark.parametrize(
    ("experiment", "backbone", "image_size"),
    [
        ("cifar10_wide_resnet34_10", "wide_resnet34_10", 0),
        ("imagenette", "resnet18_imagenet", 160),
        ("mini_imagenet", "resnet18_imagenet", 84),
    ],
)
def test_larger_nets_and_images_have_their_backbone(configs, experiment, backbone, image_size):
    config = configs[f"{experiment}_anisotropic"]
    assert (config.backbone, config.image_size, config.augmentation) == (backbone, image_size, "crop_flip")


def test_every_config_says_the_command_that_uses_it(root):
    for path in (root / "configs").glob("*.flags"):
        name = path.stem
        assert f"# command: bin/train --flagfile=configs/{name}.flags " in path.read_text()
        assert f"--model_dir=runs/{name}\n" in path.read_text()
