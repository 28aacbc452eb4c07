"""What an attack sees of a net: moments of its noise, Keras classifiers of every kind, fixed draws, and no noise."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from attack_nets import (
    EPSILON,
    PIXEL_TOLERANCE,
    PIXELS,
    SHAPE,
    build_attack,
    flatten,
    linear_target,
    normal,
    random_images,
    run,
    seeded_net,
    tanh_target,
)
from tensorflow.python.framework.func_graph import FuncGraph

import wca_tf
from wca_tf.attacks import parse_attack
from wca_tf.core.errors import InputError
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.defences import NetRequest, parse_defence
from wca_tf.defences.wca.net import WCANet
from wca_tf.defences.wca.noise import AnisotropicNoise
from wca_tf.nets.adapter import adapt
from wca_tf.nets.answers import check_target
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.judge import judge
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import GaussianLogitsTarget


def classifier(*layers):
    return keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(), *layers])


def test_moments_of_head_noise():
    target, draws = linear_target(normal(PIXELS, 5, seed=1), 0.3 * normal(5, 7, seed=2)), 100_000
    features = flatten(random_images(2))
    logits = target.logits(features, make_seed(4), draws).numpy().astype(np.float64)
    mean = target.noise_free_logits(features).numpy()
    covariance = (target.logit_scale @ tf.transpose(target.logit_scale)).numpy()
    variances = np.diag(covariance)
    for i in range(2):
        assert np.all(np.abs(logits[:, i].mean(axis=0) - mean[i]) < 5 * np.sqrt(variances / draws))
        error = np.abs(np.cov(logits[:, i].T) - covariance)
        assert np.all(error < 5 * np.sqrt((np.outer(variances, variances) + covariance**2) / draws))


def test_parts_of_head_noise_share_no_draws():
    target, features = tanh_target(scale=1.0), tanh_target().features(random_images(2))
    parts = [target.with_draw_offset(first).logits(features, make_seed(1), 250).numpy() for first in (0, 250, 500, 750)]
    draws = np.concatenate(parts)[:, 0]
    assert len(np.unique(draws[:, 0])) > 990  # float32 numbers may coincide, draws not
    again = target.with_draw_offset(250).logits(features, make_seed(1), 250)
    np.testing.assert_array_equal(again, parts[1])


def test_draws_of_a_random_net_are_numbered():
    target, images = SampledTarget(seeded_net), random_images(2)
    whole = target.logits(images, make_seed(1), 7).numpy()
    np.testing.assert_array_equal(target.with_draw_offset(3).logits(images, make_seed(1), 4), whole[3:])
    np.testing.assert_array_equal(whole[5], seeded_net(images, fold_in(make_seed(1), 5)))


@pytest.mark.parametrize("target", [tanh_target(scale=1.0), SampledTarget(seeded_net)], ids=["head", "anywhere"])
def test_a_fixed_draw_is_a_deterministic_net(target):
    images, seed = random_images(4), make_seed(6)
    fixed, drawn = target.with_fixed_draw(seed), target.logits(target.features(images), seed, 1)[0]
    for other in (0, 1):
        draws = fixed.logits(fixed.features(images), make_seed(other), 3)
        np.testing.assert_array_equal(draws, np.stack([drawn] * 3))
    np.testing.assert_array_equal(fixed.noise_free_logits(fixed.features(images)), drawn)
    another = target.with_fixed_draw(make_seed(7))
    assert np.all(another.logits(another.features(images), make_seed(0), 1)[0] != drawn)
    # What an attack that knows the draw makes of it does not depend on its own draws.
    labels, attack = np.argmax(drawn, axis=1), build_attack("bim", EPSILON, eot_samples=3)
    first, second = (run(attack, fixed, images, labels, seed=number) for number in (0, 1))
    np.testing.assert_array_equal(first, second)
    assert np.any(first != images)


@pytest.mark.parametrize("of_draws", [False, True])
def test_a_fixed_draw_is_one_pass_however_many_draws_are_asked_for(of_draws):
    passes = []

    def logits(images, seed):
        passes.append(len(images))
        return seeded_net(images, seed)

    def several(images, seeds, _):
        return tf.stack([logits(images, seed) for seed in tf.unstack(seeds)])

    fixed = SampledTarget(logits, logits_of_draws=several if of_draws else None).with_fixed_draw(make_seed(6))
    assert fixed.logits(random_images(4), make_seed(0), 50).shape[0] == 50 and passes == [4]


def test_a_net_without_its_noise():
    target, images = tanh_target(scale=1.0), random_images(4)
    still = target.without_noise()
    draws = still.logits(still.features(images), make_seed(3), 5)
    mean = target.noise_free_logits(target.features(images))
    np.testing.assert_array_equal(draws, np.stack([mean] * 5))
    assert (
        not np.any(still.logit_scale)
        and not np.any(still.difference_scale(still.features(images)))
        and still.num_classes == 4
    )


def test_target_of_a_plain_classifier():
    model = classifier(keras.layers.Dropout(0.5), keras.layers.Dense(4))
    target, images, labels = adapt(model), random_images(6), np.arange(6) % 4
    np.testing.assert_array_equal(target.noise_free_logits(target.features(images)), model(images, training=False))
    np.testing.assert_array_equal(target.logit_scale, np.zeros_like(target.logit_scale))
    kernel = model.layers[-1].kernel.numpy()
    probability = tf.nn.softmax(model(images, training=False)).numpy() - np.eye(4)[labels]
    gradient = (probability @ kernel.T).reshape(-1, *SHAPE)
    expected = np.clip(images + EPSILON * np.sign(gradient), 0, 1)
    np.testing.assert_allclose(
        run(build_attack("fgsm", EPSILON), target, images, labels), expected, rtol=0, atol=PIXEL_TOLERANCE
    )


@pytest.mark.parametrize("covariance", ["none", "isotropic", "anisotropic"])
def test_target_of_a_net_with_a_bottleneck(covariance):
    inputs = keras.Input(SHAPE)
    options = {"num_classes": 3, "feature_dim": 4}
    backbone = keras.Model(inputs, keras.layers.Flatten()(inputs))
    noisy = covariance != "none"
    model = WCANet(backbone, covariance=covariance, **options) if noisy else BottleneckNet(backbone, **options)
    model.build((None, *SHAPE))
    target, images = adapt(model), random_images(5)
    features = target.features(images)
    np.testing.assert_array_equal(features, model.features(images))
    np.testing.assert_array_equal(target.noise_free_logits(features), model.classifier(features))
    np.testing.assert_array_equal(target.logit_scale, model.logit_scale)
    assert np.any(target.logit_scale) == noisy


def test_target_of_a_net_with_random_features():
    """Its draws are Keras's own: each is another, and its gradients are of what was drawn."""
    target = adapt(classifier(keras.layers.Dense(8), AnisotropicNoise(), keras.layers.Dense(3)))
    assert isinstance(target, SampledTarget) and target.noise_free_logits is None
    images = random_images(4)
    draws = target.logits(images, make_seed(0), 5).numpy()
    assert draws.shape == (5, 4, 3) and len(np.unique(draws[:, 0, 0])) == 5
    # In an attack's graph too: 400 logits of one image have the deviation of 400 outside, within 5 standard errors.
    copies = tf.repeat(images[:1], 100, axis=0)
    inside = tf.function(lambda x: target.logits(x, make_seed(0), 4))(copies).numpy()
    outside = target.logits(copies, make_seed(0), 4).numpy()
    ratio = inside.std(axis=(0, 1)) / outside.std(axis=(0, 1))
    assert len(np.unique(inside[..., 0])) > 390 and np.all(np.abs(np.log(ratio)) < 5 / np.sqrt(400))
    adversarial = run(build_attack("margin:steps=5", EPSILON, eot_samples=4), target, images, np.array([0, 1, 2, 0]))
    assert np.all(np.any(adversarial != images, axis=(1, 2, 3)))


