import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logsumexp
from toy_models import CLASSES, DIMENSIONS, convolution, make_model, toy_data

from wca_tf.core.errors import InputError
from wca_tf.defences.wca import covariance as noise_covariance
from wca_tf.nets.bottleneck_net import BottleneckNet

COVARIANCES = ["none", "isotropic", "anisotropic"]
NOISY = ["isotropic", "anisotropic"]
each_covariance = pytest.mark.parametrize("covariance", COVARIANCES)
each_noise = pytest.mark.parametrize("covariance", NOISY)


def next_noise(model, examples):
    """The noise [B, D] of the model's next call; the stream stays where it is."""
    state = model.noise.random_state.numpy()
    noise = model.noise(tf.zeros([examples, DIMENSIONS]), seed=model.noise.next_seed()).numpy()
    model.noise.random_state.assign(state)
    return noise.astype(np.float64)


def numpy_objective(model, images, labels):
    """What the model's next call on a batch reports, from its weights in NumPy, for a net on flattened images."""
    bottleneck, bottleneck_bias = (weight.astype(np.float64) for weight in model.bottleneck.get_weights())
    weights, bias = (weight.astype(np.float64) for weight in model.classifier.get_weights())
    scale = model.noise.scale_tril.numpy().astype(np.float64)
    features = images.reshape(len(images), -1) @ bottleneck + bottleneck_bias
    logits = (features + next_noise(model, len(images))) @ weights + bias
    noise_free, rows = features @ weights + bias, np.arange(len(images))
    rivals = np.where(np.arange(noise_free.shape[1]) == labels[:, np.newaxis], -np.inf, noise_free).argmax(axis=1)
    margins = noise_free[rows, labels] - noise_free[rows, rivals]
    logit_covariance = weights.T @ scale @ scale.T @ weights
    variances = np.diagonal(logit_covariance)
    of_differences = variances[labels] + variances[rivals] - 2 * logit_covariance[labels, rivals]
    report = {
        "ce": np.mean(logsumexp(logits, axis=1) - logits[rows, labels]),
        "alignment": np.log(variances).sum(),
        "penalty": model.weight_decay / 2 * ((weights**2).sum() + (scale**2).sum()),
        "accuracy": np.mean(logits.argmax(axis=1) == labels),
        "noise_to_margin": np.mean(np.sqrt(of_differences)) / np.mean(np.abs(margins)),
        "common_noise_share": logit_covariance.sum() / (len(variances) * variances.sum()),
    }
    return {**report, "loss": report["ce"] - report["alignment"] + report["penalty"]}


def weights_of(model):
    return [weight.numpy() for weight in model.weights]


@each_noise
def test_loss_of_a_training_step_is_cross_entropy_minus_alignment_plus_penalty(covariance):
    images, labels = toy_data()
    model = make_model(covariance)
    expected = numpy_objective(model, images, labels)
    history = model.fit(images, labels, batch_size=len(images), shuffle=False, verbose=0).history
    for name in ("loss", "ce", "alignment", "penalty", "accuracy"):
        assert np.isclose(history[name][0], expected[name], rtol=1e-4, atol=1e-5), name


@each_noise
def test_noise_to_margin_of_a_training_step_is_that_of_the_weights_before_it(covariance):
    images, labels = toy_data()
    model = make_model(covariance)
    expected = numpy_objective(model, images, labels)["noise_to_margin"]
    history = model.fit(images, labels, batch_size=len(images), shuffle=False, verbose=0).history
    assert np.isclose(history["noise_to_margin"][0], expected, rtol=1e-4)


def test_noise_that_all_classes_share_is_not_counted_as_noise():
    """All of L's variance on a direction along which every class has the same weight moves every logit alike."""
    images, labels = toy_data()
    model = make_model("anisotropic")
    kernel = np.random.default_rng(0).normal(size=(DIMENSIONS, CLASSES))
    kernel[0] = 1.0
    model.classifier.kernel.assign(kernel)
    scale_tril = 1e-3 * np.eye(DIMENSIONS)
    scale_tril[0, 0] = 100.0
    model.noise.assign_scale_tril(scale_tril)
    report = model.evaluate(images, labels, verbose=0, return_dict=True)
    assert report["noise_to_margin"] < 0.01
    assert 0.9999 < report["common_noise_share"] <= 1


@each_noise
def test_evaluation_reports_the_same_quantities_and_changes_no_trained_weight(covariance):
    images, labels = toy_data()
    model = make_model(covariance)
    before = [weight.numpy() for weight in model.trainable_weights]
    expected = numpy_objective(model, images, labels)
    expected["loss"] = expected["ce"]  # terms that depend on the weights alone would choose the last epoch
    report = model.evaluate(images, labels, batch_size=len(images), verbose=0, return_dict=True)
    assert report.keys() == expected.keys()
    for name, value in report.items():
        assert np.isclose(value, expected[name], rtol=1e-4, atol=1e-5), name
    after = [weight.numpy() for weight in model.trainable_weights]
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


