import keras
import numpy as np
import pytest
import tensorflow as tf

from wca_tf.core import seeds
from wca_tf.core.errors import InputError
from wca_tf.defences.wca import covariance
from wca_tf.defences.wca.noise import AnisotropicNoise, IsotropicNoise

LAYERS = [AnisotropicNoise, IsotropicNoise]
FEATURES = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
each_layer = pytest.mark.parametrize("layer_class", LAYERS)


def built(layer_class, dimension=3, **options):
    """A layer whose covariance is not the initial one."""
    layer = layer_class(**options)
    layer.build((None, dimension))
    rng = np.random.default_rng(1)
    layer.scale_vector.assign(rng.standard_normal(layer.scale_vector.shape))
    return layer


@pytest.fixture
def mixed_bfloat16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(before)


@each_layer
def test_draws_have_the_features_as_mean_and_sigma_as_covariance(layer_class):
    layer, draws = built(layer_class), 100_000
    feature = np.array([0.5, -2.0, 30.0], np.float32)
    noisy = layer(np.tile(feature, (draws, 1)), seed=seeds.make_seed(3)).numpy().astype(np.float64)
    scale_tril = layer.scale_tril.numpy().astype(np.float64)
    sigma = scale_tril @ scale_tril.T
    variances = np.diagonal(sigma)
    # Five standard errors: of a mean, sqrt(S_ii / n); of a covariance, sqrt((S_ii S_jj + S_ij^2) / n). Features of the
    # size of 30 are rounded by 2e-6.
    assert np.all(np.abs(noisy.mean(axis=0) - feature) < 5 * np.sqrt(variances / draws) + 2e-6)
    tolerance = 5 * np.sqrt((np.outer(variances, variances) + sigma**2) / draws)
    assert np.all(np.abs(np.cov(noisy.T) - sigma) < tolerance)


def test_anisotropic_noise_is_correlated_and_isotropic_noise_is_not():
    anisotropic = built(AnisotropicNoise).scale_tril.numpy()
    isotropic = built(IsotropicNoise).scale_tril.numpy()
    assert np.all(np.abs(anisotropic[np.tril_indices(3, -1)]) > 0.01)
    assert np.array_equal(isotropic, np.diag(np.diagonal(isotropic)))
    assert len(set(np.diagonal(isotropic))) == 3


@each_layer
def test_examples_of_a_batch_get_independent_noise(layer_class):
    noise = built(layer_class)(tf.zeros([100_000, 3]), seed=seeds.make_seed(0)).numpy()
    correlation = np.corrcoef(noise[0::2].T, noise[1::2].T)[:3, 3:]
    assert np.all(np.abs(correlation) < 5 / np.sqrt(50_000))  # the standard error of n pairs is 1 / sqrt(n)


@each_layer
@pytest.mark.parametrize("training", [False, True])
def test_noise_is_added_at_training_and_at_test_time(layer_class, training):
    noisy = keras.Sequential([keras.Input((3,)), built(layer_class)])(FEATURES, training=training).numpy()
    assert np.all(noisy != FEATURES)


@each_layer
def test_every_call_draws_new_noise(layer_class):
    layer = built(layer_class)
    draws = np.stack([layer(FEATURES) for _ in range(5)])
    assert len(np.unique(draws)) == draws.size