def test_target_of_a_wca_net_with_a_random_backbone():
    inputs = keras.Input(SHAPE)
    backbone = keras.Model(inputs, AnisotropicNoise()(keras.layers.Flatten()(inputs)))
    model = WCANet(backbone, num_classes=3, feature_dim=4, covariance="anisotropic")
    model.build((None, *SHAPE))
    assert isinstance(adapt(model), SampledTarget)


@keras.saving.register_keras_serializable("tests")
class RareSign(keras.layers.Layer):
    """Turn the sign of the features in one call of twenty."""

    def __init__(self, seed):
        super().__init__()
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, features):
        return tf.where(keras.random.uniform((), seed=self.generator) < 0.05, -features, features)


class AlwaysDropout(keras.layers.Dropout):
    def call(self, inputs, training=None):
        return super().call(inputs, training=True)


def called_in_training(layer):
    """A functional classifier that calls a layer with training=True: the usual way to keep dropout at test time."""
    inputs = keras.Input(SHAPE)
    features = layer(keras.layers.Flatten()(inputs), training=True)
    return keras.Model(inputs, keras.layers.Dense(3)(features))


def inside(model):
    inputs = keras.Input(SHAPE)
    return keras.Model(inputs, keras.layers.Identity()(model(inputs)))


@pytest.mark.parametrize("how", ["as it is", "inside a model", "inside a sequence", "from a file"])
def test_dropout_called_with_training_stays_on(how, tmp_path):
    """Keras switches it off in `model(images, training=False)` and in `predict`."""
    model = called_in_training(keras.layers.Dropout(0.5))
    if how == "inside a model":
        model = inside(model)
    elif how == "inside a sequence":
        model = keras.Sequential([keras.Input(SHAPE), model])
    elif how == "from a file":
        model.save(tmp_path / "net.keras")
        model = keras.models.load_model(tmp_path / "net.keras")
    target, images = adapt(model), random_images(4)
    assert isinstance(target, SampledTarget)
    draws = target.logits(images, make_seed(0), 150).numpy()
    assert len(np.unique(draws[:, 0, 0])) > 30  # of 2^6 masks
    np.testing.assert_array_equal(draws[:20], target.logits(images, make_seed(0), 20))  # the draws follow the seed
    error = draws.std(axis=0) / np.sqrt(150)  # dropout does not change the mean before a linear layer
    without_noise = target.noise_free_logits(images).numpy()
    np.testing.assert_array_equal(without_noise, model(images, training=False))
    assert np.all(np.abs(draws.mean(axis=0) - without_noise) < 5 * error)


