import dataclasses
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from attack_nets import At, run
from toy_models import convolution, make_model, toy_data

from wca_tf.attacks import parse_attack
from wca_tf.core.errors import DivergedError, InputError
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.data.batches import to_float
from wca_tf.data.sources import load_examples
from wca_tf.defences import Defence
from wca_tf.defences.adversarial_training import AdversarialTraining
from wca_tf.nets.adapter import adapt
from wca_tf.nets.model_files import load_model
from wca_tf.nets.noise import ActivationNoise
from wca_tf.nets.noisy_net import NoisyNet
from wca_tf.runs import epoch_recorder
from wca_tf.runs.catastrophic_overfitting import CatastrophicOverfitting
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.training import train

COVARIANCES = pytest.mark.parametrize("covariance", ["none", "anisotropic"])
EPSILON = 0.1


def weights_of(model):
    return [np.asarray(weight) for weight in model.trainable_weights]


def adversary(kind, epsilon):
    return AdversarialTraining(parse_attack("pgd"), epsilon, mixed=kind == "ct_at")


def attacked(model, images, labels, kind="at"):
    """What the next step trains on, asked of the adversary as the step asks it."""
    ask = tf.function(lambda *batch: adversary(kind, EPSILON)(model, *batch, None)[:2])
    return [part.numpy() for part in ask(tf.constant(images), tf.constant(labels))]


@COVARIANCES
def test_attacked_images_are_those_of_pgd_on_the_net_of_the_step(covariance):
    images, labels = toy_data(12)
    model = make_model(covariance, backbone=convolution())
    adversarial, same_labels = attacked(model, images, labels)
    pgd = adversary("at", EPSILON).attack
    seed = fold_in(make_seed(model.seed), 2, 0)
    expected = run(At(pgd, EPSILON), adapt(model), images, labels, seed=seed)
    np.testing.assert_allclose(adversarial, expected, atol=2e-6)
    assert np.array_equal(same_labels, labels)
    assert (pgd.steps, pgd.relative_step_size, pgd.eot_samples, pgd.random_start) == (10, 0.1, 50, True)


