"""The paper's controls that change what is trained or asked: E2, E3, and short runs on all images."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from attack_nets import linear_target, normal, random_images, seeded_net
from scipy import stats
from toy_models import convolution, make_model, toy_data

from wca_tf.core.errors import InputError
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.runner import evaluate
from wca_tf.nets.adapter import adapt
from wca_tf.nets.model_files import load_model
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.runs import epoch_recorder
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.optimizer import SCHEDULES, SmoothedCrossEntropy
from wca_tf.runs.training import train

# E2


def test_averaged_logits_have_the_covariance_over_the_number_of_draws():
    scale = normal(3, 4)
    target = linear_target(normal(6, 3, seed=1), scale)
    features = target.features(random_images(1))
    draws = target.averaged(10).logits(features, make_seed(0), 20_000).numpy()[:, 0]
    expected = scale @ scale.T / 10
    # The deviation of an estimated covariance of n normal draws: sqrt((K_ii K_jj + K_ij²) / n).
    tolerance = 5 * np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / 20_000)
    assert (np.abs(np.cov(draws.T) - expected) < tolerance).all()
    np.testing.assert_allclose(
        draws.mean(0), target.noise_free_logits(features)[0], atol=5 * np.sqrt(expected.max() / 20_000)
    )


def test_one_averaged_draw_is_a_draw():
    target = linear_target(normal(6, 3, seed=1), normal(3, 4))
    features = target.features(random_images(5))
    np.testing.assert_array_equal(
        target.averaged(1).logits(features, make_seed(3), 2), target.logits(features, make_seed(3), 2)
    )


def test_noise_anywhere_is_averaged_over_passes():
    target, images = SampledTarget(seeded_net), random_images(3)
    averaged = target.averaged(4).logits(images, make_seed(1), 2).numpy()
    for draw in range(2):
        passes = target.logits(images, fold_in(make_seed(1), draw), 4).numpy()
        np.testing.assert_allclose(averaged[draw], passes.mean(axis=0), rtol=1e-5)


def test_an_evaluation_of_averaged_answers_has_the_exact_probability_of_their_noise(trained, tmp_path):
    config = EvaluateConfig("fgsm", "0.1", num_examples=20, average_draws=10)
    results = evaluate(config, trained, tmp_path / "report")
    assert results["config"]["average_draws"] == 10
    model = load_model(ModelDirectory(trained).best)
    scaled = adapt(model).averaged(10)
    np.testing.assert_allclose(scaled.logit_scale, model.logit_scale / np.sqrt(10), rtol=1e-6)
    with np.load(tmp_path / "report" / "examples.npz") as arrays:
        probability, z_margin = arrays["probability_correct"][0], arrays["z_margin"][0]
    nearest = stats.norm.cdf(z_margin)  # the union bound's nearest rival alone is an upper bound
    assert (probability <= nearest + 0.01).all()
    plain = evaluate(dataclasses.replace(config, average_draws=1), trained, tmp_path / "plain")
    assert plain["config"]["average_draws"] == 1
    with np.load(tmp_path / "plain" / "examples.npz") as arrays:
        np.testing.assert_allclose(z_margin, arrays["z_margin"][0] * np.sqrt(10), rtol=1e-4)
    with pytest.raises(InputError, match="average_draws=1, not 10"):
        evaluate(config, trained, tmp_path / "plain")


# E3


def noise_alone_on(source):
    return {"defence": "wca:noise_alone=true", "initial_weights": str(source)}


@pytest.fixture(scope="module")
def noise_alone(trained_undefended, tiny_config, tmp_path_factory):
    directory = tmp_path_factory.mktemp("alone") / "model"
    train(dataclasses.replace(tiny_config, epochs=2, **noise_alone_on(trained_undefended)), directory)
    return directory


def test_only_the_noise_is_trained_and_the_rest_is_the_undefended_net(noise_alone, trained_undefended):
    net, source = (load_model(ModelDirectory(path).best) for path in (noise_alone, trained_undefended))
    assert [weight.path.split("/")[-1] for weight in net.trainable_weights] == ["scale_vector"]
    for name in ("backbone", "bottleneck", "classifier"):
        mine, theirs = getattr(net, name).weights, getattr(source, name).weights
        assert len(mine) == len(theirs) > 0
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())
    images = random_images(4, shape=(25, 25, 1))
    np.testing.assert_allclose(net.features(images), source.features(images), rtol=1e-5)
    last = load_model(ModelDirectory(noise_alone).last)
    assert not np.allclose(last.noise.scale_tril.numpy(), np.eye(32), atol=1e-3)


def test_a_finished_run_of_noise_alone_knows_itself_wherever_its_source_is(noise_alone, tiny_config, capsys):
    train(dataclasses.replace(tiny_config, epochs=2, **noise_alone_on("moved/elsewhere")), noise_alone)
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(InputError, match="--initial_weights|--defence"):
        train(dataclasses.replace(tiny_config, epochs=2), noise_alone)


def test_a_run_from_other_weights_is_another_run(noise_alone, trained, tiny_config):
    with pytest.raises(InputError, match="from other weights than --initial_weights"):
        train(dataclasses.replace(tiny_config, epochs=2, **noise_alone_on(trained)), noise_alone)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initial_weights": "absent"}, "finished run.*absent"),
        ({"initial_weights": "UNFINISHED"}, "finished run"),
        ({"initial_weights": "UNDEFENDED", "defence": "wca:feature_dim=16"}, "bottleneck differs"),
    ],
)
def test_a_source_that_does_not_fit_is_refused_and_nothing_is_made(
    changes, message, tiny_config, trained_undefended, tmp_path
):
    unfinished = shutil.copytree(trained_undefended, tmp_path / "unfinished")
    (unfinished / "last.keras").unlink()
    paths = {"UNDEFENDED": str(trained_undefended), "UNFINISHED": str(unfinished)}
    changes = {**changes, "initial_weights": paths.get(changes["initial_weights"], changes["initial_weights"])}
    with pytest.raises(InputError, match=message):
        train(dataclasses.replace(tiny_config, **changes), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_constraint_on_the_noise_leaves_the_frozen_weights(tiny_config, trained_undefended, tmp_path):
    bounds = "regularizer=constraint:max_weight_norm=0.3:max_variance=0.5"
    changes = {"defence": f"wca:noise_alone=true:{bounds}", "initial_weights": str(trained_undefended)}
    train(dataclasses.replace(tiny_config, epochs=1, **changes), tmp_path / "model")
    paths = (tmp_path / "model" / "last.keras", trained_undefended / "model.keras")
    model, source = (load_model(path) for path in paths)
    np.testing.assert_array_equal(model.classifier.kernel.numpy(), source.classifier.kernel.numpy())
    scale_tril = model.noise.scale_tril.numpy()
    assert np.linalg.eigvalsh(scale_tril @ scale_tril.T).max() < 0.5 + 1e-5


def test_a_source_that_is_not_there_is_named_at_once(command_without_tensorflow, tmp_path):
    done = command_without_tensorflow("train", f"--initial_weights={tmp_path}/absent", f"--model_dir={tmp_path}/model")
    assert done.code == 2
    assert "--initial_weights" in done.err
    assert not (tmp_path / "model").exists()


def test_noise_that_trains_alone_needs_a_net_to_train_on():
    with pytest.raises(InputError, match="--initial_weights=DIR"):
        TrainConfig(defence="wca:noise_alone=true")


def test_a_net_may_start_from_the_weights_of_any_trained_net(trained, tiny_config, tmp_path):
    """All of them go on training, and the noise starts anew."""
    config = dataclasses.replace(tiny_config, epochs=1, learning_rate=1e-9, initial_weights=str(trained))
    train(config, tmp_path / "model")
    net, source = (load_model(ModelDirectory(path).best) for path in (tmp_path / "model", trained))
    np.testing.assert_allclose(net.bottleneck.kernel, source.bottleneck.kernel, atol=1e-5)
    np.testing.assert_allclose(net.noise.scale_tril, np.eye(32), atol=1e-5)
    assert any(weight.path.endswith("bottleneck/kernel") for weight in net.trainable_weights)


@pytest.mark.parametrize("name", ["max_weight_norm", "max_variance"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_bounds_of_the_constraint_are_above_zero(name, value):
    with pytest.raises(InputError, match=f"expected {name}"):
        TrainConfig(defence=f"wca:{name}={value}")


def test_a_constrained_run_keeps_its_bounds_and_has_no_penalty(tiny_config, tmp_path):
    defence = "wca:regularizer=constraint:max_weight_norm=0.8:max_variance=0.5"
    config = dataclasses.replace(tiny_config, epochs=1, max_train_examples=128, defence=defence)
    line = train(config, tmp_path / "model")
    model = load_model(ModelDirectory(tmp_path / "model").last)
    assert np.linalg.norm(model.classifier.kernel, axis=0).max() < 0.8 + 1e-6
    scale_tril = model.noise.scale_tril.numpy()
    assert np.linalg.eigvalsh(scale_tril @ scale_tril.T).max() < 0.5 + 1e-5
    assert line["penalty"] == 0


# Short runs on all images


def test_without_validation_images_the_last_epoch_is_the_model(tiny_config, tmp_path):
    config = dataclasses.replace(tiny_config, epochs=2, validation_split=0.0, max_train_examples=128)
    line = train(config, tmp_path / "model")
    directory = ModelDirectory(tmp_path / "model")
    assert line["epoch"] == 2
    assert "val_accuracy" not in line
    assert directory.read_config()["dataset"]["num_train_examples"] == 128
    best, last = load_model(directory.best), load_model(directory.last)
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(best.weights, last.weights, strict=True))
    with pytest.raises(InputError, match="--split=test"):
        evaluate(EvaluateConfig("fgsm", "0.1", num_examples=5, split="validation"), tmp_path / "model")


def test_the_cosine_schedule_rises_over_a_fifth_and_ends_at_zero():
    schedule = SCHEDULES["cosine"](0.02, 100)
    rates = [float(schedule(step)) for step in range(101)]
    np.testing.assert_allclose(rates[0], 0.002, rtol=1e-5)
    np.testing.assert_allclose(max(rates), 0.02, rtol=1e-5)
    assert np.argmax(rates) == 20
    np.testing.assert_allclose(rates[60], 0.01, rtol=1e-4)  # half way down
    assert rates[100] < 1e-8


def test_smoothed_cross_entropy_is_its_formula_and_survives_its_file():
    logits, labels = np.random.default_rng(0).normal(size=(5, 4)), np.array([0, 3, 1, 1, 2])
    loss = SmoothedCrossEntropy(0.2)
    logarithms = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    wanted = 0.8 * np.eye(4)[labels] + 0.2 / 4
    np.testing.assert_allclose(loss(labels, logits), -(wanted * logarithms).sum(axis=1).mean(), rtol=1e-6)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.label_smoothing == 0.2


def test_a_run_by_momentum_and_smoothed_labels_resumes_to_the_same_bits(tiny_config, tmp_path, monkeypatch):
    changes = {"optimizer": "nesterov", "label_smoothing": 0.1, "learning_rate": 0.05, "epochs": 3}
    config = dataclasses.replace(tiny_config, defence="none:backbone_decay=0.001", **changes)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(config, whole)
    write = epoch_recorder.EpochRecorder.on_epoch_end

    def killed(recorder, epoch, logs=None):
        write(recorder, epoch, logs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(epoch_recorder.EpochRecorder, "on_epoch_end", killed)
        train(config, parts)
    train(config, parts)
    one, other = (load_model(ModelDirectory(path).last) for path in (whole, parts))
    assert isinstance(one.optimizer, keras.optimizers.SGD) and one.optimizer.nesterov
    for weight, its in zip(one.variables, other.variables, strict=True):
        np.testing.assert_array_equal(weight, its)
    first, last = (ModelDirectory(whole).read_metrics()[place] for place in (0, -1))
    assert last["penalty"] > 0 and last["accuracy"] > first["accuracy"]


@pytest.mark.parametrize(("part", "name"), [("config", "optimizer"), ("defence_options", "features")])
def test_a_run_without_one_of_the_options_is_refused_in_a_line(trained, tiny_config, tmp_path, part, name):
    copy = ModelDirectory(shutil.copytree(trained, tmp_path / "copy"))
    stored = json.loads(copy.config.read_text())
    del stored[part][name]
    copy.config.write_text(json.dumps(stored))
    with pytest.raises(InputError, match="another version of wca_tf|with other defaults"):
        train(tiny_config, copy.path)


@pytest.mark.parametrize("options", [None, True, [], "wca"])
def test_options_of_a_defence_that_are_no_object_are_refused(trained, tiny_config, tmp_path, options):
    directory = ModelDirectory(tmp_path)
    stored = json.loads((trained / "config.json").read_text())
    directory.config.write_text(json.dumps({**stored, "defence_options": options}))
    with pytest.raises(InputError, match="expected a config.json of schema"):
        directory.check_same_config(tiny_config)


def test_the_decay_of_a_frozen_backbone_is_none():
    model = make_model("anisotropic", convolution(), backbone_decay=0.3, weight_decay=0.0, noise_alone=True)
    assert float(model.penalty()) == 0


def test_the_decay_of_a_backbone_is_that_of_its_kernels():
    model = make_model("none", convolution(), backbone_decay=0.3, weight_decay=0.0)
    kernels = [model.backbone.layers[0].kernel, model.bottleneck.kernel]
    expected = 0.15 * sum(np.sum(np.square(kernel)) for kernel in kernels)
    np.testing.assert_allclose(model.penalty(), expected, rtol=1e-6)


def test_a_defence_written_another_way_is_the_same_run(trained, tiny_config, tmp_path, capsys):
    train(dataclasses.replace(tiny_config, defence="wca:feature_dim=32:covariance=anisotropic"), trained)
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(InputError, match="--defence=wca, received --defence=wca:feature_dim=33"):
        train(dataclasses.replace(tiny_config, defence="wca:feature_dim=33"), trained)


@pytest.mark.parametrize("change", [{"schema": 1}, {"config": {"covariance": "none"}}, {"config": {}}], ids=str)
def test_a_directory_of_another_version_is_refused_in_a_line(trained, tiny_config, tmp_path, change):
    copy = shutil.copytree(trained, tmp_path / "copy")
    stored = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**stored, **change}))
    with pytest.raises(InputError, match="another version of wca_tf|is not a training configuration") as raised:
        train(tiny_config, copy)
    assert "\n" not in str(raised.value)


def test_tensors_of_labels_and_arrays_train_alike_in_eager_mode():
    images, labels = toy_data(8)
    model = make_model("anisotropic")
    model.run_eagerly = True
    assert np.isfinite(model.train_on_batch(images, labels)).all()
    assert np.isfinite(model.train_on_batch(tf.constant(images), tf.constant(labels))).all()