def test_noise_that_stays_on_in_inference_leaves_no_net_without_noise():
    inputs = keras.Input(SHAPE)
    features = keras.layers.Dropout(0.5)(keras.layers.Flatten()(inputs), training=True)
    model = keras.Model(inputs, RareSign(0)(AlwaysDropout(0.5)(keras.layers.Dense(3)(features))))
    assert adapt(model).noise_free_logits is None


def test_a_model_that_is_called_with_training_keeps_its_dropout():
    inputs = keras.Input(SHAPE)
    inner = classifier(keras.layers.Dropout(0.5), keras.layers.Dense(3))
    assert isinstance(adapt(keras.Model(inputs, inner(inputs, training=True))), SampledTarget)


@pytest.mark.parametrize("seed", range(8))
def test_noise_that_acts_rarely_is_known_by_its_generator(seed):
    """16 calls may miss it, in a graph or outside."""
    target = adapt(classifier(keras.layers.Dense(3), RareSign(seed)))
    assert isinstance(target, SampledTarget)


class InTraining(keras.Model):
    """A model whose own `call` has training=True unless it is told otherwise."""

    def __init__(self, *layers):
        super().__init__()
        self.net = classifier(*layers)

    def call(self, images, training=True):
        return self.net(images, training=training)


@pytest.mark.parametrize("how", ["as it is", "inside a model", "in a model that is called so"])
def test_batch_normalization_called_with_training_is_refused(how):
    """It would learn from the images under attack, and each answer would depend on the batch."""
    statistics, inputs = keras.layers.BatchNormalization(name="statistics"), keras.Input(SHAPE)
    if how == "in a model that is called so":
        model = keras.Model(inputs, classifier(statistics, keras.layers.Dense(3))(inputs, training=True))
    else:
        model = called_in_training(statistics)
    with pytest.raises(InputError, match="does not learn from the images.*statistics"):
        adapt(inside(model) if how == "inside a model" else model, SHAPE)
    np.testing.assert_array_equal(statistics.moving_mean, np.zeros(PIXELS))


def test_frozen_batch_normalization_called_with_training_does_not_learn_and_is_taken():
    frozen = keras.layers.BatchNormalization(trainable=False)
    model, images = called_in_training(frozen), random_images(4)
    np.testing.assert_array_equal(adapt(model).features(images), model(images, training=False))


