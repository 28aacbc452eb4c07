"""Orthogonal layers and their optimizer, against singular values, NumPy, and runs that never stopped."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg
from test_lipschitz import matrix_of

import wca_tf
from wca_tf.core.errors import InputError
from wca_tf.defences.se_snn.net import SESNNNet
from wca_tf.defences.wca.net import WCANet
from wca_tf.evaluation.measures.certified_head import Head
from wca_tf.nets.backbones import build_backbone
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.inference_copy import inference_copy
from wca_tf.nets.lipschitz import lipschitz_constant, rounding_error
from wca_tf.nets.lipschitz_layers import AOLDense, MaxMin
from wca_tf.nets.loss_terms import LipschitzMargin
from wca_tf.nets.orthogonal_layers import CircularShift, OrthogonalConstraint, OrthogonalDense, polar_factor
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.orthogonal_muon import OrthogonalMuon, matrix_sign, tangent

SHAPES = [(5, 5), (3, 8), (8, 3), (1, 4), (4, 1)]
ATOL = 2e-6


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def dense(inputs, outputs, kernel=None):
    layer = OrthogonalDense(outputs)
    layer.build((None, inputs))
    if kernel is not None:
        layer.kernel.assign(kernel)
    return layer


def toy_net(width=8):
    keras.utils.set_random_seed(1)
    backbone = build_backbone(f"orthogonal_net:width={width}:blocks=1", (8, 8, 1))
    net = BottleneckNet(backbone, 3, 4, lipschitz_bottleneck="orthogonal")
    net.build((None, 8, 8, 1))
    net.margin = LipschitzMargin(0.1, 0.5)
    return net


IMAGES, LABELS = np.abs(random(24, 8, 8, 1)) / 4, np.arange(24) % 3


# Layers


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_new_layer_on_maps_has_all_singular_values_one_and_says_so(inputs, outputs):
    layer = dense(inputs, outputs)
    values = np.linalg.svd(matrix_of(layer, (3, 2, inputs)), compute_uv=False)
    np.testing.assert_allclose(values[: 6 * min(inputs, outputs)], 1.0, atol=ATOL)
    np.testing.assert_allclose(values[6 * min(inputs, outputs) :], 0.0, atol=ATOL)
    assert values[0] <= layer.lipschitz_constant * (1 + 1e-6) and layer.lipschitz_constant < 1 + ATOL


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), shape=st.sampled_from(SHAPES), scale=st.sampled_from([1e-3, 1.0, 30.0]))
def test_the_constant_is_that_of_the_matrix_whatever_the_weights(seed, shape, scale):
    layer = dense(*shape, kernel=scale * random(*shape, seed=seed))
    norm = np.linalg.norm(matrix_of(layer, (2, 2, shape[0])), 2)
    assert layer.lipschitz_constant == pytest.approx(norm, rel=1e-5)
    assert layer.lipschitz_constant >= np.linalg.norm(np.float64(layer.kernel), 2)


def test_a_wrong_constant_is_caught_by_the_matrix_of_the_layer():
    wrong = type("Wrong", (OrthogonalDense,), {"lipschitz_constant": 1.0})(5)
    net = keras.Sequential([keras.Input((5,)), wrong])
    for factor, is_wrong in ((1.0, False), (1.01, True)):
        wrong.kernel.assign(factor * polar_factor(random(5, 5)))
        norm = np.linalg.norm(matrix_of(wrong, (2, 2, 5)), 2)
        assert (norm > (1 + 1e-5) * lipschitz_constant(net)) == is_wrong


def test_a_shift_moves_each_quarter_of_the_channels_its_own_way_and_loses_nothing():
    maps = random(2, 4, 6, 8)
    expected = [np.roll(maps[..., 2 * n : 2 * n + 2], *how) for n, how in enumerate([(1, 1), (-1, 1), (1, 2), (-1, 2)])]
    np.testing.assert_array_equal(CircularShift()(maps), np.concatenate(expected, axis=-1))
    matrix = matrix_of(CircularShift(), (4, 6, 4))
    np.testing.assert_array_equal(matrix @ matrix.T, np.eye(96))


def test_channels_that_four_does_not_divide_and_activations_are_refused():
    with pytest.raises(InputError, match="multiple of 4"):
        CircularShift()(tf.zeros([1, 2, 2, 6]))
    with pytest.raises(InputError, match="without an activation"):
        OrthogonalDense(3, activation="relu")


@pytest.mark.parametrize("size", [0.01, 0.1, 1.0], ids=["near", "nearly near", "far"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_polar_factor_is_that_of_the_singular_value_decomposition(shape, size):
    matrix = size * random(*shape) + (1 + 2 * (size == 1)) * np.eye(*shape, dtype=np.float32)
    left, _, right = np.linalg.svd(np.float64(matrix), full_matrices=False)
    np.testing.assert_allclose(polar_factor(matrix), left @ right, atol=1e-5)


def test_matrices_without_full_rank_keep_a_norm_of_one_at_most():
    one = random(6, 1) @ random(1, 4, seed=1)
    left, _, right = np.linalg.svd(one)
    for matrix, expected in ((0 * one, 0.0), (one, 1.0), (np.float32(1e20) * one, 1.0)):
        factor = polar_factor(matrix).numpy()
        assert left[:, 0] @ factor @ right[0] == pytest.approx(expected, abs=1e-5)
        assert np.linalg.norm(factor, 2) <= 1 + ATOL


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam(0.1), keras.optimizers.SGD(3.0), OrthogonalMuon(0.2)])
def test_weights_stay_orthogonal_under_every_optimizer(optimizer):
    net = keras.Sequential([keras.Input((6,)), OrthogonalDense(8), MaxMin(), OrthogonalDense(3)])
    net.compile(optimizer, "mse", jit_compile=False)
    before = [np.array(layer.kernel) for layer in net.layers[::2]]
    net.fit(random(64, 6), 9 * random(64, 3, seed=1), epochs=2, verbose=0)
    for layer, old in zip(net.layers[::2], before, strict=True):
        values = np.linalg.svd(np.float64(layer.kernel), compute_uv=False)
        np.testing.assert_allclose(values, 1.0, atol=1e-5)
        assert np.abs(layer.kernel - old).max() > 0.05  # it has moved far


# Rounding


def test_rounding_stays_within_its_bound_and_the_bound_is_no_guess():
    net = toy_net()
    for weight in net.trainable_variables:
        if len(weight.shape) == 1:
            weight.assign(random(*weight.shape, seed=len(weight.path)))
    images, moves = 5 * random(50, 8, 8, 1), random(50, 8, 8, 1, seed=3)
    near = images + moves / np.linalg.norm(moves.reshape(50, -1), axis=1)[:, None, None, None]
    norms = np.linalg.norm(images.reshape(50, -1), axis=1)
    for tried, distance in ((images, 0.0), (near, 1.001)):
        exact = inference_copy(net, "float64").backbone(tried.astype(np.float64)).numpy()
        found = np.linalg.norm(net.backbone(tried).numpy() - exact, axis=1)
        bounds = rounding_error(net.backbone, images, distance)
        assert (found > 0).all() and (found <= bounds).all() and (bounds < 4e-5 * norms).all()
        assert (net.rounding(images, distance) > bounds).all()
    assert (rounding_error(net.backbone, images, 1.0) > rounding_error(net.backbone, images)).all()


def test_a_bias_counts_at_every_position_of_a_map():
    layer = OrthogonalDense(4)
    net = keras.Sequential([keras.Input((28, 28, 4)), layer])
    layer.bias.assign([5.0, -5.0, 5.0, -5.0])
    images = 0.01 * random(20, 28, 28, 4)
    exact = images.astype(np.float64) @ np.float64(layer.kernel) + np.float64(layer.bias)
    found = np.linalg.norm((net(images).numpy() - exact).reshape(20, -1), axis=1)
    assert (found <= rounding_error(net, images)).all() and (found > rounding_error(net, 0 * images) / 20).all()


def test_nets_whose_features_are_not_those_of_the_bottleneck_have_no_bound():
    backbone = build_backbone("orthogonal_net:width=8:blocks=1", (8, 8, 1))
    options = {"num_classes": 3, "feature_dim": 4, "lipschitz_bottleneck": "orthogonal"}
    nets = [
        WCANet(backbone, features="normalised", **options),
        SESNNNet(backbone, entropy_weight=0.1, log_deviation=1.0, shift=5.0, **options),
    ]
    for net in nets:
        net.build((None, 8, 8, 1))
        for bound in (net.lipschitz, lambda net=net: net.rounding(IMAGES)):
            with pytest.raises(InputError, match="Lipschitz"):
                bound()


def test_certificates_in_float32_subtract_the_rounding_of_features_and_logits(monkeypatch):
    net, radius = toy_net(), 0.002
    logits, weights = net.noise_free_logits(IMAGES).numpy().astype(np.float64), np.float64(net.class_weights)
    labels, rows = logits.argmax(axis=1), np.arange(len(IMAGES))
    asked = {"attacks": ["fgsm:norm=l2"], "epsilons": [f"l2:{radius}"], "certified_radii": str(radius)}
    [row] = wca_tf.evaluate(net, IMAGES, labels, **asked)["certificates"]["rows"]
    assert 0.5 < row["float32"]["value"] <= row["certificate"]["value"]

    margins = logits[rows, labels, np.newaxis] - logits
    lengths = np.linalg.norm(weights[labels, np.newaxis] - weights, axis=2)
    others = np.arange(3) != labels[:, np.newaxis]
    middle = np.median(np.where(others, margins, np.inf).min(axis=1))
    examples = wca_tf.Examples(IMAGES, labels, ("a", "b", "c"))
    for features, each in ((middle / 2, 0.0), (0.0, middle / 4)):
        monkeypatch.setattr(BottleneckNet, "rounding", lambda self, images, far, e=features: np.full(len(images), e))
        monkeypatch.setattr(BottleneckNet, "logit_rounding", lambda self, given, far, e=each: np.full(len(given), e))
        proved = (margins > (radius * net.lipschitz() + 2 * features) * lengths + 4 * each) | ~others
        found = Head.of(net.target(), net, examples, 10, radius).certified_in_float32(radius * net.lipschitz())
        np.testing.assert_array_equal(found, proved.all(axis=1))
        assert 0 < found.mean() < row["float32"]["value"]


def test_the_rounding_of_logits_is_within_its_bound():
    net = toy_net()
    net.temperature = 0.3
    net.classifier.bias.assign([5.0, -3.0, 0.1])
    features = 20 * random(200, 4)
    exact = (features @ np.float64(net.classifier.kernel) + np.float64(net.classifier.bias)) / 0.3
    off = np.abs(net.logits_of(features).numpy() - exact).max(axis=1)
    assert (off <= net.logit_rounding(features, np.zeros(200))).all() and off.max() > 1e-6
    wider = net.logit_rounding(features, np.ones(200)) - net.logit_rounding(features, np.zeros(200))
    longest = np.linalg.norm(np.float64(net.class_weights), axis=1).max()
    np.testing.assert_allclose(wider, 7 * 2.0**-24 * longest, rtol=1e-5)


@pytest.mark.parametrize("change", [{"pixel_std": (0.25,)}, {"maps": True}])
def test_the_rounding_of_a_net_that_divides_or_averages_is_refused(change):
    layers = [keras.Input((4, 4, 1)), OrthogonalDense(4)]
    layers += [] if change.pop("maps", False) else [keras.layers.Flatten()]
    net = BottleneckNet(keras.Sequential(layers), num_classes=3, lipschitz_bottleneck="orthogonal", **change)
    net.build((None, 4, 4, 1))
    with pytest.raises(InputError, match="expected pixel_std 1 and a backbone that ends in Flatten"):
        net.rounding(np.zeros([1, 4, 4, 1], np.float32))


def test_a_long_sum_of_equal_products_is_within_the_bound_and_above_half_a_step():
    """Each addition rounds the same way here, so that errors add up."""
    count = 4096
    layer = dense(count, 1, np.full((count, 1), 1 / 64, np.float32))
    inputs = np.full((1, count), np.float32(0.1))
    error = abs(float(layer(inputs)[0, 0]) - float(np.float64(inputs[0, 0]) * 64))
    assert 2e-6 < error <= layer.rounding(inputs, np.zeros(1))[0]


def test_a_sum_that_starts_with_a_large_bias_is_within_the_bound():
    """XLA adds the bias first where there is one image: each partial sum is then rounded like the bias."""
    layer = dense(1024, 16, np.float32(linalg.hadamard(1024)[:, :16] / 32))
    layer.bias.assign(np.ones(16))
    inputs = np.full((1, 1024), 16 * np.float32(0.98 * 2**-24), np.float32)
    sums = np.ones(16, np.float32)
    for value, row in zip(inputs[0], layer.kernel.numpy(), strict=True):
        sums = sums + value * row
    exact = np.float64(inputs) @ np.float64(layer.kernel) + 1
    assert np.linalg.norm(sums - exact) > np.linalg.norm(layer(inputs) - exact)
    assert 1e-5 < np.linalg.norm(sums - exact) <= layer.rounding(inputs, np.zeros(1))[0]


def test_errors_and_distances_grow_with_the_norms_of_the_layers_after_them():
    """Each layer adds its own error: e ← K e + own, d ← K d + 2 own, with K = 3 and then 1/2."""
    layers = [OrthogonalDense(2, use_bias=False) for _ in range(3)]
    net = keras.Sequential([keras.Input((2,)), *layers])
    norms = (3.0, 0.5, 2.0)
    for layer, norm in zip(layers, norms, strict=True):
        layer.kernel.assign(norm * np.eye(2))
    inputs, distance, error = np.array([[3.0, 4.0]], np.float32), 100.0, 0.0
    length, gamma = 5.0, 2 * 2.0**-24 / (1 - 2 * 2.0**-24)
    for norm in norms:
        own = gamma * norm * (length + distance)
        length, distance, error = norm * length, norm * distance + 2 * own, norm * error + own
    np.testing.assert_allclose(rounding_error(net, inputs, 100.0), error, rtol=1e-6)


def test_a_net_in_a_net_has_the_bound_of_its_layers():
    inner = keras.Sequential([keras.Input((6,)), OrthogonalDense(4), MaxMin()])
    outer = keras.Sequential([keras.Input((6,)), inner])
    np.testing.assert_array_equal(rounding_error(outer, random(5, 6)), rounding_error(inner, random(5, 6)))


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (AOLDense(4), "orthogonal layers"),
        (MaxMin(dtype="mixed_bfloat16"), "float32, received .* mixed_bfloat16"),
        (OrthogonalDense(4, dtype="float64"), "received .* in float64"),
    ],
    ids=["AOL", "bfloat16", "float64"],
)
def test_the_rounding_of_other_layers_is_not_known(layer, told):
    net = keras.Sequential([keras.Input((6,)), layer])
    with pytest.raises(InputError, match=told):
        rounding_error(net, np.zeros([1, 6], np.float32))


@pytest.mark.parametrize(
    ("inputs", "distance", "told"),
    [
        (np.zeros([0, 6], np.float32), 0.0, r"received float32 of shape \(0, 6\)"),
        (np.zeros([1, 6]), 0.0, "received float64"),
        (np.full([1, 6], np.nan, np.float32), 0.0, "finite"),
        (np.zeros([1, 6], np.float32), -1.0, "0 or more, received -1.0"),
        (np.zeros([1, 6], np.float32), np.nan, "0 or more, received nan"),
    ],
)
def test_the_rounding_of_other_inputs_is_refused(inputs, distance, told):
    net = keras.Sequential([keras.Input((6,)), OrthogonalDense(4)])
    with pytest.raises(InputError, match=told):
        rounding_error(net, inputs, distance)


# The optimizer


def test_a_tangent_step_keeps_orthogonality_to_first_order_and_is_a_projection():
    matrix, step = polar_factor(random(7, 4)), random(7, 4, seed=1)
    found = tangent(matrix, step).numpy()
    product = matrix.numpy().T @ found
    np.testing.assert_allclose(product, -product.T, atol=1e-5)
    np.testing.assert_allclose(tangent(matrix, found), found, atol=1e-5)


def test_the_matrix_sign_has_the_same_directions_and_lengths_near_one():
    matrix = random(7, 4)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    found = left.T @ matrix_sign(matrix).numpy() @ right.T
    assert values.min() / np.linalg.norm(values) > 0.1
    np.testing.assert_allclose(found, np.diag(np.diagonal(found)), atol=1e-4)
    assert (np.diagonal(found) > 0.65).all() and (np.diagonal(found) < 1.25).all()
    assert np.isfinite(matrix_sign(tf.zeros([3, 2]))).all()


def numpy_step(kernel, gradients, rate, momentum, msign):
    """The recipe in float64, each step followed by the polar factor of the SVD."""
    kernel, moved = np.float64(kernel), 0.0
    for gradient in gradients:
        moved = momentum * moved + gradient
        step = gradient + momentum * moved
        wide = kernel.shape[0] < kernel.shape[1]
        w, u = (kernel.T, step.T) if wide else (kernel, step)
        u = u - w @ (w.T @ u + u.T @ w) / 2
        if msign:
            u = u / np.linalg.norm(u)
            for _ in range(5):
                gram = u.T @ u
                u = 3.4445 * u + u @ (-4.7750 * gram + 2.0315 * gram @ gram)
        left, _, right = np.linalg.svd(w - rate * u, full_matrices=False)
        kernel = (left @ right).T if wide else left @ right
    return kernel


@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize("msign", [True, False])
def test_steps_are_those_of_the_recipe(shape, msign):
    layer, gradients = dense(*shape), random(3, *shape, seed=2)
    expected = numpy_step(layer.kernel, gradients, 0.05, 0.9, msign)
    optimizer = OrthogonalMuon(0.05, msign=msign)
    for gradient in gradients:
        optimizer.apply([tf.constant(gradient)], [layer.kernel])
    np.testing.assert_allclose(layer.kernel, expected, atol=1e-5)


def test_weights_that_are_not_orthogonal_are_adams_alone():
    steps = [random(4, 2, seed=seed) for seed in range(3)]
    plain, mixed = (keras.layers.Dense(2, kernel_initializer="ones") for _ in range(2))
    orthogonal = dense(3, 3)
    for layer in (plain, mixed):
        layer.build((None, 4))
    adam, both = keras.optimizers.Adam(0.01), OrthogonalMuon(others=keras.optimizers.Adam(0.01))
    for step in map(tf.constant, steps):
        adam.apply([step], [plain.kernel])
        both.apply([step, tf.eye(3)], [mixed.kernel, orthogonal.kernel])
    np.testing.assert_array_equal(plain.kernel, mixed.kernel)
    assert int(both.iterations) == int(both.others.iterations) == 3


def test_a_net_without_orthogonal_weights_and_options_of_all_weights_are_refused():
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    with pytest.raises(InputError, match="received none"):
        OrthogonalMuon().build(net.trainable_variables)
    for option in ({"clipnorm": 1.0}, {"use_ema": True}, {"gradient_accumulation_steps": 2}, {"weight_decay": 0.1}):
        with pytest.raises(InputError, match=f"without {next(iter(option))}"):
            OrthogonalMuon(**option)
    with pytest.raises(InputError, match="momentum"):
        OrthogonalMuon(momentum=1.0)


def small_net(**options):
    keras.utils.set_random_seed(1)
    net = keras.Sequential([keras.Input((6,)), OrthogonalDense(8), MaxMin(), keras.layers.Dense(3)])
    schedule = keras.optimizers.schedules.CosineDecay(0.03, 20)
    net.compile(OrthogonalMuon(schedule, **options), "mse", jit_compile=False)
    return net


@pytest.mark.parametrize("options", [{}, pytest.param({"loss_scale_factor": 1024.0}, marks=pytest.mark.slow)])
def test_a_net_that_is_saved_and_read_goes_on_with_the_same_bits(options, tmp_path):
    data, fit = (random(24, 6), random(24, 3, seed=1)), {"batch_size": 8, "shuffle": False, "verbose": 0}
    whole, first = (small_net(**options) for _ in range(2))
    whole.fit(*data, epochs=4, **fit)
    first.fit(*data, epochs=2, **fit)
    first.save(tmp_path / "net.keras")
    again = keras.models.load_model(tmp_path / "net.keras")
    again.fit(*data, epochs=2, **fit)
    assert isinstance(again.optimizer, OrthogonalMuon) and int(again.optimizer.others.iterations) == 12
    assert again.optimizer.loss_scale_factor == options.get("loss_scale_factor")
    for one, other in zip(whole.variables, again.variables, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=one.path)
    state, other_state = ([*net.optimizer.variables, *net.optimizer.others.variables] for net in (whole, again))
    for one, other in zip(state, other_state, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=one.path)


# The backbone, and what bin/train takes


@pytest.mark.parametrize(
    ("text", "shape", "features"),
    [
        ("orthogonal_net", (32, 32, 3), 4 * 4 * 256),
        ("orthogonal_net:width=16:blocks=1", (28, 28, 1), 7 * 7 * 32),
        ("orthogonal_net:width=8:blocks=0", (12, 12, 1), 3 * 3 * 16),
    ],
)
def test_the_backbone_has_as_many_stages_as_sides_can_be_halved(text, shape, features):
    net = build_backbone(text, shape)
    assert net.output_shape == (None, features)
    assert lipschitz_constant(net) == pytest.approx(1.0, abs=2e-5)
    dense_layers = [layer for layer in net.layers if isinstance(layer, OrthogonalDense)]
    assert all(isinstance(layer.kernel.constraint, OrthogonalConstraint) for layer in dense_layers)


@pytest.mark.slow
def test_the_features_of_a_trained_net_move_no_further_than_its_constant_allows():
    net = toy_net()
    net.compile(OrthogonalMuon(), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    net.fit(IMAGES, LABELS, batch_size=8, epochs=6, verbose=0)
    image, step = tf.constant(IMAGES[:1]), tf.constant(random(1, 8, 8, 1))
    for _ in range(20):  # power iteration on the Jacobian
        step /= tf.norm(step)
        with tf.autodiff.ForwardAccumulator(image, step) as forward, tf.GradientTape() as tape:
            tape.watch(image)
            features = net.features(image)
        moved = forward.jvp(features)
        step = tape.gradient(features, image, moved)
    assert 0.5 < float(tf.norm(moved)) <= net.lipschitz() * (1 + 1e-6)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"backbone": "orthogonal_net:depth=3"}, "--backbone: .*width, blocks; received 'depth=3'"),
        ({"backbone": "orthogonal_net:width=two"}, "--backbone: .*whole number"),
        ({"backbone": "lenet5:width=8"}, "--backbone: expected lenet5 without options"),
        ({"backbone": "vgg11"}, "--backbone: expected a backbone among"),
        ({"optimizer": "orthogonal_muon"}, "--backbone=orthogonal_net, which has orthogonal weights"),
        ({"optimizer": "orthogonal_nesterov", "backbone": "lipschitz_cnn"}, "received lipschitz_cnn"),
        ({"others_learning_rate": 0.01}, "with --optimizer=orthogonal_muon; received adam"),
        ({"backbone": "orthogonal_net", "defence": "rse"}, "stay Lipschitz"),
    ],
)
def test_what_does_not_go_together_is_refused_before_tensorflow_is_asked(options, told):
    with pytest.raises(InputError, match=told):
        TrainConfig(**options)


def test_images_of_odd_sides_and_widths_that_four_does_not_divide_are_refused():
    for text, shape in (("orthogonal_net", (7, 8, 1)), ("orthogonal_net:width=6", (8, 8, 1))):
        with pytest.raises(InputError, match="even|multiple of 4"):
            build_backbone(text, shape)
    with pytest.raises(InputError, match="aol or orthogonal"):
        BottleneckNet(build_backbone("orthogonal_net", (8, 8, 1)), 3, lipschitz_bottleneck=True)
