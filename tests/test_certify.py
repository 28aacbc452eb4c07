"""bin/certify: certificates of trained nets beside attacks in image space, and the vote of randomised smoothing."""

import dataclasses
import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import made_once
from scipy import stats

from reproduce.engine import Engine
from reproduce.evidence import Evidence
from reproduce.image_bounds import Bounds
from reproduce.study import Study
from wca_tf.core.errors import InputError
from wca_tf.data.examples import Examples
from wca_tf.defences import NetRequest, parse_defence
from wca_tf.defences.smoothing.net import SmoothedNet
from wca_tf.defences.wca.net import WCANet
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures import smoothing_votes
from wca_tf.evaluation.measures.certificates import BOUNDS, CERTIFICATES_ALGORITHM, radii_of
from wca_tf.evaluation.measures.certified_head import Head
from wca_tf.evaluation.measures.registry import format_results
from wca_tf.evaluation.measures.smoothing_votes import VOTES_ALGORITHM
from wca_tf.evaluation.runner import evaluate, evaluate_model, load_evaluation_examples
from wca_tf.gaussian.certificates import known_draw_certificate
from wca_tf.gaussian.smoothing import certified_radius
from wca_tf.nets.backbones import build_backbone
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.lipschitz_layers import AOLConvolution
from wca_tf.nets.loss_terms import LipschitzMargin
from wca_tf.nets.model_files import load_model
from wca_tf.nets.noise import ActivationNoise
from wca_tf.nets.targets import GaussianLogitsTarget
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.training import train

SCHEDULE = {"epochs": 5, "learning_rate": 1e-3, "learning_rate_schedule": "constant", "batch_size": 50}
TINY = TrainConfig(image_size=8, backbone="lipschitz_cnn", margin_radius=0.05, temperature=0.1, **SCHEDULE)
CONSTRAINT = "wca:regularizer=constraint:max_variance=0.01"
L2 = "pgd:norm=l2,z_margin:norm=l2:restarts=2,cw:steps=20:searches=3:learning_rate=0.03"
ASKED = EvaluateConfig(attacks=L2, epsilons="l2:0.05,l2:0.3", certified_radii="0.05,0.3", num_examples=60)
ONE_ATTACK = dataclasses.replace(ASKED, attacks="pgd:norm=l2")


@pytest.fixture(scope="module")
def net_of(tmp_path_factory):
    """net_of(DEFENCE): the directory of a trained Lipschitz net on digits of 8×8 pixels."""

    def directory(defence):
        config = dataclasses.replace(TINY, defence=defence)
        return made_once(tmp_path_factory, f"lipschitz_{defence.split(':')[0]}", lambda path: train(config, path))

    return directory


# The loss


def test_the_margin_loss_raises_each_rival_by_what_an_attack_can_gain():
    generator = np.random.default_rng(0)
    logits, weights, labels = generator.normal(size=(6, 4)), generator.normal(size=(4, 8)), np.array([0, 1, 2, 3, 0, 1])
    found = LipschitzMargin(0.7, 0.5).logits(*map(tf.constant, (logits, labels, weights)))
    distances = np.linalg.norm(weights[labels][:, None] - weights[None], axis=2)
    np.testing.assert_allclose(found, (logits + 0.7 * distances) / 0.5)
    assert (np.take_along_axis(distances, labels[:, None], 1) == 0).all()


def test_for_orthonormal_weights_it_is_an_offset_at_the_label():
    """The loss of Prach & Lampert (ECCV 2022): softmax does not see what is added to all logits."""
    logits, labels = np.random.default_rng(0).normal(size=(5, 3)), np.array([0, 1, 2, 0, 1])
    found = LipschitzMargin(0.3, 0.25).logits(tf.constant(logits), tf.constant(labels), tf.eye(3, dtype=tf.float64))
    offset = np.sqrt(2) * 0.3 * np.eye(3)[labels]
    np.testing.assert_allclose(tf.nn.softmax(found), tf.nn.softmax((logits - offset) / 0.25), rtol=1e-9)