def test_metrics_of_unequal_batches_are_means_over_examples():
    images, labels = toy_data(80)
    model = make_model("none")
    whole = model.evaluate(images, labels, batch_size=80, verbose=0, return_dict=True)
    parts = model.evaluate(images, labels, batch_size=32, verbose=0, return_dict=True)
    assert all(np.isclose(parts[name], whole[name], rtol=1e-5) for name in whole)


@each_covariance
def test_penalty_touches_the_classifier_kernel_and_the_noise_alone(covariance):
    model = make_model(covariance, backbone=convolution())
    touched = [model.classifier.kernel, *([model.noise.scale_vector] if model.noise else [])]
    with tf.GradientTape() as tape:
        penalty = model.penalty()
    gradients = tape.gradient(penalty, [weight.value for weight in model.trainable_weights])
    for weight, gradient in zip(model.trainable_weights, gradients, strict=True):
        assert (gradient is not None) == any(weight is other for other in touched), weight.path
    kernel_gradient = gradients[[w is model.classifier.kernel for w in model.trainable_weights].index(True)]
    assert np.allclose(kernel_gradient, 0.1 * model.classifier.kernel.numpy(), rtol=1e-5)


@each_covariance
def test_fit_lowers_cross_entropy_and_reports_the_documented_names(covariance):
    images, labels = toy_data()
    model = make_model(covariance, weight_decay=1.0)
    history = model.fit(images, labels, batch_size=8, epochs=10, verbose=0).history
    noise_names = {"alignment", "noise_to_margin", "common_noise_share"} if covariance != "none" else set()
    assert set(history) == {"loss", "ce", "penalty", "accuracy"} | noise_names
    assert np.mean(history["ce"][-3:]) < 0.8 * history["ce"][0]
    assert np.mean(history["accuracy"][-3:]) > history["accuracy"][0]


@each_noise
def test_training_raises_the_alignment_term_of_a_new_model(covariance):
    images, labels = toy_data()
    model = make_model(covariance)
    alignment = model.fit(images, labels, batch_size=32, epochs=5, verbose=0).history["alignment"]
    assert np.all(np.diff(alignment) > 0)


def test_the_undefended_net_is_deterministic_and_equals_numpy():
    images, _ = toy_data(10)
    model = make_model("none", pixel_mean=(0.3,), pixel_std=(0.2,), bottleneck_activation="relu")
    bottleneck, bottleneck_bias = model.bottleneck.get_weights()
    kernel, bias = model.classifier.get_weights()
    features = np.maximum((images.reshape(10, -1) - 0.3) / 0.2 @ bottleneck + bottleneck_bias, 0)
    assert np.allclose(model(images), features @ kernel + bias, atol=1e-5)
    assert np.array_equal(model(images), model(images))
    assert np.all(model.logit_scale.numpy() == np.zeros((CLASSES, DIMENSIONS)))


def test_pixel_statistics_apply_per_channel():
    keras.utils.set_random_seed(0)
    backbone = keras.Sequential([keras.Input((2, 2, 3)), keras.layers.Flatten()])
    model = BottleneckNet(backbone, 2, 2, pixel_mean=(0.1, 0.2, 0.3), pixel_std=(1.0, 2.0, 4.0))
    images = np.random.default_rng(0).uniform(size=(5, 2, 2, 3)).astype(np.float32)
    logits = model(images).numpy()
    normalised = (images - np.array([0.1, 0.2, 0.3])) / np.array([1.0, 2.0, 4.0])
    kernel, bias = model.bottleneck.get_weights()
    expected = (normalised.reshape(5, -1) @ kernel + bias) @ model.classifier.kernel.numpy()
    assert np.allclose(logits, expected, atol=1e-5)


def test_images_with_another_number_of_channels_than_the_backbone_are_refused():
    backbone = keras.Sequential([keras.Input((2, 2, 3)), keras.layers.Flatten()])
    model = BottleneckNet(backbone, 2, 2, pixel_mean=(0.1, 0.2, 0.3))  # the means would make three channels out of one
    with pytest.raises(InputError, match="expected images with 3 channels, received 1"):
        model(np.zeros((5, 2, 2, 1), np.float32))


@each_noise
@pytest.mark.parametrize("training", [False, True])
def test_noisy_logits_differ_between_calls_and_between_equal_images(covariance, training):
    images = np.repeat(toy_data(1)[0], 5, axis=0)
    model = make_model(covariance)
    logits = np.concatenate([model(images, training=training) for _ in range(2)])
    assert len(np.unique(logits)) == logits.size


