"""What is added from a module of its own is trained, evaluated, reported and exported as what is inside."""

import importlib
import json

import numpy as np
import pytest
from evaluation_nets import read_strictly
from prediction_server import ServedModel

from wca_tf.core.errors import InputError
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures import registry
from wca_tf.evaluation.measures.measure import Measure
from wca_tf.evaluation.measures.registry import format_results
from wca_tf.evaluation.runner import evaluate

SPSA = '''
"""SPSA (Uesato et al., ICML 2018): gradients estimated from differences along random signs; a black box."""

import dataclasses

import tensorflow as tf

from wca_tf.attacks import BallAttack, option
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.gradients import score_images
from wca_tf.core.seeds import fold_in, uniform_by_index


@dataclasses.dataclass(frozen=True)
class SPSA(BallAttack):
    steps: int = option(20, "steps along the signs of an estimate")
    samples: int = option(32, "pairs of points of an estimate")
    width: float = option(0.01, "from the image to a point of a pair", maximum=1)

    @property
    def passes(self):
        return 2 * self.steps * self.samples

    def perturb(self, target, batch, epsilon, seed):
        ball, images = BALLS[self.norm], batch.images

        def margin(points):
            return score_images(target, target.features(points), batch, fold_in(seed, 0), self.eot_samples).margin

        for step in tf.range(self.steps):
            estimate = tf.zeros_like(images)
            for sample in tf.range(self.samples):
                shape = (1, *images.shape[1:])
                uniform = uniform_by_index(fold_in(seed, 1, step, sample), batch.indices, shape)[:, 0]
                signs = tf.where(uniform < 0.5, -1.0, 1.0)
                rise = margin(images + self.width * signs) - margin(images - self.width * signs)
                estimate -= rise[:, tf.newaxis, tf.newaxis, tf.newaxis] * signs
            moved = images + epsilon / 4 * ball.steepest_step(estimate)
            images = tf.clip_by_value(batch.images + ball.project(moved - batch.images, epsilon), 0.0, 1.0)
        return images
'''


@pytest.mark.slow
def test_an_attack_of_a_users_own_is_evaluated_beside_the_others(trained, command, tmp_path):
    """One file: SPSA, by its module and class, from the working directory; then another attack in addition."""
    (tmp_path / "spsa.py").write_text(SPSA)
    report = tmp_path / "report"
    text = "spsa:SPSA:steps=6:samples=16"
    shared = (f"--model_dir={trained}", "--epsilons=0.2", "--num_examples=20", f"--report_dir={report}")
    done = command("evaluate", f"--attacks={text}", *shared, cwd=tmp_path)
    assert done.code == 0, done.err
    [own] = read_strictly(report / "results.json")["attacks"]
    assert (own["name"], own["config"]["kind"], own["config"]["width"]) == (text, "own", 0.01)
    assert (
        own["expected_accuracy"]["value"]
        < read_strictly(report / "results.json")["clean"]["expected_accuracy"]["value"]
    )
    assert own["no_useful_gradient_share"] is None  # a black box
    assert text in done.out and text.replace(":", ":<wbr>") in (report / "report.html").read_text()
    refused = command("evaluate", "--attacks=fgsm", *shared, cwd=tmp_path)
    assert refused.code == 2 and "--modules='spsa'" in refused.err
    done = command("evaluate", "--attacks=fgsm", "--modules=spsa", *shared, cwd=tmp_path)
    assert done.code == 0, done.err
    assert [attack["name"] for attack in json.loads((report / "results.json").read_text())["attacks"]] == [text, "fgsm"]


MARGINS = '''
"""A toy measure: the median margin of the noise-free net on clean images."""

import numpy as np

from wca_tf.evaluation.measures.measure import Measure
from wca_tf.evaluation.report.sections import ReportSection


class MedianMargin(Measure):
    name = "median_margin"

    def measure(self, context):
        target, images = context.target, context.examples.images / np.float32(255)
        ordered = np.sort(target.noise_free_logits(target.features(images)), axis=1)
        return float(np.median(ordered[:, -1] - ordered[:, -2]))

    def lines(self, results):
        return [f"median margin {results['median_margin']:.3g}"]

    def section(self, results):
        margin = results["median_margin"]
        return ReportSection("Margins", [f"The median margin is {margin:.3g}."], card=f"Median margin {margin:.3g}.")
'''