def test_the_gradient_of_the_margin_loss_is_finite():
    weights = tf.Variable(np.ones((3, 4), np.float32))  # equal rows too
    with tf.GradientTape() as tape:
        logits = LipschitzMargin(0.5, 1.0).logits(tf.zeros([2, 3]), tf.constant([0, 1]), weights)
        loss = tf.reduce_sum(logits * [[1.0, 2.0, 3.0]])
    assert np.isfinite(tape.gradient(loss, weights)).all()


def test_training_reports_the_share_of_images_that_its_radius_certifies():
    net, rng = build("none"), np.random.default_rng(0)
    net.classifier.kernel.assign(rng.normal(size=net.classifier.kernel.shape))
    images = rng.uniform(size=(200, 8, 8, 1)).astype(np.float32)
    logits, weights = net.noise_free_logits(images).numpy(), net.class_weights.numpy()
    labels = np.where(rng.uniform(size=200) < 0.8, logits.argmax(axis=1), 0)
    gaps = np.take_along_axis(logits, labels[:, None], 1) - logits
    distances = np.linalg.norm(weights[labels][:, None] - weights[None], axis=2)
    own = np.eye(10, dtype=bool)[labels]
    radii = np.where(own, np.inf, gaps / np.where(own, 1, distances)).min(axis=1)
    radius = float(np.median(radii[radii > 0]))
    without, found = {}, {}
    for net.margin, values in ((None, without), (LipschitzMargin(radius, 0.5), found)):
        net.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        values |= net.evaluate(images, labels, return_dict=True, verbose=0)
    assert without["accuracy"] == found["accuracy"] and "certified" not in without
    assert found["certified"] == pytest.approx((radii > radius).mean(), abs=0.006)  # rounding may move the median image
    assert 0.1 < found["certified"] < found["accuracy"]


# The constant of a net


def build(defence, backbone="lipschitz_cnn", side=8, **request):
    net = parse_defence(defence).build(NetRequest((side, side, 1), 10, (0.3,), (0.2,), backbone=backbone, **request))
    net.build((None, side, side, 1))
    return net


@pytest.mark.parametrize("defence", ["none", "wca"])
def test_a_net_on_the_lipschitz_backbone_has_constant_one(defence):
    net = build(defence)
    assert net.lipschitz() == 1.0
    one, other = np.random.default_rng(0).uniform(size=(2, 1, 8, 8, 1)).astype(np.float32)
    change = np.linalg.norm(net.features(one) - net.features(other))
    assert change <= np.linalg.norm(one - other) * (1 + 1e-5)


def test_the_constant_has_the_pixels_deviation_and_the_bottlenecks_norm():
    backbone = keras.Sequential([keras.Input((4, 4, 2)), keras.layers.AveragePooling2D(2)])
    net = BottleneckNet(backbone, 3, 4, pixel_mean=(0.1, 0.2), pixel_std=(0.5, 0.25))
    net.build((None, 4, 4, 2))
    expected = 0.5 / np.sqrt(4) / 0.25 * np.linalg.norm(net.bottleneck.kernel.numpy(), 2)  # mean over 2×2 positions
    assert net.lipschitz() == pytest.approx(expected, rel=1e-5)


def test_a_backbone_for_images_of_any_size_has_no_constant():
    backbone = keras.Sequential([keras.Input((None, None, 2)), AOLConvolution(4, 3)])
    net = BottleneckNet(backbone, 3, 4)
    net.build((None, 8, 8, 2))
    with pytest.raises(InputError, match="images of one size"):
        net.lipschitz()


@pytest.mark.parametrize(
    ("defence", "backbone", "request_of", "message"),
    [
        ("none", "resnet18", {}, "known Lipschitz constant|one after the other"),
        ("rse", "lenet5", {}, "known Lipschitz constant"),
        ("none", "lipschitz_cnn", {"precision": "mixed_bfloat16"}, "float32"),  # as it trains; it answers in float32
    ],
)
def test_a_net_without_a_bound_says_why(defence, backbone, request_of, message):
    with pytest.raises(InputError, match=message):
        build(defence, backbone, side=12, **request_of).lipschitz()


