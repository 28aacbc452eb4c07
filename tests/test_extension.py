"""What is added from a module of its own is trained, evaluated, reported and exported as what is inside."""

import json

import pytest
from evaluation_nets import read_strictly

SPSA = '''
"""SPSA (Uesato et al., ICML 2018): gradients estimated from differences along random signs; a black box."""

import dataclasses

import tensorflow as tf

from wca_tf.attacks import BallAttack, option
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.gradients import survival
from wca_tf.seeds import fold_in, uniform_by_index


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
            return survival(target, target.features(points), batch, fold_in(seed, 0), self.eot_samples).margin

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
    assert own["zero_gradient_share"] is None  # a black box
    assert text in done.out and text.replace(":", ":<wbr>") in (report / "report.html").read_text()
    done = command("evaluate", "--attacks=fgsm", *shared, cwd=tmp_path)
    assert done.code == 0, done.err
    assert [attack["name"] for attack in json.loads((report / "results.json").read_text())["attacks"]] == [text, "fgsm"]


@pytest.mark.parametrize(
    ("attack", "told"),
    [
        ("spsa:SPSA:step=3", "an option among"),
        ("spsa:SPSA:steps=0", "steps from 1"),
        ("spsa:SSPA", "spsa:SSPA to be importable"),
        ("nowhere.at_all:SPSA", "nowhere.at_all:SPSA to be importable"),
        ("json:JSONDecoder", "to derive from wca_tf.attacks.attack.Attack"),
    ],
)
def test_a_wrong_attack_of_a_users_own_is_one_line(trained, command, tmp_path, attack, told):
    (tmp_path / "spsa.py").write_text(SPSA)
    done = command("evaluate", f"--model_dir={trained}", f"--attacks={attack}", cwd=tmp_path)
    assert done.code == 2
    [line] = done.err.strip().splitlines()
    assert line.startswith("error: ") and told in line
