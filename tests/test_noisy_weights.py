"""Layers with noise: outputs by formulas of NumPy with the same draws, and the law of what an image meets."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.lib.stride_tricks import sliding_window_view

from wca_tf.core.seeds import fold_in
from wca_tf.defences.adv_bnn.layers import BayesianAffine, BayesianConvolution, BayesianDense, gaussian_kl
from wca_tf.defences.ctrw.net import RaisedToMinimum, RandomPixelWeights
from wca_tf.defences.l2p.net import AtLeast, LearnedActivationNoise
from wca_tf.defences.pni.layers import ProportionalConvolution, ProportionalDense
from wca_tf.nets.noise import ActivationNoise, Draws, drawing
from wca_tf.nets.noisy_weights import positive_sqrt

SHAPE, FILTERS, SIZE = (6, 5, 3), 4, 3
DRAWS, IMAGES = 2, 3
SEEDS, INDICES = tf.constant([[1, 2], [3, 4]]), tf.constant([7, 0, 5], tf.int64)
NUMBER = 4  # of the layer in its net
# Five standard errors of a mean are 0.08 deviations, of a variance or a covariance 0.11 of it.
MANY = 4_000


def draws_of(seeds=SEEDS, indices=INDICES):
    return Draws(seeds, indices)


def called(layer, inputs, draws=None):
    def call(inputs):
        with drawing(draws_of() if draws is None else draws):
            return layer(inputs)

    return tf.function(call)(inputs).numpy()


def built(layer, shape):
    layer.number = NUMBER
    layer.build((None, *shape))
    random = np.random.default_rng(1)
    for weight in layer.trainable_weights:  # none is at a start value that hides a fault
        weight.assign(weight + 0.1 * random.normal(size=weight.shape))
    return layer


def normal(shape, seed):
    return tf.random.stateless_normal(shape, seed).numpy()


def by_draw(shape):
    """The numbers that all images of a draw share, [DRAWS, *shape], from the seeds alone."""
    return np.stack([normal(shape, fold_in(seed, NUMBER)) for seed in SEEDS])


def by_image(shape):
    """The numbers of each image, [DRAWS, IMAGES, *shape], from the seeds and the images' numbers alone."""
    return np.stack([[normal(shape, fold_in(fold_in(seed, NUMBER), i)) for i in INDICES] for seed in SEEDS])


def convolved(images, kernels):
    """[N, H, W, C] by a kernel of its own for each, [N, h, w, C, F], without padding."""
    windows = sliding_window_view(images, (SIZE, SIZE), axis=(1, 2))  # [N, H, W, C, h, w]
    return np.einsum("nxychw,nhwcf->nxyf", windows, kernels)


def inputs_of(shape=SHAPE, seed=0):
    return np.random.default_rng(seed).normal(size=(DRAWS * IMAGES, *shape)).astype(np.float32)


def scales(layer):
    """The standard deviations of kernel and bias, by the defences' own formulas."""
    kernel = layer.kernel.numpy()
    if hasattr(layer, "alpha"):
        return layer.alpha.numpy() * kernel.std(ddof=1), None
    return np.exp(layer.kernel_log_deviation.numpy()), np.exp(layer.bias_log_deviation.numpy())