@pytest.mark.parametrize("defence", ["se_snn", "rse"])
def test_noise_elsewhere_than_before_the_classifier_is_refused(tmp_path, defence):
    net = build(defence, "lipschitz_cnn" if defence == "se_snn" else "lenet5", side=12)
    config = EvaluateConfig(attacks="fgsm:norm=l2", epsilons="l2:0.1", certified_radii="0.1")
    with pytest.raises(InputError, match="noise before a linear classifier"):
        evaluate_model(net, np.zeros((2, 12, 12, 1), np.float32), np.array([0, 1]), config, tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_a_defence_that_changes_layers_is_refused_on_the_lipschitz_backbone():
    with pytest.raises(InputError, match="lipschitz_cnn"):
        build("rse")


def test_a_margin_radius_needs_the_lipschitz_backbone(fails_in_one_line, tmp_path):
    told = fails_in_one_line(tmp_path, "train", "--margin_radius=0.3", "--model_dir=net")
    assert "lipschitz_cnn" in told and "lenet_plus_plus" in told


# Evaluations


@pytest.mark.parametrize("defence", ["none", CONSTRAINT])
def test_no_attack_on_images_goes_below_the_certificate(net_of, tmp_path, defence):
    """Each image by itself, under every attack within the radius."""
    directory = net_of(defence)
    results = evaluate(ASKED, directory, tmp_path / "report")
    assert results["clean"]["expected_accuracy"]["value"] > 0.5
    rows = results["certificates"]["rows"]
    assert [row["radius"] for row in rows] == [0.05, 0.3]
    assert rows[0]["certificate"]["value"] > 0.5  # at 0.3 little is proved of a net that trained for seconds
    model = load_model(ModelDirectory(directory).best)
    for row in rows:
        assert row["violations"] == 0
        assert row["certificate"]["value"] <= row["attacked"]["value"]
        assert max(row["known_draw"]["value"], row["gaussian_shift"]["value"]) <= row["certificate"]["value"]
        assert row["union"]["value"] <= row["known_draw"]["value"] + 1e-3
        for name in BOUNDS:
            assert row["n_query"][name]["100"]["value"] <= row["n_query"][name]["1"]["value"] == row[name]["value"]
        assert row["certificate"]["value"] <= 0.5 + row["majority"]["value"] / 2
        if not model.noise:
            assert row["certificate"] == row["deterministic"] == row["known_draw"]
        assert row["float32"] is None
    told = format_results(results)
    assert "l2 radius 0.3" in told and "BELOW" not in told and "in float32" not in told
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Certificates" in page and "changes by 1 times" not in page
    assert "which has no bound for this net, is not subtracted" in page
    card = (tmp_path / "report" / "model_card.md").read_text()
    assert "certified" in card and "Nothing here is a certificate" not in card


def test_a_wrong_lipschitz_constant_is_caught_by_the_attacks(net_of, tmp_path, monkeypatch):
    monkeypatch.setattr(BottleneckNet, "lipschitz", lambda self: 0.05)
    results = evaluate(ONE_ATTACK, net_of("none"), tmp_path / "report")
    assert results["certificates"]["rows"][1]["violations"] > 0
    assert "BELOW their certificate" in format_results(results)


@pytest.mark.parametrize("lipschitz, radius", [(None, "0.3"), (0.02, "1")])
def test_attacks_that_know_the_draw_and_on_the_noise_free_net_test_its_certificates(
    net_of, tmp_path, lipschitz, radius, monkeypatch
):
    if lipschitz is not None:
        monkeypatch.setattr(WCANet, "lipschitz", lambda self: lipschitz)
    evidence = Evidence(tmp_path, "tiny")
    study = Study(evidence, Engine(evidence, tmp_path, {"tfds_data_dir": ""}))
    broken = Bounds.of(study, ModelDirectory(net_of(CONSTRAINT))).violations(f"l2:{radius}", "margin:steps=3")
    names = [] if lipschitz is None else ["noise off", "draw 0 known", "draw 1 known"]
    assert [line.partition(",")[0] for line in broken] == names


def test_other_radii_are_added_and_stored_ones_are_kept(net_of, tmp_path, capsys):
    report = tmp_path / "report"
    few = dataclasses.replace(ASKED, attacks="pgd:norm=l2:steps=2", num_examples=20)
    first = evaluate(few, net_of("none"), report)
    evaluate(few, net_of("none"), report)
    assert "nothing to do" in capsys.readouterr().out
    more = evaluate(dataclasses.replace(few, certified_radii="0.05,linf:0.01"), net_of("none"), report)
    rows = more["certificates"]["rows"]
    assert [(row["norm"], row["radius"]) for row in rows] == [("l2", 0.05), ("l2", 0.3), ("linf", 0.01)]
    for row, before in zip(rows, first["certificates"]["rows"], strict=False):
        assert row["certificate"] == before["certificate"]


def test_attacks_added_later_are_counted_and_radii_without_an_attack_say_so(net_of, tmp_path):
    report = tmp_path / "report"
    few = EvaluateConfig(attacks="fgsm:norm=l2", epsilons="l2:0.01", certified_radii="0.005,0.01,1", num_examples=20)
    first = evaluate(few, net_of("none"), report)
    assert [row["attacked"] is None for row in first["certificates"]["rows"]] == [True, False, False]
    assert "not attacked" in format_results(first)
    more = dataclasses.replace(few, attacks="pgd:norm=l2", epsilons="l2:1", certified_radii="")
    rows = evaluate(more, net_of("none"), report)["certificates"]["rows"]
    assert len(rows) == 3 and rows[2]["attacked"]["value"] < first["certificates"]["rows"][2]["attacked"]["value"]
    page = (report / "report.html").read_text()
    assert "not attacked" in page


def test_a_vote_of_averaged_answers_is_refused(tmp_path):
    net = build("smoothing", "lenet5", side=12)
    config = EvaluateConfig(attacks="fgsm:norm=l2", epsilons="l2:0.1", certified_radii="0.1", average_draws=4)
    with pytest.raises(InputError, match="average_draws=1"):
        evaluate_model(net, np.zeros((2, 12, 12, 1), np.float32), np.array([0, 1]), config, tmp_path / "report")


def test_a_smoothed_net_has_the_noise_that_it_is_certified_by():
    net = build("smoothing:deviation=0.3", "lenet5", side=12)
    assert net.input_deviation == 0.3
    plain = build_backbone("lenet5", (12, 12, 1))
    for backbone, deviation in ((plain, 0.3), (net.backbone, 0.5)):
        with pytest.raises(InputError, match="only noise"):
            SmoothedNet(backbone, 10, pixel_mean=(0.3,), pixel_std=(0.2,), deviation=deviation)


def smoothed(make, dtype="float32", noise_dtype="float32"):
    """A SmoothedNet of deviation 0.3 with make(noise, images) as its backbone."""
    images = keras.Input((4, 4, 1), dtype=dtype)
    features = keras.layers.Flatten()(make(ActivationNoise([0.3], dtype=noise_dtype), images))
    return SmoothedNet(keras.Model(images, features), 10, deviation=0.3)


def noise_added_to_the_images(noise, images):
    return noise(images) + images


def noise_after_a_layer(noise, images):
    return noise(keras.layers.ReLU()(images))


@pytest.mark.parametrize("make", [noise_added_to_the_images, noise_after_a_layer])
def test_a_net_that_sees_more_than_the_noisy_images_is_not_certified(make):
    """Cohen et al.'s theorem is about f(x + noise): an attack needs no noise with x beside it."""
    with pytest.raises(InputError, match="only noise"):
        smoothed(make)


@pytest.mark.parametrize("dtypes", [("float32", "mixed_bfloat16"), ("float32", "float16"), ("bfloat16", "float32")])
def test_noise_of_fewer_bits_is_not_certified(dtypes):
    """Rounding to bfloat16 is a step of 0.004 near 1: a change of any size may move an image by as much."""
    with pytest.raises(InputError, match="float32 images and noise"):
        smoothed(lambda noise, images: noise(images), *dtypes)
    assert smoothed(lambda noise, images: noise(images)).input_deviation == 0.3


def test_other_defences_are_refused_on_the_lipschitz_backbone(fails_in_one_line, tmp_path):
    told = fails_in_one_line(tmp_path, "train", "--backbone=lipschitz_cnn", "--defence=rfd", "--model_dir=net")
    assert "--defence=none or wca" in told


def test_a_temperature_alone_goes_with_every_defence(tmp_path):
    config = TrainConfig(
        image_size=12, backbone="lenet5", defence="rse", temperature=0.5, epochs=1, max_train_examples=64, batch_size=32
    )
    train(config, tmp_path / "net")
    assert ModelDirectory(tmp_path / "net").last.exists()


def test_a_nets_own_temperature_trains_as_that_of_the_loss_and_stays_in_its_answers(tmp_path):
    few = {"image_size": 12, "backbone": "lenet5", "epochs": 1, "max_train_examples": 64, "batch_size": 32}
    train(TrainConfig(defence="none", temperature=4.0, **few), tmp_path / "loss")
    train(TrainConfig(defence="none:temperature=4", **few), tmp_path / "net")
    of_loss, of_net = (ModelDirectory(tmp_path / name).load_best() for name in ("loss", "net"))
    images = np.random.default_rng(0).uniform(size=(3, 12, 12, 1)).astype(np.float32)
    np.testing.assert_allclose(4 * of_net.noise_free_logits(images), of_loss.noise_free_logits(images), rtol=1e-4)
    started = TrainConfig(defence="rfd", initial_weights=str(tmp_path / "net"), **{**few, "epochs": 0})
    with pytest.raises(InputError, match="temperature 1"):
        train(started, tmp_path / "rfd")


def test_an_linf_radius_is_certified_in_the_l2_ball_around_it():
    config = EvaluateConfig(certified_radii="0.5,linf:0.01,l2:1")
    radii = radii_of(config)
    assert [radius.norm for radius in radii] == ["l2", "linf", "l2"]
    assert [radius.in_l2((28, 28, 1)) for radius in radii] == pytest.approx([0.5, 0.28, 1.0])


def test_bounds_are_those_of_the_net_as_it_answers(net_of, tmp_path):
    """With the mean of several draws as answer, the noise is smaller by the square root of their number."""
    directory = net_of(CONSTRAINT)
    asked = EvaluateConfig(attacks="fgsm:norm=l2", epsilons="l2:0.1", certified_radii="0.1", num_examples=40)
    [row] = evaluate(dataclasses.replace(asked, average_draws=9), directory, tmp_path / "mean")["certificates"]["rows"]
    model = load_model(ModelDirectory(directory).best)
    test = load_evaluation_examples(asked, ModelDirectory(directory))
    logits = model.noise_free_logits(test.images / np.float32(255)).numpy()
    weights, scale = model.class_weights.numpy(), model.logit_scale.numpy() / 3
    expected = known_draw_certificate(logits, test.labels, weights, scale, 0.1).mean()
    assert row["known_draw"]["value"] == pytest.approx(expected, abs=1e-4)


def test_logits_are_computed_with_all_bits_of_float32():
    """TensorFloat-32, which GPUs use by default, is off while they and the noise are computed, and on afterwards."""
    enabled, seen = tf.config.experimental.tensor_float_32_execution_enabled, []

    def features(images):
        seen.append(enabled())
        return tf.reshape(images, [-1, 4])

    def scale():
        seen.append(enabled())
        return tf.zeros([4, 1])

    model = SimpleNamespace(class_weights=tf.eye(4), lipschitz=lambda: 1.0)
    examples = Examples(np.zeros((3, 2, 2, 1), np.uint8), np.zeros(3, np.int64), ("a", "b", "c", "d"))
    target = GaussianLogitsTarget(features, tf.identity, scale)
    seen.clear()
    Head.of(target, model, examples, 2, 0.1)
    assert seen == [False, False, False] and enabled()


# The vote of randomised smoothing


def test_the_radius_of_the_vote_is_the_formula_of_its_authors():
    votes = np.array([0, 400, 500, 501, 900, 1000])
    found = certified_radius(votes, 1000, 0.25)
    low = [stats.binomtest(int(k), 1000, alternative="greater").proportion_ci(0.999, "exact").low for k in votes]
    expected = [0.25 * stats.norm.ppf(p) if p > 0.5 else 0.0 for p in low]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert (found[:4] == 0).all() and found[5] == pytest.approx(0.25 * stats.norm.ppf(0.001 ** (1 / 1000)))


def test_a_broken_record_of_votes_is_made_again(tmp_path, capsys):
    record = tmp_path / "votes.npz"
    np.savez(record, votes=np.ones([3, 3]))
    assert smoothing_votes._stored(record) == [(1, 1, 1.0)] * 3
    record.write_bytes(record.read_bytes()[:100])
    assert smoothing_votes._stored(record) == []
    assert capsys.readouterr().out.startswith(f"made again: {record}")


def test_smoothing_is_certified_by_votes_and_continues_from_its_record(tmp_path):
    config = TrainConfig(
        image_size=12,
        backbone="lenet5",
        defence="smoothing:deviation=0.1",
        epochs=6,
        learning_rate=5e-3,
        learning_rate_schedule="constant",
        batch_size=50,
    )
    train(config, tmp_path / "net")
    asked = EvaluateConfig(
        attacks="fgsm:norm=l2", epsilons="l2:0.1", certified_radii="0.05,0.2,5", certified_draws=1000, num_examples=30
    )
    results = evaluate(asked, tmp_path / "net", tmp_path / "report")
    rows, votes = results["certificates"]["rows"], results["certificates"]["votes"]
    assert (votes["images"], votes["draws"], votes["deviation"]) == (20, 1000, 0.1)
    shares = [row["vote"]["value"] for row in rows]
    assert shares[0] >= shares[1] >= shares[2] == 0 and shares[0] > 0.2
    assert "certified by the vote" in format_results(results)
    record = tmp_path / "report" / "measures" / "certificates" / f"votes-1000-{VOTES_ALGORITHM}.npz"
    with np.load(record) as stored:
        kept = stored["votes"]
    assert results["certificates"]["seconds"] == pytest.approx(kept[:, 2].sum(), abs=0.01)
    kept[:7, 2] = 1000.0
    np.savez(record, votes=kept[:7])  # as after a kill
    path = tmp_path / "report" / "measures" / "certificates.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": CERTIFICATES_ALGORITHM - 1}))
    again = evaluate(asked, tmp_path / "net", tmp_path / "report")
    assert again["certificates"]["rows"] == rows
    assert again["certificates"]["seconds"] > 7000  # of the votes that were kept too
    assert "s for 10,000 images (extrapolated)" in format_results(again)
    fewer = dataclasses.replace(asked, certified_draws=200, certified_images=25)
    fewer = evaluate(fewer, tmp_path / "net", tmp_path / "report")
    assert (fewer["certificates"]["votes"]["images"], fewer["certificates"]["votes"]["draws"]) == (25, 200)
    attacks = dataclasses.replace(ASKED, attacks="pgd:norm=l2:steps=2", certified_radii="", num_examples=30)
    more = evaluate(attacks, tmp_path / "net", tmp_path / "report")  # asks for no certificate
    assert more["certificates"]["votes"] == fewer["certificates"]["votes"]
    with np.load(record) as stored:
        np.testing.assert_array_equal(stored["votes"][:, :2], kept[:, :2])
    record.write_bytes(b"broken")
    last = evaluate(dataclasses.replace(asked, certified_radii="0.1"), tmp_path / "net", tmp_path / "report")
    assert [row["vote"] for row in last["certificates"]["rows"][:3]] == [row["vote"] for row in rows]  # made again
    every = evaluate(dataclasses.replace(asked, certified_images=100), tmp_path / "net", tmp_path / "report")
    assert every["certificates"]["votes"]["images"] == 30  # all that are judged
    later = evaluate(dataclasses.replace(asked, certified_radii="0.3"), tmp_path / "net", tmp_path / "report")
    assert later["certificates"]["votes"] == every["certificates"]["votes"]  # fewer would lose what is measured
    with np.load(record) as stored:
        np.testing.assert_array_equal(stored["votes"][:20, :2], kept[:, :2])