def test_a_model_whose_call_has_training_by_default_is_that_of_predict():
    statistics, images = keras.layers.BatchNormalization(), random_images(4)
    model = InTraining(statistics, keras.layers.Dropout(0.5), keras.layers.Dense(3))
    np.testing.assert_allclose(adapt(model, SHAPE).features(images), model.predict(images, verbose=0), atol=1e-6)
    np.testing.assert_array_equal(statistics.moving_mean, np.zeros(PIXELS))
    assert isinstance(
        adapt(InTraining(keras.layers.Dropout(0.5), keras.layers.Dense(3)), SHAPE, training=True), SampledTarget
    )


@pytest.mark.parametrize("seed", range(8))
def test_noise_that_acts_rarely_leaves_no_net_without_noise(seed):
    """16 calls may miss it."""
    model = classifier(keras.layers.Dense(3), RareSign(seed))
    assert adapt(model, outputs="logits").noise_free_logits is None  # by chance they all lie between 0 and 1


def test_noise_that_python_draws_is_refused():
    """A graph keeps the numbers of its first call: all draws of a judgement would be one draw."""
    noise = np.random.default_rng(0)
    layer = keras.layers.Lambda(lambda x: x + noise.normal(size=(1, 4)).astype(np.float32))
    with pytest.raises(InputError, match=r"draws from TensorFlow or Keras.*tf\.random") as raised:
        adapt(classifier(keras.layers.Dense(4), layer))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("call", ["direct", "evaluate"])
def test_a_target_whose_noise_python_draws_is_refused(call):
    noise = np.random.default_rng(0)
    target = SampledTarget(lambda x, seed: seeded_net(x, seed) + noise.normal(size=(1, 3)).astype(np.float32))
    with pytest.raises(InputError, match="Python or NumPy draws"):
        CALLS[call](target)


@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_one_output_is_the_difference_of_two_logits(activation):
    model, images = classifier(keras.layers.Dense(1, activation=activation)), random_images(4)
    logits = adapt(model).features(images)
    difference = logits[:, 1:] - logits[:, :1]
    np.testing.assert_allclose(tf.sigmoid(difference) if activation else difference, model(images), atol=1e-5)


ENDS = {
    "a softmax": (lambda: classifier(keras.layers.Dense(4, activation="softmax")), tf.nn.softmax),
    "a sigmoid": (lambda: classifier(keras.layers.Dense(4, activation="sigmoid")), tf.sigmoid),
    "an inner model": (lambda: inside(classifier(keras.layers.Dense(4, activation="sigmoid"))), tf.sigmoid),
    "an operation": (lambda: applied(keras.ops.softmax), tf.nn.softmax),
    "a layer, then a reshape": (
        lambda: classifier(keras.layers.Dense(4), keras.layers.Softmax(), keras.layers.Reshape((4,))),
        tf.nn.softmax,
    ),
    "a model of its own class": (lambda: InTraining(keras.layers.Dense(4, activation="softmax")), tf.nn.softmax),
    "the last of two": (lambda: applied(lambda x: keras.ops.softmax(2 * keras.ops.softmax(x))), tf.nn.softmax),
}


@pytest.mark.parametrize("how", ENDS)
def test_the_last_activation_is_left_out_wherever_it_is(how):
    make, activation = ENDS[how]
    model, images = make(), random_images(5)
    target = adapt(model, SHAPE)
    logits = target.features(images)
    assert "before the" in target.net.outputs and np.abs(logits - model(images)).max() > 0.01
    answers = model(images).numpy()
    np.testing.assert_allclose(activation(logits), answers, atol=1e-5)
    with tf.GradientTape() as tape:
        tape.watch(images)
        logits = target.features(images)[:, 0]
    assert np.any(tape.gradient(logits, images) != 0)
    np.testing.assert_array_equal(model(images), answers)  # the model is as before


def test_a_softmax_in_bfloat16_is_left_out():
    model = classifier(
        keras.layers.Dense(4),
        keras.layers.Softmax(dtype="bfloat16"),
        keras.layers.Activation("linear", dtype="float32"),
    )
    target = adapt(model, SHAPE)
    assert "before the softmax" in target.net.outputs
    images = random_images(5)
    np.testing.assert_allclose(tf.nn.softmax(target.features(images)), model(images), atol=0.01)