@COVARIANCES
def test_a_step_on_attacked_images_is_a_clean_step_on_them(covariance):
    images, labels = toy_data(16)
    hardened, plain = (make_model(covariance, backbone=convolution()) for _ in range(2))
    hardened.adversary = adversary("at", EPSILON)
    adversarial, _ = attacked(plain, images, labels)
    hardened.fit(images, labels, batch_size=16, shuffle=False, verbose=0)
    plain.fit(adversarial, labels, batch_size=16, shuffle=False, verbose=0)
    for one, other in zip(weights_of(hardened), weights_of(plain), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_mixed_step_has_the_clean_images_and_the_attacked_ones_in_equal_parts():
    images, labels = toy_data(8)
    model = make_model("anisotropic")
    both, doubled = attacked(model, images, labels, "ct_at")
    np.testing.assert_array_equal(both[0::2], images)
    np.testing.assert_array_equal(both[1::2], attacked(model, images, labels)[0])
    np.testing.assert_array_equal(doubled, np.repeat(labels, 2))


@COVARIANCES
def test_a_radius_of_zero_is_training_on_clean_images(covariance):
    images, labels = toy_data(32)
    hardened, plain = (make_model(covariance) for _ in range(2))
    hardened.adversary = adversary("at", 0.0)
    for model in (hardened, plain):
        model.fit(images, labels, batch_size=16, epochs=2, shuffle=False, verbose=0)
    for one, other in zip(weights_of(hardened), weights_of(plain), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_each_step_starts_elsewhere_and_equal_steps_are_equal():
    images, labels = toy_data(8)
    model = make_model("none")
    first, again = attacked(model, images, labels)[0], attacked(model, images, labels)[0]
    model.optimizer.iterations.assign(1)
    next_step = attacked(model, images, labels)[0]
    assert np.array_equal(first, again)
    assert not np.array_equal(first, next_step)


def test_attacking_leaves_batch_statistics_and_the_noises_stream():
    images, labels = toy_data(8)
    model = make_model("anisotropic", backbone=convolution())
    before = [weight.numpy() for weight in model.weights]
    attacked(model, images, labels)
    assert all(np.array_equal(old, new.numpy()) for old, new in zip(before, model.weights, strict=True))


def test_adversarial_training_makes_the_net_withstand_pgd_better():
    """Beside its bright rows, each class has a faint pattern on every pixel, which an attack can undo."""
    images, labels = toy_data(96)
    patterns = np.random.default_rng(1).choice([-0.03, 0.03], (3, 8, 8, 1)).astype(np.float32)
    images = np.clip(0.35 + 0.3 * images + patterns[labels], 0, 1)
    hit = {}
    for kind in ("none", "at"):
        model = make_model("anisotropic", learning_rate=0.01, weight_decay=0.01)
        model.adversary = adversary(kind, 0.075) if kind != "none" else None
        model.fit(images, labels, batch_size=32, epochs=30, verbose=0)
        target = adapt(model)
        attack = dataclasses.replace(adversary("at", 0.075).attack, objective="margin", steps=40)
        adversarial = run(At(attack, 0.075), target, images, labels)
        hit[kind] = np.mean(tf.argmax(target.noise_free_logits(target.features(adversarial)), 1).numpy() == labels)
    assert hit["at"] > hit["none"] + 0.05, hit


@pytest.mark.slow
def test_a_killed_adversarial_run_ends_with_the_same_weights(tmp_path, tiny_config, monkeypatch):
    config = dataclasses.replace(tiny_config, max_train_examples=64, epochs=2, adversarial="ct_at")
    train(config, tmp_path / "whole")
    shutil.rmtree(tmp_path / "killed", ignore_errors=True)

    save_model, saved = epoch_recorder.save_model, []

    def save_and_die(model, path):
        save_model(model, path)
        saved.append(path.name)
        if path.name == "latest.keras" and saved.count("latest.keras") == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(epoch_recorder, "save_model", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "killed")
    monkeypatch.undo()
    train(config, tmp_path / "killed")
    whole, resumed = (load_model(tmp_path / name / "last.keras") for name in ("whole", "killed"))
    for one, other in zip(whole.variables, resumed.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("epsilon", ["1.5", "-0.1", "8/0", "much", "nan", "0"])
def test_a_radius_that_is_none_is_refused(epsilon):
    with pytest.raises(InputError, match="--adversarial_epsilon"):
        TrainConfig(adversarial="at", adversarial_epsilon=epsilon)


@pytest.mark.parametrize("unused", [{"adversarial_epsilon": "0.1"}, {"adversarial_attack": "fgsm_rs"}])
def test_options_of_adversarial_training_without_it_are_refused(unused):
    """The net would be undefended, against what its command says."""
    [name] = unused
    with pytest.raises(InputError, match=f"expected --adversarial=at or ct_at with --{name}"):
        TrainConfig(**unused)
    assert TrainConfig(adversarial="at", **unused)


@dataclasses.dataclass(frozen=True)
class NoiseBefore(Defence):
    """Noise on the images: whose logits no one knows to be Gaussian."""

    def build(self, request):
        images = keras.Input(request.image_shape)
        features = keras.layers.Flatten()(ActivationNoise(0.1)(images))
        return NoisyNet(keras.Model(images, features), **request.arguments())


@pytest.mark.parametrize(("attack", "message"), [("transfer:source=absent", "absent"), ("z_margin", "z_margin")])
def test_an_attack_that_the_net_does_not_allow_is_refused_at_once(tmp_path, tiny_config, attack, message):
    with pytest.raises(InputError, match=message):
        config = dataclasses.replace(
            tiny_config, defence=f"{__name__}:NoiseBefore", adversarial="at", adversarial_attack=attack
        )
        train(config, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
@pytest.mark.parametrize("defence", ["wca", "pni"])
def test_training_may_be_on_images_attacked_on_another_net(tmp_path, tiny_config, trained, defence):
    attack = f"transfer:source={trained}:steps=1"  # so few steps that its overfitting is watched
    config = dataclasses.replace(
        tiny_config, epochs=1, defence=defence, adversarial="at", adversarial_attack=attack, adversarial_epsilon="0.01"
    )
    assert train(config, tmp_path / "model")["epoch"] == 1


# Fast adversarial training


def test_fgsm_rs_is_a_step_of_a_quarter_more_than_the_radius_from_a_random_start():
    model, (images, labels) = make_model(), toy_data(6)
    found = run(At(parse_attack("fgsm_rs", eot_samples=2), 0.1), adapt(model), images, labels)
    pgd = At(parse_attack("pgd:steps=1:relative_step_size=1.25", eot_samples=2), 0.1)
    np.testing.assert_array_equal(found, run(pgd, adapt(model), images, labels))
    assert np.abs(found - images).max() <= 0.1 + 1e-6


def fast(tiny_config, epochs):
    return dataclasses.replace(
        tiny_config,
        adversarial="at",
        adversarial_attack="fgsm_rs:eot_samples=1",
        adversarial_epsilon="0.1",
        epochs=epochs,
    )


def test_training_ends_before_the_epoch_in_which_pgd_breaks_the_net(tmp_path, tiny_config, capsys):
    """The first epoch's accuracy under PGD is written as if it were 1, so that the second falls below it."""
    directory, config = ModelDirectory(tmp_path), fast(tiny_config, epochs=3)
    kill_after_an_epoch(config, tmp_path)
    [line] = directory.read_metrics()
    assert 0 <= line["robust_accuracy"] <= line["trained_attack_accuracy"] < 0.9
    directory.write_metrics([{**line, "robust_accuracy": 1.0}])
    first = load_model(directory.backup).get_weights()
    train(config, tmp_path)
    assert "catastrophic overfitting in epoch 2" in capsys.readouterr().out
    assert len(directory.read_metrics()) == 1
    for mine, its in zip(load_model(directory.last).get_weights(), first, strict=True):
        np.testing.assert_array_equal(mine, its)
    train(config, tmp_path)
    assert "nothing to do" in capsys.readouterr().out


def test_a_net_that_resists_the_attack_of_training_alone_is_an_error(tmp_path, tiny_config):
    """The attack of training changes almost nothing, and PGD of the same radius everything."""
    weak = "fgsm_rs:eot_samples=1:relative_step_size=0.000001:random_start=false"
    changes = {"defence": "none", "adversarial_attack": weak, "adversarial_epsilon": "0.5"}
    config = dataclasses.replace(fast(tiny_config, epochs=3), **changes)
    with pytest.raises(DivergedError, match="catastrophic overfitting in epoch 1: on 256 training images") as raised:
        train(config, tmp_path)
    assert "\n" not in str(raised.value)
    assert not ModelDirectory(tmp_path).read_metrics()


def kill_after_an_epoch(config, path):
    """Train, and die when the first epoch is written."""

    class Killed(Exception):
        pass

    ended = epoch_recorder.EpochRecorder.on_epoch_end

    def killed(recorder, epoch, logs=None):
        ended(recorder, epoch, logs)
        raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(epoch_recorder.EpochRecorder, "on_epoch_end", killed)
        with pytest.raises(Killed):
            train(config, path)


def test_the_accuracy_under_pgd_is_measured_alike_whether_a_run_was_killed_or_not(tmp_path, tiny_config):
    config = fast(tiny_config, epochs=2)
    kill_after_an_epoch(config, tmp_path / "parts")
    for name in ("parts", "whole"):
        train(config, tmp_path / name)
    parts, whole = (ModelDirectory(tmp_path / name).read_metrics() for name in ("parts", "whole"))
    assert [line["robust_accuracy"] for line in parts] == [line["robust_accuracy"] for line in whole]


def test_a_net_with_noise_in_its_layers_is_judged_by_draws_of_its_own(tmp_path, tiny_config):
    config = dataclasses.replace(tiny_config, defence="smoothing", epochs=2)
    train(config, tmp_path)
    net = ModelDirectory(tmp_path).load_best()
    examples = load_examples(config, "train")
    probe = CatastrophicOverfitting(examples, parse_attack("fgsm_rs:eot_samples=1"), 0.05, [])
    probe.set_model(net)
    probe.target = net.target()
    found = probe._accuracy(probe.probe)
    images = to_float(tf.constant(probe.images))
    expected = probe.probe(net, images, probe.labels, epsilon=0.05).probability_correct
    assert 0.05 < found < 0.95  # else the test says little
    # 256 images of 20 draws, and of the 200 draws of the judge
    assert found == pytest.approx(expected.mean(), abs=4 * np.sqrt(0.25 / 256 / 20 + 0.25 / 256 / 200))


# No training at all


def test_no_epochs_keep_the_net_of_another_run_and_add_the_noise(tmp_path, tiny_config):
    plain = dataclasses.replace(tiny_config, defence="none:feature_dim=10", epochs=1)
    train(plain, tmp_path / "plain")
    config = dataclasses.replace(
        plain, defence="rfd:feature_dim=10:deviation=2", epochs=0, initial_weights=str(tmp_path / "plain")
    )
    best = train(config, tmp_path / "noisy")
    assert best["epoch"] == 0 and 0 <= best["val_accuracy"] <= 1
    mine, its = (load_model(tmp_path / name / "model.keras") for name in ("noisy", "plain"))
    images = np.random.default_rng(0).random((4, *mine.backbone.input_shape[1:]), np.float32)
    np.testing.assert_array_equal(mine.noise_free_logits(images), its.noise_free_logits(images))
    assert np.abs(mine.logits(images, make_seed(0)) - mine.noise_free_logits(images)).max() > 0.1


def test_no_epochs_need_a_net(fails_in_one_line, tmp_path):
    assert "--initial_weights" in fails_in_one_line(tmp_path, "train", "--epochs=0", "--model_dir=x")