def test_a_net_that_trained_in_bfloat16_is_certified_as_it_answers_in_float32(tmp_path):
    config = dataclasses.replace(TINY, defence="none", precision="mixed_bfloat16", temperature=1.0, epochs=4)
    metrics = train(config, tmp_path)
    assert metrics["accuracy"] > 0.5
    model = ModelDirectory(tmp_path).load_best()
    assert {layer.compute_dtype for layer in model.backbone.layers} == {"float32"}
    assert model.lipschitz() < 1.001
    results = evaluate(ONE_ATTACK, tmp_path)
    rows = results["certificates"]["rows"]
    assert rows[0]["certificate"]["value"] > 0.2
    assert all(row["certificate"]["value"] <= row["attacked"]["value"] for row in rows)
    assert not any(row["violations"] for row in rows)


# Commands


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model_dir=absent"], "--radii=0.1"),
        (["--model_dir=absent", "--radii=-1"], "--radii of 0 or more"),
        (["--model_dir=absent", "--radii=l1:0.3"], "norm among"),
        (["--model_dir=absent", "--radii=a"], "--radii as numbers"),
        (["--model_dir=absent", "--radii=0.3"], "absent"),
        (["--model_dir=absent", "--radii=0.3,l2:0.3"], "--radii once"),
        (["--model_dir=absent", "--radii=linf:2"], "--radii in linf"),
        (["--model_dir=absent", "--radii=0.3", "--attacks=pgd:norm=linf"], "linf"),
    ],
)
def test_a_wrong_command_ends_at_once_with_one_line(fails_in_one_line, tmp_path, arguments, told):
    assert told in fails_in_one_line(tmp_path, "certify", *arguments)