@each_noise
def test_logits_without_noise_are_the_limit_of_vanishing_noise(covariance):
    images, _ = toy_data(50)
    model = make_model(covariance)
    if covariance == "anisotropic":
        vector = noise_covariance.vector_from_scale_tril(1e-4 * tf.eye(DIMENSIONS))
    else:
        vector = noise_covariance.vector_from_scale_diag(tf.fill([DIMENSIONS], 1e-4))
    model.noise.scale_vector.assign(vector)
    noise_free = model.classifier(model.features(images)).numpy()
    deviations = 1e-4 * np.linalg.norm(model.classifier.kernel.numpy(), axis=0)
    assert np.all(np.abs(model(images) - noise_free) < 6 * deviations + 1e-6)


@each_noise
def test_logits_have_the_stated_covariance(covariance):
    draws = 50_000
    model = make_model(covariance)
    model.noise.scale_vector.assign(np.random.default_rng(2).standard_normal(model.noise.scale_vector.shape))
    features = model.features(toy_data(1)[0])
    logits = model.classifier(model.noise(tf.repeat(features, draws, axis=0))).numpy().astype(np.float64)
    scale = model.logit_scale.numpy().astype(np.float64)
    covariance = scale @ scale.T
    variances = np.diagonal(covariance)
    # Five standard errors of a sample covariance, sqrt((K_ii K_jj + K_ij^2) / n).
    tolerance = 5 * np.sqrt((np.outer(variances, variances) + covariance**2) / draws)
    assert np.all(np.abs(np.cov(logits.T) - covariance) < tolerance)


@each_covariance
def test_config_round_trips(covariance):
    images, _ = toy_data(5)
    model = make_model(
        covariance,
        convolution(),
        bottleneck_activation="relu",
        pixel_mean=(0.3,),
        pixel_std=(0.2,),
        weight_decay=0.02,
        seed=3,
        temperature=2.0,
    )
    copy = type(model).from_config(model.get_config())
    copy.build((None, 8, 8, 1))
    copy.set_weights(model.get_weights())
    without_names = [{**each.get_config(), "backbone": None} for each in (model, copy)]
    assert without_names[0] == without_names[1]
    assert np.array_equal(copy(images), model(images))


@each_covariance
def test_training_after_saving_and_loading_equals_uninterrupted_training(covariance, tmp_path):
    images, labels = toy_data(64)
    options = {"batch_size": 16, "shuffle": False, "verbose": 0}
    model = make_model(covariance, convolution())
    model.fit(images, labels, **options)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int(loaded.optimizer.iterations) == 4
    for each in (model, loaded):
        each.fit(images, labels, epochs=2, **options)
    for weight, other in zip(model.weights, loaded.weights, strict=True):
        assert np.allclose(weight, other, atol=1e-6), weight.path
    for variable, other in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        assert np.allclose(variable, other, atol=1e-6), variable.path


@each_covariance
def test_a_temperature_divides_logits_weights_and_noise_alike(covariance):
    images, _ = toy_data(5)
    plain, cooled = (make_model(covariance, temperature=temperature) for temperature in (1.0, 8.0))
    seed = tf.constant([1, 2])
    np.testing.assert_array_equal(cooled.logits(images, seed), plain.logits(images, seed) / 8)
    np.testing.assert_array_equal(cooled.noise_free_logits(images), plain.noise_free_logits(images) / 8)
    np.testing.assert_array_equal(cooled.class_weights, plain.class_weights / 8)
    for ours, theirs in zip(cooled.gaussian_logits(images), plain.gaussian_logits(images), strict=True):
        np.testing.assert_array_equal(ours, theirs / 8)
    targets = [net.target() for net in (plain, cooled)]
    of_plain, of_cooled = (target.logits(target.features(images), seed, 3) for target in targets)
    np.testing.assert_allclose(of_cooled, of_plain / 8, rtol=1e-5, atol=1e-6)


def test_a_temperature_keeps_the_gradient_of_a_net_with_large_logits():
    images, labels = toy_data(32)
    shares = []
    for temperature in (1.0, 5e4):
        model = make_model("none", temperature=temperature)
        model.classifier.set_weights([1e4 * weight for weight in model.classifier.get_weights()])
        with tf.GradientTape() as tape:
            pixels = tf.constant(images)
            tape.watch(pixels)
            logits = model.noise_free_logits(pixels)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.argmax(logits, axis=1), logits)
        gradient = tape.gradient(loss, pixels).numpy().reshape(len(images), -1)
        shares.append(np.mean(np.abs(gradient).max(axis=1) == 0))
    assert shares[0] > 0.5 and shares[1] == 0