def test_a_measure_of_a_users_own_is_in_results_table_report_and_card(trained, tmp_path, monkeypatch):
    """One file, and a call: what was evaluated before gets it in addition."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "margins.py").write_text(MARGINS)
    config = EvaluateConfig("fgsm", "0.1", num_examples=20)
    before = evaluate(config, trained, tmp_path / "report")
    monkeypatch.setattr(registry, "_registered", [])
    registry.register_measure(importlib.import_module("margins").MedianMargin())
    results = evaluate(config, trained, tmp_path / "report")
    assert {key: results[key] for key in before if key != "seconds"} == without(before, "seconds")
    margin = results["median_margin"]
    assert margin > 0 and read_strictly(tmp_path / "report" / "results.json")["median_margin"] == margin
    assert f"median margin {margin:.3g}" in format_results(results)
    assert f"The median margin is {margin:.3g}." in (tmp_path / "report" / "report.html").read_text()
    assert f"Median margin {margin:.3g}" in (tmp_path / "report" / "model_card.md").read_text()
    assert evaluate(config, trained, tmp_path / "report") == results  # nothing to do


def test_a_measure_with_a_key_of_another_is_refused():
    class Clean(Measure):
        name = "clean"

        def measure(self, context):
            return 1.0

    with pytest.raises(InputError, match="name of its own, received one with clean"):
        registry.register_measure(Clean())


def without(results, key):
    return {name: value for name, value in results.items() if name != key}


WEIGHT_NOISE = '''
"""A toy defence: Gaussian noise on the kernel of every convolution."""

import dataclasses

import keras

from wca_tf.nets.backbones.layer_factory import LayerFactory
from wca_tf.defences import Defence, option
from wca_tf.nets.noisy_weights import NoisyConvolution
from wca_tf.nets.noisy_net import NoisyNet


@keras.saving.register_keras_serializable("toy")
class Convolution(NoisyConvolution):
    def __init__(self, *args, deviation, **kwargs):
        super().__init__(*args, **kwargs)
        self.deviation = deviation

    def noise_scale(self):
        return self.deviation

    def get_config(self):
        return {**super().get_config(), "deviation": self.deviation}


class NoisyLayers(LayerFactory):
    def __init__(self, precision, deviation):
        super().__init__(precision)
        self.deviation = deviation

    def convolution(self, inputs, filters, kernel_size, **options):
        layer = Convolution(filters, kernel_size, deviation=self.deviation, dtype=self.precision, **options)
        return layer(inputs)


@dataclasses.dataclass(frozen=True)
class WeightNoise(Defence):
    deviation: float = option(0.02, "of each weight", minimum=0)

    def build(self, request):
        backbone = request.make_backbone(lambda precision: NoisyLayers(precision, self.deviation))
        return NoisyNet(backbone, **request.arguments())
'''


@pytest.mark.slow
def test_a_defence_of_a_users_own_is_trained_evaluated_and_exported(command, tmp_path):
    """One file: noise on weights, which all images of a draw share."""
    (tmp_path / "toy.py").write_text(WEIGHT_NOISE)
    text = "toy:WeightNoise:deviation=0.01"
    small = ("--image_size=25", "--max_train_examples=256", "--batch_size=32", "--epochs=10")
    done = command("train", f"--defence={text}", "--model_dir=model", *small, cwd=tmp_path)
    assert done.code == 0, done.err
    assert (tmp_path / "model" / "model.keras").exists()
    attacks = "fgsm,pgd:steps=2,square:queries=10"
    shared = ("--model_dir=model", f"--attacks={attacks}", "--epsilons=0.1", "--num_examples=20", "--eot_samples=2")
    shared = (*shared, "--modules=toy")
    done = command("evaluate", *shared, "--report_dir=report", cwd=tmp_path)
    assert done.code == 0, done.err
    results = read_strictly(tmp_path / "report" / "results.json")
    assert results["training"]["defence"] == text and text in done.out and results["modules"] == ["toy"]
    clean, *attacked = (each["expected_accuracy"]["value"] for each in (results["clean"], *results["attacks"]))
    assert clean > 0.5 and all(left < clean for left in attacked)
    assert text in (tmp_path / "report" / "report.html").read_text()
    again = command("evaluate", *shared, "--report_dir=again", cwd=tmp_path)
    assert again.code == 0
    numbers = read_strictly(tmp_path / "again" / "results.json")["attacks"]
    assert [each["expected_accuracy"] for each in numbers] == [a["expected_accuracy"] for a in results["attacks"]]
    done = command("export", "--model_dir=model", "--export_dir=served", "--modules=toy", cwd=tmp_path)
    assert done.code == 0, done.err
    served = ServedModel(tmp_path / "served" / "1")
    images = np.random.default_rng(0).integers(0, 256, (2, 25, 25, 1), np.uint8)
    single = np.stack([served("serving_default", images=images)["logits"] for _ in range(20)])
    assert len(np.unique(single, axis=0)) == 20  # fresh draws
    means = np.stack([served("averaged", images=images, n_samples=np.int32(100))["logits"] for _ in range(20)])
    assert 5 < np.std(single, axis=0).mean() / np.std(means, axis=0).mean() < 20  # 10, the root of 100
    assert json.loads((tmp_path / "served" / "1" / "assets.extra" / "manifest.json").read_text())["signatures"] == [
        "serving_default",
        "averaged",
        "noise_free",
        "image_bytes",
    ]
    assert "signatures: serving_default averaged noise_free image_bytes" in done.out


TWO_MODULES = {
    "toy_net.py": """