def test_a_net_without_a_bound_ends_in_one_line(command, trained, tmp_path):
    report = f"--report_dir={tmp_path / 'r'}"
    done = command("certify", f"--model_dir={trained}", "--radii=0.1", "--num_examples=4", report)
    assert done.code == 2 and "known Lipschitz constant" in done.err.splitlines()[-1]
    assert not (tmp_path / "r").exists()


def test_the_command_prints_certificates_beside_attacks(command, net_of, tmp_path):
    done = command(
        "certify",
        f"--model_dir={net_of('none')}",
        "--radii=0.1",
        "--attacks=pgd:norm=l2:steps=3",
        "--num_examples=10",
        f"--report_dir={tmp_path / 'report'}",
    )
    assert done.code == 0, done.err
    assert "l2 radius 0.1:" in done.out and "worst case" in done.out


@pytest.mark.slow
def test_the_command_that_training_for_a_radius_names_next_certifies_its_net(command, tmp_path):
    flags = (
        "--image_size=8",
        "--backbone=orthogonal_net",
        "--optimizer=orthogonal_muon",
        "--margin_radius=0.1",
        "--defence=none",
        "--epochs=2",
    )
    done = command("train", *flags, f"--model_dir={tmp_path / 'net'}")
    assert done.code == 0, done.err
    name, *arguments = done.out.split("next: bin/")[1].split()
    certified = command(name, *arguments, "--num_examples=20", "--attacks=pgd:norm=l2")
    assert certified.code == 0 and "l2 radius 0.1:" in certified.out, certified.err