@each_layer
def test_layers_of_different_seeds_draw_different_noise(layer_class):
    first, again, other = (built(layer_class, seed=seed)(FEATURES).numpy() for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.any(first == other)


@each_layer
def test_a_given_seed_decides_the_noise_and_leaves_the_stream_where_it_was(layer_class):
    layer = built(layer_class)
    state = layer.random_state.numpy()
    first, again = (layer(FEATURES, seed=tf.constant([4, 2])).numpy() for _ in range(2))
    other = layer(FEATURES, seed=tf.constant([4, 3])).numpy()
    assert np.array_equal(first, again)
    assert not np.any(first == other)
    assert np.array_equal(layer.random_state.numpy(), state)


@each_layer
def test_a_call_without_a_seed_uses_the_next_one_of_the_stream(layer_class):
    layer, twin = built(layer_class, seed=5), built(layer_class, seed=5)
    for _ in range(3):
        assert np.array_equal(layer(FEATURES), twin(FEATURES, seed=twin.next_seed()))


@each_layer
def test_graph_and_eager_noise_are_equal(layer_class):
    layer, twin = built(layer_class), built(layer_class)
    seeded = tf.function(lambda features, seed: layer(features, seed=seed))
    seed = tf.constant([7, 8])
    assert np.allclose(seeded(FEATURES, seed), layer(FEATURES, seed=seed), rtol=1e-6, atol=1e-6)
    streamed = tf.function(lambda features: layer(features))
    for _ in range(3):
        assert np.allclose(streamed(FEATURES), twin(FEATURES), rtol=1e-6, atol=1e-6)


@each_layer
def test_a_graph_takes_batches_of_any_size(layer_class):
    layer = built(layer_class)
    graph = tf.function(lambda features: layer(features), input_signature=[tf.TensorSpec([None, 3])])
    for size in (6, 1, 0):
        assert graph(FEATURES[:size]).shape == (size, 3)
    assert graph.experimental_get_tracing_count() == 1


@each_layer
def test_config_round_trips(layer_class):
    layer = layer_class(seed=11, initial_scale=0.3, name="noise", trainable=False)
    copy = keras.layers.deserialize(keras.layers.serialize(layer))
    assert type(copy) is layer_class
    assert copy.get_config() == layer.get_config()
    assert (copy.seed, copy.initial_scale, copy.name, copy.trainable) == (11, 0.3, "noise", False)


@each_layer
def test_a_saved_layer_continues_its_stream(layer_class, tmp_path):
    model = keras.Sequential([keras.Input((3,)), built(layer_class, seed=9)])
    used = model(FEATURES).numpy()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for _ in range(2):
        following = model(FEATURES).numpy()
        assert np.array_equal(loaded(FEATURES), following)
        assert not np.any(following == used)


@each_layer
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_output_is_float32_for_any_float_input(layer_class, dtype):
    layer = built(layer_class)
    features = tf.cast(FEATURES, dtype)
    noisy = layer(features, seed=tf.constant([1, 1]))
    noise = layer(tf.zeros_like(features), seed=tf.constant([1, 1]))
    assert noisy.dtype == tf.float32
    assert np.allclose(noisy, tf.cast(features, tf.float32) + noise, atol=1e-6)


@each_layer
def test_noise_is_float32_under_a_mixed_policy(layer_class, mixed_bfloat16):
    inputs = keras.Input((3,))
    layer = layer_class()
    model = keras.Model(inputs, layer(keras.layers.Dense(3)(inputs)))
    assert model.layers[1].compute_dtype == "bfloat16"
    assert model.output.dtype == layer.compute_dtype == layer.scale_vector.dtype == "float32"
    assert layer.scale_tril.dtype == model(FEATURES).dtype == tf.float32


@each_layer
@pytest.mark.parametrize("initial_scale", [0.001, 1.0, 7.5])
def test_the_covariance_starts_at_the_scaled_identity(layer_class, initial_scale):
    layer = layer_class(initial_scale=initial_scale)
    layer.build((None, 4))
    assert np.allclose(layer.scale_tril, initial_scale * np.eye(4), rtol=1e-4, atol=1e-7)


@each_layer
@pytest.mark.parametrize("initial_scale", [0.0, -1.0, covariance.MIN_SCALE, float("nan")])
def test_an_initial_scale_that_is_not_positive_is_refused(layer_class, initial_scale):
    with pytest.raises(InputError, match="initial_scale"):
        layer_class(initial_scale=initial_scale)


@each_layer
def test_only_the_covariance_is_trained(layer_class):
    layer = built(layer_class)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(tf.square(layer(FEATURES)))
    gradient = tape.gradient(value, layer.scale_vector.value)
    assert [weight.name for weight in layer.trainable_weights] == ["scale_vector"]
    assert np.all(np.isfinite(gradient))
    assert np.all(gradient != 0)