SATURATING_ENDS = {
    "a cast": lambda: applied(lambda x: keras.ops.cast(keras.ops.tanh(keras.ops.cast(x, "float16")), "float32")),
    "a reshape": lambda: classifier(keras.layers.Dense(4, activation="hard_sigmoid"), keras.layers.Reshape((4,))),
    "code": lambda: classifier(keras.layers.Dense(4), keras.layers.Lambda(lambda x: 1 / (1 + tf.exp(-x)))),
}


def applied(operation):
    inputs = keras.Input(SHAPE)
    return keras.Model(inputs, operation(classifier(keras.layers.Dense(4))(inputs)))


@pytest.mark.parametrize("how", SATURATING_ENDS)
def test_an_end_that_saturates_is_refused_wherever_it_is(how):
    with pytest.raises(InputError, match="expected a net that returns logits"):
        adapt(SATURATING_ENDS[how](), SHAPE)


def test_random_probabilities_lose_their_softmax_too():
    layers = [keras.layers.Dense(8), AnisotropicNoise(), keras.layers.Dense(3, activation="softmax")]
    target, images = adapt(classifier(*layers)), random_images(4)
    assert isinstance(target, SampledTarget) and "before the softmax" in target.net.outputs
    logits = target.logits(images, make_seed(0), 50).numpy()
    assert np.ptp(logits.sum(axis=2)) > 0.1 and np.ptp(logits[:, 0, 0]) > 0.01


# Targets that users make meet the checks of Keras models


def as_head_noise(logits):
    return GaussianLogitsTarget(flatten, logits, 0.1 * np.ones((4, 1), np.float32))


def as_random_net(logits):
    return SampledTarget(lambda images, seed: logits(flatten(images)))


def four_logits(features):
    return features @ normal(PIXELS, 4, seed=1)


MAKERS = {"head": as_head_noise, "anywhere": as_random_net}
CALLS = {
    "direct": lambda target: attacked(target, "fgsm").images,
    "evaluate": lambda target: wca_tf.evaluate(target, *FOUR, attacks="fgsm", epsilons=0.1, eot_samples=2),
}
FOUR = random_images(4).numpy(), np.array([0, 1, 2, 0])
UNUSABLE = {
    "softmax": (lambda x: tf.nn.softmax(40 * four_logits(x)), "returns probabilities"),
    "sigmoid": (lambda x: tf.sigmoid(four_logits(x)), "numbers are from 0 to 1"),
    "nan": (lambda x: four_logits(x) * np.float32("nan"), "finite logits"),
    "whole numbers": (lambda x: tf.cast(4 * four_logits(x), tf.int32), "logits of a float type, received int32"),
    "two tensors": (lambda x: (four_logits(x), four_logits(x)), "one tensor, received tuple"),
    "a number for each image": (lambda x: four_logits(x)[:, 0], r"logits \[B, C\]"),
}


def attacked(target, text):
    return parse_attack(text, eot_samples=2)(target, *FOUR, epsilon=0.1)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.parametrize("how", UNUSABLE)
def test_a_target_that_returns_no_logits_is_refused(how, made, call):
    logits, told = UNUSABLE[how]
    with pytest.raises(InputError, match=told) as raised:
        CALLS[call](MAKERS[made](logits))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("call", CALLS)
def test_a_target_with_one_output_is_refused(call):
    target = as_random_net(lambda features: four_logits(features)[:, :1])
    with pytest.raises(InputError, match="2 classes or more.*-z/2"):
        CALLS[call](target)