@pytest.mark.parametrize(
    "options, message",
    [
        ({"covariance": "none", "temperature": 0.0}, "temperature"),
        ({"num_classes": 5}, "feature_dim"),
        ({"num_classes": 1}, "num_classes"),
        ({"covariance": "full"}, "isotropic.*full"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"weight_decay": float("nan")}, "weight_decay"),
        ({"pixel_std": (0.0,)}, "pixel_std"),
        ({"pixel_std": (1.0, float("nan"), 1.0)}, "pixel_std"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        make_model(**options)


def test_feature_dim_may_equal_the_number_of_classes():
    assert make_model(num_classes=4, feature_dim=4)(toy_data(2)[0]).shape == (2, 4)


@each_covariance
def test_training_on_nan_images_raises_and_leaves_the_trained_weights(covariance):
    images, labels = toy_data(32)
    model = make_model(covariance)
    model.fit(images, labels, verbose=0)
    before = [weight.numpy() for weight in model.trainable_weights]
    for _ in range(5):  # an update that runs at the same time as the check would win now and then
        with pytest.raises(tf.errors.InvalidArgumentError, match="training diverged"):
            model.fit(np.full_like(images, np.nan), labels, verbose=0)
        after = [weight.numpy() for weight in model.trainable_weights]
        assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


def test_an_infinite_alignment_term_raises_and_leaves_the_trained_weights():
    images, labels = toy_data(32)
    model = make_model()
    model.fit(images, labels, verbose=0)
    kernel = model.classifier.kernel.numpy()
    kernel[:, 1] = 0
    model.classifier.kernel.assign(kernel)
    before = [weight.numpy() for weight in model.trainable_weights]
    for _ in range(5):
        with pytest.raises(tf.errors.InvalidArgumentError, match="training diverged"):
            model.fit(images, labels, verbose=0)
        after = [weight.numpy() for weight in model.trainable_weights]
        assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


@each_covariance
def test_a_bfloat16_backbone_keeps_the_head_in_float32(covariance):
    images, labels = toy_data(32)
    model = make_model(covariance, convolution("mixed_bfloat16"))
    before = weights_of(model)
    assert model.backbone(images).dtype == tf.bfloat16
    assert model.features(images).dtype == model(images).dtype == tf.float32
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    history = model.fit(images, labels, batch_size=32, verbose=0).history
    assert all(np.isfinite(values).all() for values in history.values())
    assert all(not np.array_equal(old, new) for old, new in zip(before, weights_of(model), strict=True))


def test_maps_of_features_are_averaged_over_positions():
    images, _ = toy_data(6)
    model = make_model("none", convolution())
    maps = model.backbone(images).numpy()
    kernel, bias = model.bottleneck.get_weights()
    assert maps.shape == (6, 6, 6, 5)
    assert np.allclose(model.features(images), maps.mean(axis=(1, 2)) @ kernel + bias, atol=1e-5)


@each_covariance
def test_one_trace_serves_every_batch_size(covariance):
    images, _ = toy_data(7)
    model = make_model(covariance)
    graph = tf.function(lambda batch: model(batch), input_signature=[tf.TensorSpec([None, 8, 8, 1])])
    for size in (7, 2, 1):
        assert graph(images[:size]).shape == (size, CLASSES)
    assert graph.experimental_get_tracing_count() <= 2


@each_noise
def test_equal_seeds_train_to_equal_weights_and_other_seeds_do_not(covariance):
    images, labels = toy_data(64)
    trained = []
    for seed in (1, 1, 2):
        model = make_model(covariance, seed=seed)
        model.fit(images, labels, batch_size=16, shuffle=False, verbose=0)
        trained.append(model.classifier.kernel.numpy())
    assert np.allclose(trained[0], trained[1], atol=1e-6)
    assert not np.allclose(trained[0], trained[2], atol=1e-4)


@pytest.mark.parametrize(
    "dtype", ["uint8", "float32", *(pytest.param(name, marks=pytest.mark.slow) for name in ("int16", "int32", "int64"))]
)
def test_labels_may_be_whole_numbers_of_any_type(dtype):
    images, labels = toy_data()
    expected, received = make_model(), make_model()
    expected.fit(images, labels.astype("int64"), shuffle=False, verbose=0)
    received.fit(images, labels.astype(dtype), shuffle=False, verbose=0)
    for a, b in zip(expected.get_weights(), received.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_hot_labels_are_refused_in_words():
    images, labels = toy_data()
    with pytest.raises(Exception, match="one-hot"):
        make_model().fit(images, np.eye(int(labels.max()) + 1, dtype=np.float32)[labels], verbose=0)