import keras
from wca_tf.nets.bottleneck_net import BottleneckNet


@keras.saving.register_keras_serializable("toy")
class ToyNet(BottleneckNet):
    pass
""",
    "toy_declaration.py": """
import dataclasses
from wca_tf.defences import Defence


@dataclasses.dataclass(frozen=True)
class Toy(Defence):
    def build(self, request):
        from toy_net import ToyNet

        return ToyNet(request.make_backbone(), **request.arguments())
""",
}


@pytest.mark.slow
def test_a_net_in_another_module_than_its_declaration_needs_both(command, tmp_path):
    for name, text in TWO_MODULES.items():
        (tmp_path / name).write_text(text)
    small = ("--image_size=25", "--max_train_examples=64", "--batch_size=32", "--epochs=1")
    done = command("train", "--defence=toy_declaration:Toy", "--model_dir=model", *small, cwd=tmp_path)
    assert done.code == 0, done.err
    for asked in (("evaluate", "--attacks=fgsm", "--num_examples=5"), ("export", "--export_dir=served")):
        refused = command(*asked, "--model_dir=model", cwd=tmp_path)
        advice = "--modules='toy_declaration,toy_net'"
        assert refused.code == 2 and advice in refused.err
        done = command(*asked, "--model_dir=model", advice.replace("'", ""), cwd=tmp_path)
        assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("defence", "told"),
    [
        ("toy:WeightNoise:deviation=-1", "deviation from 0"),
        ("toy:WeightNoise:scale=1", "an option among"),
        ("toy:Noise", "toy:Noise to be importable"),
        (".toy:WeightNoise", ".toy:WeightNoise to be importable"),
        ("json:JSONDecoder", "to derive from wca_tf.defences.defence.Defence"),
        ("wcanet", "a defence among adv_bnn, ctrw, l2p, none"),
    ],
)
def test_a_wrong_defence_is_one_line(command, tmp_path, defence, told):
    (tmp_path / "toy.py").write_text(WEIGHT_NOISE)
    done = command("train", f"--defence={defence}", "--model_dir=model", cwd=tmp_path)
    assert done.code == 2 and not (tmp_path / "model").exists()
    [line] = done.err.strip().splitlines()
    assert line.startswith("error: --defence: ") and told in line


@pytest.mark.parametrize(
    ("attack", "told"),
    [
        ("spsa:SPSA:step=3", "an option among"),
        ("spsa:SPSA:steps=0", "steps from 1"),
        ("spsa:SSPA", "spsa:SSPA to be importable"),
        ("nowhere.at_all:SPSA", "nowhere.at_all:SPSA to be importable"),
        ("broken:SPSA", "broken:SPSA to be importable: division by zero"),
        ("leaving:SPSA", "leaving:SPSA to be importable"),
        ("json:JSONDecoder", "to derive from wca_tf.attacks.attack.Attack"),
    ],
)
def test_a_wrong_attack_of_a_users_own_is_one_line(trained, command, tmp_path, attack, told):
    for name, text in {"spsa": SPSA, "broken": "1 / 0", "leaving": "raise SystemExit(7)"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    done = command("evaluate", f"--model_dir={trained}", f"--attacks={attack}", cwd=tmp_path)
    assert done.code == 2
    [line] = done.err.strip().splitlines()
    assert line.startswith("error: ") and told in line