CONVOLUTIONS = {
    "pni": lambda **kw: ProportionalConvolution(FILTERS, SIZE, amplitude=0.3, **kw),
    "pni by channel": lambda **kw: ProportionalConvolution(FILTERS, SIZE, amplitude=0.3, shared_by="channel", **kw),
    "adv_bnn": lambda **kw: BayesianConvolution(FILTERS, SIZE, log_deviation=-1.0, **kw),
}
DENSES = {
    "pni": lambda **kw: ProportionalDense(FILTERS, amplitude=0.3, **kw),
    "pni by element": lambda **kw: ProportionalDense(FILTERS, amplitude=0.3, shared_by="element", **kw),
    "adv_bnn": lambda **kw: BayesianDense(FILTERS, log_deviation=-1.0, **kw),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_by_batch_is_that_of_the_kernel_drawn(name):
    layer, images = built(CONVOLUTIONS[name](scope="batch"), SHAPE), inputs_of()
    kernel_scale, bias_scale = scales(layer)
    shape = layer.kernel.shape
    numbers = by_draw((int(np.prod(shape)) + (0 if bias_scale is None else FILTERS),))
    kernels = layer.kernel.numpy() + kernel_scale * numbers[:, : np.prod(shape)].reshape(DRAWS, *shape)
    biases = layer.bias.numpy() + (0 if bias_scale is None else bias_scale * numbers[:, np.prod(shape) :])
    expected = convolved(images, np.repeat(kernels, IMAGES, axis=0))
    expected += np.repeat(np.broadcast_to(biases, (DRAWS, FILTERS)), IMAGES, axis=0)[:, None, None]
    np.testing.assert_allclose(called(layer, images), expected, atol=1e-5)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_by_image_is_that_of_the_draw_with_flipped_signs(name):
    layer, images = built(CONVOLUTIONS[name](scope="image"), SHAPE), inputs_of()
    kernel_scale, bias_scale = scales(layer)
    shape, channels = layer.kernel.shape, SHAPE[-1]
    more = 0 if bias_scale is None else FILTERS
    noise = kernel_scale * by_draw((int(np.prod(shape)) + more,))[:, : np.prod(shape)].reshape(DRAWS, *shape)
    numbers = by_image((channels + FILTERS + more,)).reshape(DRAWS * IMAGES, -1)
    inner, outer = np.sign(numbers[:, :channels]), np.sign(numbers[:, channels : channels + FILTERS])
    flipped = np.repeat(noise, IMAGES, axis=0) * inner[:, None, None, :, None] * outer[:, None, None, None]
    biases = layer.bias.numpy() + (0 if bias_scale is None else bias_scale * numbers[:, channels + FILTERS :])
    expected = convolved(images, layer.kernel.numpy() + flipped) + np.broadcast_to(biases, (6, FILTERS))[:, None, None]
    np.testing.assert_allclose(called(layer, images), expected, atol=1e-5)


@pytest.mark.parametrize("name", DENSES)
@pytest.mark.parametrize("scope", ["image", "batch"])
def test_a_dense_layer_is_that_of_the_numbers_drawn(name, scope):
    layer, inputs = built(DENSES[name](scope=scope), (8,)), inputs_of((8,))
    kernel_scale, bias_scale = scales(layer)
    kernel, kernel_scale = layer.kernel.numpy(), np.broadcast_to(kernel_scale, layer.kernel.shape)
    if scope == "image":
        variance = inputs**2 @ kernel_scale**2 + (0 if bias_scale is None else bias_scale**2)
        numbers = by_image((FILTERS,)).reshape(-1, FILTERS)
        expected = inputs @ kernel + layer.bias.numpy() + np.sqrt(variance) * numbers
    else:
        numbers = by_draw((kernel.size + (0 if bias_scale is None else FILTERS),))
        kernels = kernel + kernel_scale * numbers[:, : kernel.size].reshape(DRAWS, *kernel.shape)
        biases = layer.bias.numpy() + (0 if bias_scale is None else bias_scale * numbers[:, kernel.size :])
        expected = np.einsum("sbi,sio->sbo", inputs.reshape(DRAWS, IMAGES, -1), kernels)
        expected = (expected + np.broadcast_to(biases, (DRAWS, FILTERS))[:, None]).reshape(-1, FILTERS)
    np.testing.assert_allclose(called(layer, inputs), expected, atol=1e-5)


@pytest.mark.parametrize("scope", ["image", "batch"])
@pytest.mark.parametrize(
    "make",
    [
        lambda scope: LearnedActivationNoise(0.25, 0.01, scope),
        lambda scope: RandomPixelWeights(2 / 3, scope),
        lambda scope: BayesianAffine(log_deviation=-1.0, scope=scope),
    ],
    ids=["l2p", "ctrw", "adv_bnn"],
)
def test_noise_on_features_is_that_of_the_numbers_drawn(make, scope):
    layer, features = built(make(scope), SHAPE), inputs_of()
    channels = SHAPE[-1]
    shape = (2 * channels,) if isinstance(layer, BayesianAffine) else SHAPE
    drawn = by_image(shape) if scope == "image" else np.repeat(by_draw(shape)[:, None], IMAGES, axis=1)
    drawn = drawn.reshape(-1, *shape)
    if isinstance(layer, LearnedActivationNoise):
        expected = features + layer.sigma.numpy() * drawn
    elif isinstance(layer, RandomPixelWeights):
        expected = features * (layer.mean.numpy() + layer.deviation.numpy() * drawn)
    else:
        gamma = layer.gamma.numpy() + np.exp(layer.gamma_log_deviation.numpy()) * drawn[:, :channels]
        beta = layer.beta.numpy() + np.exp(layer.beta_log_deviation.numpy()) * drawn[:, channels:]
        expected = gamma[:, None, None] * features + beta[:, None, None]
    np.testing.assert_allclose(called(layer, features), expected, atol=1e-5)
    with drawing(None):
        assert not np.allclose(layer(features), expected, atol=1e-3)


def test_noise_on_images_has_a_deviation_for_each_channel():
    layer, images = ActivationNoise([1.0, 2.0, 3.0]), inputs_of()
    layer.number = NUMBER
    expected = images + np.array([1, 2, 3]) * by_image(SHAPE).reshape(-1, *SHAPE)
    np.testing.assert_allclose(called(layer, images), expected, atol=1e-5)


# The law of what an image meets


def outputs_of_many_draws(layer, image):
    """Outputs [MANY, ...] of one image under as many draws."""
    seeds = tf.stack([tf.range(MANY), tf.fill([MANY], 9)], axis=1)
    return called(layer, np.repeat(image[None], MANY, axis=0), Draws(seeds, tf.zeros([1], tf.int64)))


@pytest.mark.parametrize("scope", ["image", "batch"])
def test_positions_of_an_image_share_the_kernel_that_was_drawn(scope):
    """Cov(y_p, y_q) = Σ_k x_pk x_qk S_k²: independent noise at each position would have 0 for p ≠ q."""
    layer = built(BayesianConvolution(2, 2, log_deviation=-1.0, use_bias=False, scope=scope), (3, 2, 2))
    image = np.random.default_rng(3).normal(size=(3, 2, 2)).astype(np.float32)
    found = outputs_of_many_draws(layer, image)[:, :, 0]  # [MANY, positions, filters]
    variance = np.exp(2 * layer.kernel_log_deviation.numpy())
    patches = np.stack([image[row : row + 2] for row in range(2)])  # [positions, h, w, channels]
    expected = np.einsum("phwc,qhwc,hwcf->fpq", patches, patches, variance)
    for number in range(2):
        covariance = np.cov(found[:, :, number].T)
        sizes = np.sqrt(np.outer(np.diag(expected[number]), np.diag(expected[number])))
        np.testing.assert_array_less(np.abs(covariance - expected[number]), 0.11 * sizes)
    mean = np.einsum("phwc,hwcf->pf", patches, layer.kernel.numpy())
    deviation = np.sqrt(np.stack([np.diag(each) for each in expected], axis=1))
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - mean), 0.08 * deviation)


