"""The defences that the paper compares with: what they are without noise, what they learn, and what survives."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from attack_nets import random_images
from scipy.special import ndtr

import wca_tf
from wca_tf.core.errors import InputError
from wca_tf.core.seeds import make_seed
from wca_tf.defences import NetRequest, parse_defence
from wca_tf.defences.rfd.net import RandomFeatureNet
from wca_tf.gaussian import covariance
from wca_tf.gaussian.independent import probability_of_largest
from wca_tf.nets.judge import judge
from wca_tf.nets.noise import ActivationNoise
from wca_tf.nets.targets import is_gaussian

SHAPE, CLASSES = (12, 12, 1), 4
EVERY = (
    "rse",
    "pni",
    "pni:scope=batch:shared_by=channel",
    "l2p",
    "l2p:scope=batch",
    "adv_bnn",
    "adv_bnn:scope=batch",
    "se_snn:feature_dim=8",
    "smoothing",
    "rfd:feature_dim=4",
    "ctrw",
    "ctrw:scope=batch",
)
GAUSSIAN = ("se_snn:feature_dim=8", "rfd:feature_dim=4")
# Each defence with noise of no size; Adv-BNN's e^s and SE-SNN's σ underflow to 0.
WITHOUT_NOISE = {
    "rse:first_deviation=0:deviation=0": None,
    "pni:amplitude=0": None,
    "pni:amplitude=0:scope=batch": None,
    "l2p:deviation=0:min_deviation=0": None,
    "adv_bnn": ("log_deviation", -200.0),
    "adv_bnn:scope=batch": ("log_deviation", -200.0),
    "se_snn:feature_dim=8:shift=300": None,
    "smoothing:deviation=0": None,
    "rfd:feature_dim=4:deviation=0": None,
    "ctrw:min_deviation=0": ("deviation", 0.0),
}


def net_of(text, seed=0, backbone="lenet5", shape=SHAPE):
    keras.utils.set_random_seed(seed)
    net = parse_defence(text).build(NetRequest(shape, CLASSES, (0.4,), (0.3,), backbone, num_train_examples=100))
    net.build((None, *shape))
    return net


def fitted(net, epochs=2, text=""):
    """The net after steps on the same eight images, with the callbacks of its defence."""
    net.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks = parse_defence(text).callbacks() if text else []
    images, labels = random_images(8, shape=SHAPE).numpy(), np.arange(8) % CLASSES
    return net.fit(images, labels, batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks).history


@pytest.mark.parametrize("text", WITHOUT_NOISE)
def test_without_noise_the_logits_are_the_deterministic_ones_to_the_bit(text):
    net, images = net_of(text), random_images(5, shape=SHAPE)
    if WITHOUT_NOISE[text]:
        name, value = WITHOUT_NOISE[text]
        for weight in net.weights:
            if weight.name.endswith(name):
                weight.assign(tf.fill(weight.shape, value))
    np.testing.assert_array_equal(net.logits(images, make_seed(0)), net.noise_free_logits(images))


@pytest.mark.parametrize("text", EVERY)
def test_a_draw_is_a_function_of_its_seed(text):
    net, images = net_of(text), random_images(5, shape=SHAPE)
    first, again, other = (net.logits(images, make_seed(seed)).numpy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).mean() > 1e-4


@pytest.mark.parametrize("text", EVERY)
def test_noise_of_each_image_is_its_own_unless_the_batch_shares_it(text):
    net, image = net_of(text), random_images(1, shape=SHAPE)
    target = net.target()
    indices = tf.constant([3, 8, 3], tf.int64)
    logits = target.logits(target.features(tf.repeat(image, 3, axis=0)), make_seed(0), 2, indices).numpy()
    np.testing.assert_allclose(logits[:, 0], logits[:, 2], atol=1e-5)
    differs = np.abs(logits[:, 0] - logits[:, 1]).max() > 1e-5
    assert differs == ("batch" not in text) == target.per_image_noise


@pytest.mark.parametrize("text", EVERY)
def test_a_net_survives_its_file(text, tmp_path):
    net, images = net_of(text), random_images(3, shape=SHAPE)
    fitted(net, text=text)
    net.save(tmp_path / "net.keras")
    loaded = keras.saving.load_model(tmp_path / "net.keras")
    mine, its = ({k: v for k, v in each.get_config().items() if not isinstance(v, dict)} for each in (net, loaded))
    assert type(loaded) is type(net) and mine == its
    np.testing.assert_array_equal(loaded.logits(images, make_seed(4)), net.logits(images, make_seed(4)))


LEARNED = {
    "pni": "alpha",
    "l2p": "sigma",
    "adv_bnn": "log_deviation",
    "se_snn:feature_dim=8": "deviation",
    "ctrw": "deviation",
}


@pytest.mark.parametrize("text", LEARNED)
def test_the_noise_is_learned(text):
    net = net_of(text)
    learned = [weight for weight in net.trainable_weights if LEARNED[text] in weight.path]
    before = [weight.numpy() for weight in learned]
    fitted(net, text=text)
    assert learned and all(
        np.abs(weight.numpy() - old).max() > 1e-4 for weight, old in zip(learned, before, strict=True)
    )


def test_the_bounds_of_learned_noise_hold_in_training():
    net = net_of("l2p:deviation=0.02:reward=0")
    fitted(net, epochs=20, text="l2p")
    assert min(float(tf.reduce_min(layer.sigma.value)) for layer in net.noise_layers) >= 0.01 - 1e-8
    net = net_of("ctrw:min_deviation=0.99")
    fitted(net, epochs=5)
    assert float(tf.reduce_min(net.noise_layers[0].deviation.value)) >= 0.99 - 1e-6


def test_rfd_of_deviation_zero_is_known_to_have_no_noise():
    assert net_of("rfd:feature_dim=4").target().has_noise
    assert not net_of("rfd:feature_dim=4:deviation=0").target().has_noise


def test_rfd_has_the_noise_of_the_weights_that_a_lipschitz_bottleneck_multiplies_by():
    inputs = keras.Input((2, 2, 1))
    backbone = keras.Model(inputs, keras.layers.Flatten()(inputs))
    net = RandomFeatureNet(backbone, 3, 4, deviation=2.0, lipschitz_bottleneck="aol")
    net.build((None, 2, 2, 1))
    net.bottleneck.kernel.assign(10 * np.eye(4, dtype=np.float32))
    multiplied = net.bottleneck(np.eye(4, dtype=np.float32)).numpy() @ net.classifier.kernel.numpy()
    np.testing.assert_allclose(net.logit_scale, 2 * multiplied.T, rtol=1e-5)


def test_the_reward_of_l2p_falls_with_the_harmonic_number_of_the_epoch():
    net = net_of("l2p")
    roots = sum(float(tf.reduce_sum(tf.sqrt(layer.sigma.value))) for layer in net.noise_layers)
    for epoch, harmonic in ((1, 1.0), (3, 1 + 1 / 2 + 1 / 3)):
        net.epoch.assign(epoch)
        assert float(net.rewards()["noise_reward"]) == pytest.approx(1e-4 / harmonic * roots, rel=1e-5)
    fitted(net, epochs=3, text="l2p")
    assert int(net.epoch.value) == 3


def test_the_divergence_of_adv_bnn_counts_every_weight_over_the_training_images():
    net = net_of("adv_bnn:kl_weight=0.5")
    total = sum(float(layer.kl_divergence(0.05)) for layer in net.noise_layers)
    assert float(net.extra_losses()["kl"]) == pytest.approx(0.5 / 100 * total, rel=1e-5)


def test_adv_bnn_needs_the_number_of_training_images():
    with pytest.raises(InputError, match="num_train_examples"):
        parse_defence("adv_bnn").build(NetRequest(SHAPE, CLASSES, backbone="lenet5"))


def test_the_entropy_of_se_snn_is_a_loss_of_each_image():
    net, images = net_of("se_snn:feature_dim=8:shift=0"), random_images(6, shape=SHAPE)
    _, deviation = net.forward(images, make_seed(0))
    expected = 0.1 * np.maximum(np.log(16) - np.log(deviation.numpy()), 0).mean(axis=1)
    np.testing.assert_allclose(net.image_losses(deviation)["entropy_loss"], expected, rtol=1e-5)
    history = fitted(net, epochs=1)
    parts = history["ce"][0] + history["entropy_loss"][0] + history["penalty"][0]
    assert history["loss"][0] == pytest.approx(parts, rel=1e-5)


def test_the_loss_of_se_snn_makes_its_entropy_rise():
    images, changes = random_images(8, shape=SHAPE), {}
    for weight in (0, 10):
        net = net_of(f"se_snn:feature_dim=8:entropy_weight={weight}")
        before = np.log(net.forward(images, make_seed(0))[1].numpy()).mean()
        fitted(net, epochs=5)
        changes[weight] = np.log(net.forward(images, make_seed(0))[1].numpy()).mean() - before
    assert changes[10] > 0.05 and changes[10] > changes[0] + 0.05


def test_lenet_plus_plus_has_the_noise_of_each_defence_in_its_place():
    def kinds(text):
        net = net_of(text, backbone="lenet_plus_plus", shape=(28, 28, 1))
        return [type(layer).__name__ for layer in net.backbone.layers]

    plain, noisy = kinds("rfd"), kinds("l2p")
    places = [noisy[i - 1 : i + 2] for i, kind in enumerate(noisy) if kind == "LearnedActivationNoise"]
    assert places == [["Conv2D", "LearnedActivationNoise", "PReLU"]] * plain.count("Conv2D")
    assert [kind for kind in noisy if kind != "LearnedActivationNoise"] == plain
    assert kinds("ctrw") == [plain[0], "RandomPixelWeights", *plain[1:]]
    rfd = net_of("rfd:deviation=2", backbone="lenet_plus_plus", shape=(28, 28, 1))
    _, scale = rfd.gaussian_logits(random_images(1, shape=(28, 28, 1)))
    assert scale.shape[-1] == rfd.backbone.output_shape[-1] == 2048


@pytest.mark.parametrize("backbone, convolutions", [("lenet5", 1), ("airbench93_relu", 6)])
def test_the_noise_of_rse_is_on_the_images_and_before_every_other_convolution(backbone, convolutions):
    request = NetRequest((32, 32, 3), CLASSES, (0.4, 0.4, 0.4), (0.3, 0.3, 0.6), backbone, num_train_examples=100)
    net = parse_defence("rse:first_deviation=0.3:deviation=0.2").build(request)
    first, *others = [layer.scale for layer in net.backbone.layers if isinstance(layer, ActivationNoise)]
    np.testing.assert_allclose(first, [1.0, 1.0, 0.5])  # of normalised pixels
    assert others == [0.2] * convolutions
    assert np.isfinite(net.logits(random_images(2, shape=(32, 32, 3)), make_seed(0))).all()


def test_weight_decay_counts_the_kernels_alone():
    net = net_of("pni:weight_decay=0.1")
    kernels = [w.numpy() for w in net.trainable_weights if w.path.endswith("kernel")]
    assert len(kernels) == 5
    assert float(net.extra_losses()["penalty"]) == pytest.approx(0.05 * sum((k**2).sum() for k in kernels), rel=1e-5)


# Nets with Gaussian logits


def test_se_snn_and_rfd_are_their_formulas_with_the_same_numbers_drawn():
    images, seed = random_images(3, shape=SHAPE), make_seed(7)
    for text in GAUSSIAN:
        net = net_of(text)
        pooled = net.pooled(net.normalised(images)).numpy()
        (kernel, bias), (weights, offset) = (
            [weight.numpy() for weight in layer.weights] for layer in (net.bottleneck, net.classifier)
        )
        if "rfd" in text:  # W (V (f + ν ξ) + c) + b
            noisy = pooled + net.deviation * tf.random.stateless_normal(pooled.shape, seed).numpy()
            expected = (noisy @ kernel + bias) @ weights + offset
        else:  # W (μ + σ ∘ ξ) + b with σ = softplus(u − shift)
            other, shift = (weight.numpy() for weight in net.deviation.weights)
            deviation = np.logaddexp(0, pooled @ other + shift - net.shift)
            draw = tf.random.stateless_normal(deviation.shape, seed).numpy()
            expected = (pooled @ kernel + bias + deviation * draw) @ weights + offset
        np.testing.assert_allclose(net.logits(images, seed), expected, atol=1e-5)


@pytest.mark.parametrize("text", GAUSSIAN)
def test_gaussian_logits_are_those_of_the_draws(text):
    net, images = net_of(text), random_images(2, shape=SHAPE)
    mean, scale = (value.numpy() for value in net.gaussian_logits(images))
    draws = 4000

    @tf.function
    def logits(seeds):
        return tf.map_fn(lambda seed: net.logits(images, seed), seeds, fn_output_signature=tf.float32)

    drawn = logits(tf.stack([tf.range(draws), tf.fill([draws], 5)], axis=1)).numpy()
    for image in range(2):
        factor = scale if scale.ndim == 2 else scale[image]
        expected = factor @ factor.T
        sizes = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
        found = np.cov(drawn[:, image].T)
        np.testing.assert_array_less(np.abs(found - expected), 0.11 * sizes + 1e-12)
        errors = np.abs(drawn[:, image].mean(axis=0) - mean[image])
        np.testing.assert_array_less(errors, 0.08 * np.sqrt(np.diag(expected)))


@pytest.mark.parametrize("text", GAUSSIAN)
def test_a_net_with_gaussian_logits_is_judged_exactly(text):
    net, images = net_of(text), random_images(4, shape=SHAPE)
    target = net.target()
    assert is_gaussian(target) and target.has_noise
    _, scale = net.gaussian_logits(images)
    np.testing.assert_allclose(target.scale_of(target.features(images)), scale, rtol=1e-6)
    report = wca_tf.evaluate(net, images.numpy(), np.arange(4), attacks=["z_margin:steps=2"], epsilons=[0.1])
    assert report["clean"]["probability_error"] < 1e-2
    assert report["attacks"][0]["expected_accuracy"]["value"] <= report["clean"]["expected_accuracy"]["value"] + 0.05


def test_rfd_has_no_noise_in_training():
    net, images = net_of("rfd:feature_dim=4"), random_images(4, shape=SHAPE)
    np.testing.assert_array_equal(net.logits(images, make_seed(0), training=True), net.noise_free_logits(images))
    assert float(net.constants()["common_noise_share"]) == pytest.approx(
        float(covariance.common_noise_share(net.logit_scale))
    )


@pytest.mark.parametrize("activation", [None, "relu"])
def test_rfd_has_its_noise_before_the_last_linear_part(activation):
    from wca_tf.defences.rfd.net import RandomFeatureNet
    from wca_tf.nets.backbones import build_backbone

    net = RandomFeatureNet(
        build_backbone("lenet5", SHAPE), CLASSES, feature_dim=4, bottleneck_activation=activation, deviation=0.7
    )
    net.build((None, *SHAPE))
    head, bottleneck = net.classifier.kernel.numpy(), net.bottleneck.kernel.numpy()
    expected = 0.7 * (head if activation else bottleneck @ head).T
    np.testing.assert_allclose(net.logit_scale, expected, rtol=1e-5, atol=1e-7)


# The last layer's noise, integrated


def test_the_largest_of_independent_logits_has_its_closed_form():
    """Two classes: P = Φ((m_y − m_k) / √(v_y + v_k)); the label's logit is drawn, the other's noise is integrated."""
    mean, variance = np.array([0.3, -0.2]), np.array([0.5, 0.8])
    drawn = mean + np.sqrt(variance) * np.random.default_rng(0).normal(size=(20_000, 1, 2))
    shape = drawn.shape
    found = probability_of_largest(drawn, np.broadcast_to(mean, shape), np.broadcast_to(variance, shape), [0]).numpy()
    expected = ndtr(0.5 / np.sqrt(1.3))
    assert abs(found.mean() - expected) < 5 * found.std() / np.sqrt(20_000)
    assert found.std() < 0.75 * np.sqrt(expected * (1 - expected))  # that of counting
    exact = probability_of_largest([[[1.0, 0.0]], [[0.0, 1.0]]], np.zeros((2, 1, 2)), np.zeros((2, 1, 2)), [0]).numpy()
    assert exact[:, 0].tolist() == [1, 0]


@pytest.mark.parametrize("text", ["pni:amplitude=2", "adv_bnn:deviation=0.2"])
def test_probabilities_by_integration_are_those_of_counting_with_less_variance(text):
    net, images = net_of(text), random_images(8, shape=SHAPE)
    target = net.target()
    labels, indices = target.noise_free_logits(images).numpy().argmax(axis=1), tf.range(8, dtype=tf.int64)
    assert target.has_moments and not net_of("pni:scope=batch").target().has_moments
    judged = [judge(target, images, labels, indices, seed) for seed in range(20)]
    integrated = np.stack([each.probability_correct for each in judged])

    @tf.function
    def logits(seed):
        return target.logits(images, seed, 200, indices)

    draws = [logits(make_seed(seed)).numpy().argmax(axis=2) == labels for seed in range(100, 120)]
    counted = np.stack([each.mean(axis=0) for each in draws])
    errors = np.sqrt((integrated.var(axis=0, ddof=1) + counted.var(axis=0, ddof=1)) / 20)
    np.testing.assert_array_less(np.abs(integrated.mean(axis=0) - counted.mean(axis=0)), 5 * errors + 1e-3)
    assert integrated.var(axis=0).mean() < counted.var(axis=0).mean()
    assert judged[0].hits.dtype == np.float64 and set(np.unique(judged[0].correct)) <= {False, True}


# Training and export, by the commands


def test_a_wrong_option_is_one_line(fails_in_one_line, tmp_path):
    for text, told in (
        ("pni:scope=pixel", "image, batch"),
        ("rse:deviation=-1", "deviation"),
        ("adv_bnn:prior_deviation=0", "prior_deviation"),
        ("se_snn:width=3", "feature_dim"),
        ("l2p:min_deviation=-1", "min_deviation"),
        ("smoothing:deviation=-0.1", "deviation"),
        ("rfd:deviation=nan", "deviation"),
        ("ctrw:scope=pixel", "image, batch"),
    ):
        assert told in fails_in_one_line(tmp_path, "train", f"--defence={text}", "--model_dir=x")


def trained(command, directory, defence, epochs=2, **more):
    flags = {"dataset": "digits", "backbone": "lenet5", "batch_size": 50, "epochs": epochs, "max_train_examples": 100}
    done = command(
        "train",
        f"--defence={defence}",
        f"--model_dir={directory}",
        *(f"--{name}={value}" for name, value in {**flags, **more}.items()),
    )
    assert done.code == 0, done.err
    return json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("text", EVERY)
def test_each_defence_is_trained_on_attacked_images_attacked_and_exported(text, command, tmp_path):
    more = {"adversarial": "ct_at", "adversarial_attack": "fgsm_rs:eot_samples=1", "adversarial_epsilon": "0.1"}
    enough = text.replace("=8", "=16").replace("=4", "=16")  # digits have ten classes
    assert trained(command, tmp_path / "net", enough, **more)["ce"] > 0
    attacks = "--attacks=pgd:steps=2,adaptive:steps=2:apgd_steps=4:class_steps=2:queries=5"
    shared = (attacks, "--num_examples=10", "--eot_samples=2")
    done = command("evaluate", f"--model_dir={tmp_path / 'net'}", f"--report_dir={tmp_path / 'report'}", *shared)
    assert done.code == 0 and "worst case" in done.out, done.err
    done = command("export", f"--model_dir={tmp_path / 'net'}", f"--export_dir={tmp_path / 'served'}")
    assert done.code == 0, done.err
    serve = tf.saved_model.load(str(tmp_path / "served" / "1")).signatures["serving_default"]
    images = tf.zeros([3, 28, 28, 1], tf.uint8) + tf.constant(90, tf.uint8)
    first, second = (serve(images=images)["logits"].numpy() for _ in range(2))
    assert np.isfinite(first).all() and np.abs(first - second).max() > 0


@pytest.mark.slow
@pytest.mark.parametrize("text", ["rse", "pni", "l2p", "adv_bnn", "ctrw", "smoothing", "se_snn:feature_dim=16", "rfd"])
def test_a_run_in_two_parts_ends_as_a_run_in_one(text, tmp_path):
    """The first epoch alone, then the same directory to its end: as a run killed after its first epoch."""
    from wca_tf.runs import epoch_recorder
    from wca_tf.runs.config import TrainConfig

    config = TrainConfig(
        dataset="digits", backbone="lenet5", defence=text, batch_size=50, epochs=3, max_train_examples=150
    )

    class Killed(Exception):
        pass

    def killed(recorder, epoch, logs=None):
        ended(recorder, epoch, logs)
        if epoch == 0:
            raise Killed

    ended = epoch_recorder.EpochRecorder.on_epoch_end
    epoch_recorder.EpochRecorder.on_epoch_end = killed
    try:
        with pytest.raises(Killed):
            wca_tf.train(config, tmp_path / "parts")
    finally:
        epoch_recorder.EpochRecorder.on_epoch_end = ended
    for name in ("parts", "whole"):
        wca_tf.train(config, tmp_path / name)
    parts, whole = (wca_tf.load_model(tmp_path / name / "last.keras") for name in ("parts", "whole"))
    for mine, its in zip(parts.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)