def test_logits_from_0_to_1_are_taken_after_the_message_is_followed():
    with pytest.raises(InputError, match="subtract 1 from each"):
        attacked(as_random_net(lambda x: tf.sigmoid(four_logits(x))), "fgsm")
    moved = attacked(as_random_net(lambda x: tf.sigmoid(four_logits(x)) - 1), "fgsm:objective=margin")
    assert np.any(moved.images != FOUR[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("made", MAKERS)
def test_logits_of_another_precision_are_cast(made, dtype):
    def rounded(features):
        return tf.cast(four_logits(features), dtype)

    found = attacked(MAKERS[made](rounded), "pgd:steps=2")
    expected = attacked(MAKERS[made](lambda features: tf.cast(rounded(features), tf.float32)), "pgd:steps=2")
    for one, other in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_array_equal(one, other)


def test_features_and_noise_of_another_precision_are_taken():
    """As those of Keras layers under a mixed policy, and of NumPy."""
    scale = 0.1 * np.ones((4, 1))
    layer = keras.layers.Dense(4, dtype="mixed_float16")
    target = GaussianLogitsTarget(lambda images: tf.cast(flatten(images), tf.float16), layer, scale)
    assert attacked(target, "z_margin:steps=2").images.dtype == np.float32


def test_a_net_without_its_noise_may_have_another_precision():
    target = SampledTarget(seeded_net, noise_free_logits=lambda x: tf.cast(seeded_net(x, [0, 0]), tf.float64))
    assert np.any(attacked(target, "transfer:steps=2").images != FOUR[0])


def test_a_net_without_its_noise_that_returns_probabilities_is_refused():
    target = SampledTarget(seeded_net, noise_free_logits=lambda x: tf.nn.softmax(seeded_net(x, [0, 0])))
    with pytest.raises(InputError, match="without its noise.*returns probabilities"):
        attacked(target, "fgsm")


def test_a_net_without_its_noise_has_the_classes_of_the_net():
    target = SampledTarget(seeded_net, noise_free_logits=lambda x: four_logits(flatten(x)))
    with pytest.raises(InputError, match="expected logits of 4 classes, received 3"):
        attacked(target, "fgsm")


def test_a_target_is_checked_at_its_first_attack_alone():
    calls = []

    def logits(images, seed):
        calls.append(seed)
        return seeded_net(images, seed)

    target = SampledTarget(logits)
    attacked(target, "fgsm")
    before = len(calls)
    assert before > 0
    attacked(target, "fgsm")
    assert len(calls) == before


def test_a_checked_target_is_freed():
    target = as_head_noise(four_logits)
    check_target(target, SHAPE)
    gone = weakref.ref(target)
    del target
    gc.collect()
    assert gone() is None


def test_the_target_of_a_linear_end_may_have_logits_from_0_to_1():
    """Its layer tells that it is no sigmoid, also where the target is given in place of the model."""
    last = keras.layers.Dense(4, kernel_initializer="zeros", bias_initializer=keras.initializers.Constant(0.5))
    assert attacked(adapt(classifier(last)), "fgsm").probability_correct.shape == (4,)


def test_a_fixed_draw_of_each_image_follows_from_its_number():
    target, images = tanh_target(scale=1.0), random_images(3)
    features, indices = target.features(images), tf.constant([4, 4, 9], tf.int64)
    fixed = target.with_fixed_draw(make_seed(3), indices)
    found = fixed.logits(features, make_seed(8), 2).numpy()
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], target.logits(features, make_seed(3), 1, indices)[0])
    noise = found[0] - target.noise_free_logits(features).numpy()
    np.testing.assert_allclose(noise[0], noise[1], atol=1e-5)
    assert np.abs(noise[0] - noise[2]).max() > 0.1


def test_single_draw_attacks_each_image_under_its_own_draw():
    """The images of a batch share no draw, so that luck averages out over them."""
    target, images = tanh_target(scale=1.0), random_images(3)
    labels, indices = np.array([0, 1, 2]), np.array([4, 8, 9])
    attack = parse_attack("single_draw:steps=3:random_start=false")
    found = attack(target, images, labels, epsilon=0.1, indices=indices, seed=5).images
    alone = [
        attack(target, images[i : i + 1], labels[i : i + 1], epsilon=0.1, indices=indices[i : i + 1], seed=5).images[0]
        for i in range(3)
    ]
    np.testing.assert_allclose(found, alone, atol=1e-6)
    elsewhere = attack(target, images, labels, epsilon=0.1, indices=indices + 1, seed=5).images
    assert not np.allclose(found, elsewhere, atol=1e-6)


def test_the_graphs_of_a_net_that_was_attacked_and_judged_are_freed_with_it():
    """Else a command that attacks dozens of nets runs out of memory."""
    images, labels, indices = random_images(4, shape=(14, 14, 1)), tf.zeros([4], tf.int64), tf.range(4)
    attack = parse_attack("pgd:steps=2:eot_samples=2")

    def graphs_left():
        net = parse_defence("rse").build(NetRequest((14, 14, 1), 10, backbone="lenet5"))
        net.build((None, 14, 14, 1))
        attacked = attack.run(net.target(), images, labels, 0.1, indices, make_seed(0))
        judge(net.target(), attacked.images, labels, indices, 0)
        del net
        gc.collect()
        return sum(isinstance(each, FuncGraph) for each in gc.get_objects())

    assert graphs_left() == graphs_left()