@pytest.mark.parametrize("scope", ["image", "batch"])
def test_outputs_of_a_dense_layer_have_the_moments_of_its_weights(scope):
    layer = built(BayesianDense(3, log_deviation=-1.0, scope=scope), (5,))
    inputs = np.random.default_rng(4).normal(size=5).astype(np.float32)
    found = outputs_of_many_draws(layer, inputs)
    variance = inputs**2 @ np.exp(2 * layer.kernel_log_deviation.numpy())
    variance += np.exp(2 * layer.bias_log_deviation.numpy())
    np.testing.assert_array_less(
        np.abs(found.mean(axis=0) - inputs @ layer.kernel.numpy() - layer.bias.numpy()), 0.08 * np.sqrt(variance)
    )
    np.testing.assert_allclose(found.var(axis=0), variance, rtol=0.11)
    assert np.abs(np.corrcoef(found.T) - np.eye(3)).max() < 0.08


def check_moments(found, mean, deviation):
    """`found` [MANY, ...] has this mean and standard deviation, elementwise, within five standard errors."""
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - mean), 0.08 * deviation + 1e-6)
    np.testing.assert_allclose(found.var(axis=0), deviation**2, rtol=0.11)


@pytest.mark.parametrize("scope", ["image", "batch"])
@pytest.mark.parametrize("shared_by", ["layer", "channel", "element"])
def test_outputs_of_pni_have_the_moments_of_its_kernel(shared_by, scope):
    image = np.random.default_rng(3).normal(size=(2, 2, 2)).astype(np.float32)
    layer = built(ProportionalConvolution(3, 2, amplitude=0.3, shared_by=shared_by, scope=scope), (2, 2, 2))
    scale = np.broadcast_to(layer.alpha.numpy() * layer.kernel.numpy().std(ddof=1), layer.kernel.shape)
    mean = np.einsum("hwc,hwcf->f", image, layer.kernel.numpy()) + layer.bias.numpy()
    deviation = np.sqrt(np.einsum("hwc,hwcf->f", image**2, scale**2))
    check_moments(outputs_of_many_draws(layer, image)[:, 0, 0], mean, deviation)


