"""Nets with noise inside: what a draw is, and that draws made together are those made one by one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from attack_nets import random_images
from toy_models import MIN_SIDES

from wca_tf.attacks import parse_attack
from wca_tf.core.errors import InputError
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.gaussian.margins import z_margin
from wca_tf.nets.adapter import adapt
from wca_tf.nets.backbones import BACKBONES, LayerFactory, build_backbone
from wca_tf.nets.judge import judge
from wca_tf.nets.noise import ActivationNoise, Draws, drawing
from wca_tf.nets.noisy_net import NoisyNet
from wca_tf.nets.noisy_weights import NoisyConvolution as WithNoise
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import GaussianLogitsTarget

SHAPE, CLASSES = (6, 6, 2), 3


class NoisyConvolution(WithNoise):
    def noise_scale(self):
        return 0.1


class BeforeConvolutions(LayerFactory):
    """Noise on activations, of each image its own."""

    def convolution(self, inputs, filters, kernel_size, **options):
        return super().convolution(ActivationNoise(0.2)(inputs), filters, kernel_size, **options)


class OnKernels(LayerFactory):
    """Noise on weights, which all images of a draw share."""

    def convolution(self, inputs, filters, kernel_size, **options):
        return NoisyConvolution(filters, kernel_size, dtype=self.precision, **options)(inputs)


def noisy_net(layers, seed=0):
    keras.utils.set_random_seed(seed)
    factory, images = layers("float32"), keras.Input(SHAPE)
    features = factory.convolution(images, 4, 3)
    features = factory.convolution(keras.layers.ReLU()(features), 4, 3, use_bias=False)
    net = NoisyNet(keras.Model(images, keras.layers.Flatten()(features)), CLASSES, (0.5, 0.4), (0.2, 0.3))
    net.build((None, *SHAPE))
    return net


@pytest.fixture(params=[BeforeConvolutions, OnKernels], ids=lambda layers: layers.__name__)
def net(request):
    return noisy_net(request.param)


def test_the_noise_free_net_is_the_one_of_plain_layers(net):
    plain = noisy_net(LayerFactory)
    plain.set_weights(net.get_weights())
    images = random_images(4, shape=SHAPE)
    np.testing.assert_allclose(net.noise_free_logits(images), plain.noise_free_logits(images), atol=1e-6)
    assert not np.allclose(net.logits(images, make_seed(0)), plain.noise_free_logits(images), atol=1e-3)


def test_a_draw_is_what_its_seed_says_and_another_seed_is_another(net):
    images = random_images(4, shape=SHAPE)
    first, again, other = (net.logits(images, make_seed(seed)).numpy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other, atol=1e-3)


@pytest.mark.parametrize("draws", [1, 5, 8, 19])
def test_draws_made_together_are_those_made_one_by_one(net, draws):
    target, images, indices = adapt(net), random_images(3, shape=SHAPE), tf.constant([5, 0, 7], tf.int64)
    together = target.logits(images, make_seed(3), draws, indices).numpy()
    for number in range(draws):
        seed = fold_in(make_seed(3), number)[tf.newaxis]
        np.testing.assert_allclose(together[number], net.logits_of_draws(images, seed, indices)[0], atol=1e-5)


def test_a_gradient_over_draws_made_together_is_the_mean_of_their_gradients(net):
    target, images, indices = adapt(net), random_images(3, shape=SHAPE), tf.range(3, dtype=tf.int64)

    def gradient(logits):
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = tf.reduce_mean(tf.nn.log_softmax(logits())[..., 0])
        return tape.gradient(loss, images)

    together = gradient(lambda: target.logits(images, make_seed(0), 6, indices))
    seeds = [fold_in(make_seed(0), number)[tf.newaxis] for number in range(6)]
    alone = [gradient(lambda seed=seed: net.logits_of_draws(images, seed, indices)) for seed in seeds]
    np.testing.assert_allclose(together, np.mean(alone, axis=0), atol=1e-6)


def test_noise_of_an_image_follows_from_its_number_and_not_from_its_place():
    target, images = adapt(noisy_net(BeforeConvolutions)), random_images(4, shape=SHAPE)
    assert target.per_image_noise
    whole = target.logits(images, make_seed(0), 3, tf.constant([4, 9, 2, 0], tf.int64)).numpy()
    part = target.logits(images[1:3], make_seed(0), 3, tf.constant([9, 2], tf.int64)).numpy()
    np.testing.assert_allclose(part, whole[:, 1:3], atol=1e-5)
    same = target.logits(tf.repeat(images[:1], 2, axis=0), make_seed(0), 1, tf.constant([1, 2], tf.int64)).numpy()
    assert not np.allclose(same[0, 0], same[0, 1], atol=1e-3)


def test_noise_on_weights_is_that_of_all_images_of_a_draw():
    net = noisy_net(OnKernels)
    target, image = adapt(net), random_images(1, shape=SHAPE)
    assert not target.per_image_noise
    logits = target.logits(tf.repeat(image, 3, axis=0), make_seed(0), 2, tf.constant([1, 2, 3], tf.int64)).numpy()
    np.testing.assert_allclose(logits, np.repeat(logits[:, :1], 3, axis=1), atol=1e-6)
    assert not np.allclose(logits[0], logits[1], atol=1e-3)


def test_a_noisy_kernel_is_the_convolution_by_the_kernel_drawn():
    layer = NoisyConvolution(5, 3, strides=2, padding="same")
    layer.number = 0
    layer.build((None, *SHAPE))
    draws, images = Draws(tf.constant([[1, 2], [3, 4]]), tf.range(2, dtype=tf.int64)), random_images(4, shape=SHAPE)
    with drawing(draws):
        found = layer(images).numpy()
    for number in range(2):
        noise = tf.random.stateless_normal(layer.kernel.shape, fold_in(draws.seeds[number], layer.number))
        rows = images[2 * number : 2 * number + 2]
        expected = tf.nn.conv2d(rows, layer.kernel + 0.1 * noise, 2, "SAME") + layer.bias
        np.testing.assert_allclose(found[2 * number : 2 * number + 2], expected, atol=1e-5)


def test_layers_draw_independently_and_activation_noise_has_its_deviation():
    layers = [ActivationNoise(0.5), ActivationNoise(0.5)]
    for number, layer in enumerate(layers):
        layer.number = number
    with drawing(Draws(tf.constant([[0, 1]]), tf.range(400, dtype=tf.int64))):
        first, second = (layer(tf.zeros([400, 5, 5, 4])).numpy().ravel() for layer in layers)
    error = 5 / np.sqrt(len(first))
    assert abs(np.std(first) - 0.5) < 0.5 * error and abs(np.mean(first)) < 0.5 * error
    assert abs(np.corrcoef(first, second)[0, 1]) < error


def test_layers_of_a_model_in_the_backbone_draw_their_own_numbers():
    images = keras.Input(SHAPE)
    inner = keras.Sequential([ActivationNoise(0.2), NoisyConvolution(2, 3)])
    outputs = keras.layers.Flatten()(ActivationNoise(0.2)(inner(images)))
    net = NoisyNet(keras.Model(images, outputs), CLASSES)
    net.build((None, *SHAPE))
    assert [layer.number for layer in net.noise_layers] == [0, 1, 2]
    assert not net.target().per_image_noise  # because of the noisy kernel inside


def test_a_noise_layer_that_its_net_does_not_know_is_an_error():
    """Else all such layers would draw the same numbers."""
    with (
        drawing(Draws(tf.constant([[0, 1]]), tf.range(2, dtype=tf.int64))),
        pytest.raises(InputError, match="NoisyNet"),
    ):
        ActivationNoise(0.5)(tf.zeros([2, 3]))


def test_a_known_draw_is_one_of_the_nets_draws(net):
    target, images, indices = adapt(net), random_images(3, shape=SHAPE), tf.constant([3, 1, 2], tf.int64)
    fixed = target.with_fixed_draw(make_seed(7))
    draws = fixed.logits(images, make_seed(0), 3, indices).numpy()
    expected = net.logits_of_draws(images, fold_in(make_seed(7), 0)[tf.newaxis], indices)[0]
    np.testing.assert_allclose(draws, np.stack([expected] * 3), atol=1e-5)


def test_training_goes_on_after_saving_as_if_it_had_not_stopped(net, tmp_path):
    images, labels = random_images(32, shape=SHAPE).numpy(), np.arange(32) % CLASSES
    net.compile(
        keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
    )
    options = {"batch_size": 16, "shuffle": False, "verbose": 0}
    net.fit(images, labels, **options)
    net.save(tmp_path / "net.keras")
    classes = {"NoisyConvolution": NoisyConvolution}
    loaded = keras.models.load_model(tmp_path / "net.keras", custom_objects=classes)
    assert [layer.number for layer in loaded.noise_layers] == [0, 1]
    for each in (net, loaded):
        each.fit(images, labels, epochs=2, **options)
    for weight, other in zip(net.weights, loaded.weights, strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-6)


def test_an_attack_on_a_part_of_the_images_finds_what_it_finds_on_all():
    """With noise of each image its own, whatever else is in the batch."""
    net, images = noisy_net(BeforeConvolutions), random_images(6, shape=SHAPE)
    labels = np.argmax(net.noise_free_logits(images), axis=1)
    attack = parse_attack("pgd:steps=3:eot_samples=4")
    whole = attack(net, images, labels, 0.1)
    part = attack(net, images[2:4], labels[2:4], 0.1, indices=[2, 3])
    np.testing.assert_allclose(part.images, whole.images[2:4], atol=1e-5)
    np.testing.assert_array_equal(part.probability_correct, whole.probability_correct[2:4])


@pytest.mark.parametrize("name", sorted(set(BACKBONES) - {"resnet18_imagenet", "lipschitz_cnn", "orthogonal_net"}))
def test_a_backbone_is_made_of_the_layers_given(name):
    side = MIN_SIDES.get(name, 8)
    backbone = build_backbone(name, (side, side, 1), layers=OnKernels)
    convolutions = [layer for layer in backbone.layers if isinstance(layer, keras.layers.Conv2D)]
    assert convolutions and all(isinstance(layer, NoisyConvolution) for layer in convolutions)


@pytest.mark.parametrize("name", ["lipschitz_cnn", "orthogonal_net"])
def test_a_lipschitz_backbone_refuses_layers_of_a_defence(name):
    with pytest.raises(InputError, match="without layers of its own"):
        build_backbone(name, (8, 8, 1), layers=OnKernels)


# Gaussian logits whose covariance is each image's own

WEIGHTS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def own_scale_target():
    """mu = f(x) W, and A(x) = Wᵀ diag(sigma(x)) [4, 5], sigma a softplus of other features."""
    mean_of, scale_of = (np.random.default_rng(seed).normal(size=(72, 5)).astype(np.float32) for seed in (1, 2))

    def features(images):
        flat = tf.reshape(images, [-1, 72])
        return tf.concat([0.5 * flat @ mean_of, tf.nn.softplus(flat @ scale_of)], axis=1)

    def logit_scale(features):
        return tf.transpose(WEIGHTS)[tf.newaxis] * features[:, tf.newaxis, 5:]

    return GaussianLogitsTarget(features, lambda features: features[:, :5] @ WEIGHTS, logit_scale, True, True)


def test_draws_of_a_net_with_a_covariance_of_each_image_have_it():
    target, images = own_scale_target(), random_images(2, shape=SHAPE)
    features = target.features(images)
    scale, mean = target.scale_of(features).numpy(), target.noise_free_logits(features).numpy()
    for indices in (None, tf.constant([3, 4], tf.int64)):
        draws = target.logits(features, make_seed(1), 40_000, indices).numpy()
        for i in range(2):
            covariance = scale[i] @ scale[i].T
            error = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / len(draws))
            assert np.all(np.abs(np.cov(draws[:, i].T) - covariance) < 5 * error)
            assert np.all(np.abs(draws[:, i].mean(axis=0) - mean[i]) < 5 * np.sqrt(np.diag(covariance) / len(draws)))


def test_such_a_net_is_judged_exactly():
    target, images = own_scale_target(), random_images(5, shape=SHAPE)
    features = target.features(images)
    labels = np.argmax(target.noise_free_logits(features), axis=1)
    judgement = judge(target, images, tf.constant(labels), np.arange(5), 0)
    draws = target.logits(features, make_seed(9), 40_000).numpy()
    share = (draws.argmax(axis=2) == labels).mean(axis=0)
    error = 5 * np.sqrt(share * (1 - share) / len(draws)) + 1e-3
    assert np.all(np.abs(judgement.probability_correct - share) < error)
    differences = draws[:, np.arange(5), labels][..., np.newaxis] - draws
    ratio = differences.mean(axis=0) / np.where(differences.std(axis=0) > 0, differences.std(axis=0), np.inf)
    ratio[np.arange(5), labels] = np.inf
    np.testing.assert_allclose(judgement.z_margin, ratio.min(axis=1), rtol=0.05, atol=0.03)


def test_z_margins_of_one_covariance_for_all_are_those_of_a_copy_for_each():
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(size=(6, 4)).astype(np.float32), rng.integers(0, 4, 6)
    shared = rng.random((4, 4)).astype(np.float32)
    shared = shared + shared.T
    np.fill_diagonal(shared, 0)
    np.testing.assert_allclose(z_margin(logits, labels, np.stack([shared] * 6)), z_margin(logits, labels, shared))


def test_z_margin_finds_images_on_such_a_net():
    target, images = own_scale_target(), random_images(6, shape=SHAPE)
    labels = np.argmax(target.noise_free_logits(target.features(images)), axis=1)
    before = judge(target, images, tf.constant(labels), np.arange(6), 0).probability_correct
    result = parse_attack("z_margin")(target, images, labels, 0.1)
    assert result.probability_correct.mean() < before.mean() - 0.2


# Attacks on one draw


def noisy_weights_net(images, seed):
    """A linear net of four classes whose weights differ much from draw to draw."""
    flat = tf.reshape(images, [tf.shape(images)[0], -1])
    size = int(np.prod(SHAPE))
    mean = 0.3 * tf.random.stateless_normal([size, 4], [7, 7])
    return tf.matmul(flat, mean + 0.6 * tf.random.stateless_normal([size, 4], seed))


def test_single_draw_is_pgd_on_the_net_under_that_draw():
    target, images, labels = SampledTarget(noisy_weights_net), random_images(3, shape=SHAPE), np.array([0, 1, 2])
    attack = parse_attack("single_draw:steps=3")
    found = attack(target, images, labels, epsilon=0.1, seed=5).images
    fixed = target.with_fixed_draw(fold_in(make_seed(5), 2))
    expected = parse_attack("pgd:steps=3:relative_step_size=0.25")(fixed, images, labels, epsilon=0.1, seed=5).images
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_single_draw_overstates_the_robustness_of_a_net_that_changes_much():
    target, images = SampledTarget(noisy_weights_net), random_images(40, shape=SHAPE)
    labels = target.logits(images, make_seed(1), 400).numpy().mean(axis=0).argmax(axis=1)
    left = {
        name: parse_attack(text, eot_samples=50)(target, images, labels, epsilon=0.1).probability_correct.mean()
        for name, text in (("one", "single_draw"), ("eot", "pgd:steps=20:relative_step_size=0.25"))
    }
    assert left["one"] > left["eot"] + 0.05