@pytest.mark.parametrize("scope", ["image", "batch"])
def test_outputs_of_l2p_and_ctrw_have_the_moments_of_their_formulas(scope):
    features = np.random.default_rng(6).normal(size=SHAPE).astype(np.float32)
    added = built(LearnedActivationNoise(0.25, 0.01, scope), SHAPE)
    check_moments(outputs_of_many_draws(added, features), features, np.abs(added.sigma.numpy()))
    weights = built(RandomPixelWeights(2 / 3, scope), SHAPE)
    deviation = np.abs(features * weights.deviation.numpy())
    check_moments(outputs_of_many_draws(weights, features), features * weights.mean.numpy(), deviation)


def test_images_of_a_draw_meet_uncorrelated_weights_by_image_and_the_same_by_batch():
    images = np.repeat(np.random.default_rng(5).normal(size=(1, 1, 1, 6)), 2, axis=0).astype(np.float32)
    for scope in ("image", "batch"):
        layer = built(BayesianConvolution(1, 1, log_deviation=-1.0, scope=scope), (1, 1, 6))
        seeds = tf.stack([tf.range(4000), tf.fill([4000], 1)], axis=1)
        inputs = np.tile(images, (4000, 1, 1, 1))
        found = called(layer, inputs, Draws(seeds, tf.range(2, dtype=tf.int64))).reshape(4000, 2)
        correlation = np.corrcoef(found.T)[0, 1]
        assert abs(correlation) < 5 / np.sqrt(4000) if scope == "image" else correlation > 0.9999


def test_the_square_root_of_no_variance_has_no_gradient():
    values = tf.Variable([0.0, 4.0])
    with tf.GradientTape() as tape:
        roots = positive_sqrt(values)
    assert roots.numpy().tolist() == [0, 2] and tape.gradient(roots, values).numpy().tolist() == [0, 0.25]


# The parts of the losses, and the bounds of the noise


def test_the_kl_divergence_is_that_of_gaussians():
    mean, log = np.array([0.3, -1.0]), np.array([-2.0, 0.1])
    sigma, prior = np.exp(log), 0.4
    expected = np.log(prior / sigma) + (sigma**2 + mean**2) / (2 * prior**2) - 0.5
    assert float(gaussian_kl(mean, log, prior)) == pytest.approx(expected.sum(), rel=1e-6)
    assert float(gaussian_kl([0.0], [np.log(0.4)], 0.4)) == pytest.approx(0, abs=1e-6)


def test_a_layers_divergence_counts_every_weight():
    layer = built(BayesianConvolution(FILTERS, SIZE, log_deviation=-1.0), SHAPE)
    parts = [(layer.kernel, layer.kernel_log_deviation), (layer.bias, layer.bias_log_deviation)]
    expected = sum(float(gaussian_kl(mean, log, 0.2)) for mean, log in parts)
    assert float(layer.kl_divergence(0.2)) == pytest.approx(expected)


def test_the_deviation_of_pni_is_that_of_a_sample_and_has_no_gradient():
    layer = built(ProportionalDense(FILTERS, amplitude=0.3), (8,))
    with tf.GradientTape() as tape:
        scale = layer.noise_scale()
    np.testing.assert_allclose(scale, layer.alpha.numpy() * layer.kernel.numpy().std(ddof=1), rtol=1e-5)
    gradients = tape.gradient(scale, [layer.kernel.value, layer.alpha.value])
    assert gradients[0] is None and float(gradients[1][0]) > 0


def test_bounds_hold_after_each_step():
    assert AtLeast(0.01)(tf.constant([-1.0, 0.5])).numpy().tolist() == pytest.approx([0.01, 0.5])
    # The authors' rule: elements below the bound rise by the bound less the smallest element.
    raised = RaisedToMinimum(0.6)(tf.constant([0.1, 0.5, 0.9])).numpy()
    np.testing.assert_allclose(raised, [0.6, 1.0, 0.9], rtol=1e-6)
    layer = LearnedActivationNoise(0.02, 0.01)
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    with drawing(Draws(tf.constant([[1, 2]]), tf.range(4, dtype=tf.int64))):
        layer.number = 0
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer.sigma)
        model.optimizer.apply([tape.gradient(loss, layer.sigma.value)], [layer.sigma])
    np.testing.assert_allclose(layer.sigma, 0.01)
