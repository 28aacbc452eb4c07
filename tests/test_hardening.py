import random
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from toy_models import CLASSES, toy_data

import wca_tf
from wca_tf.core.errors import InputError
from wca_tf.nets.adapter import adapt
from wca_tf.nets.targets import GaussianLogitsTarget

SHAPE = (8, 8, 1)


def classifier(*ending, seed=0):
    """A CNN with dropout before its head, whose biases and statistics are no longer the initial ones."""
    keras.utils.set_random_seed(seed)
    normalization = layers.Normalization()
    normalization.adapt(toy_data()[0])
    model = keras.Sequential(
        [
            keras.Input(SHAPE),
            normalization,
            layers.Conv2D(5, 3, activation="relu", name="convolution"),
            layers.BatchNormalization(name="batch_normalization"),
            layers.Flatten(),
            layers.Dropout(0.5),
            *(ending or [layers.Dense(CLASSES)]),
        ]
    )
    rng = np.random.default_rng(seed)
    for layer in model.layers[1:]:
        layer.set_weights([weight + rng.uniform(0.1, 0.3, weight.shape) for weight in layer.get_weights()])
    return model


def noise_free(net, images):
    return net.classifier(net.features(images)).numpy()


def log_softmax(logits):
    return tf.nn.log_softmax(logits).numpy()


def compiled(net):
    net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    return net


# name -> (the layer with classes, pixel_std): a Dense, and a convolution of a net that rescales 0 to 255 itself
APPLICATIONS = {"MobileNetV2": ("predictions", 1.0), "MobileNetV3Small": ("logits", 1 / 255)}


@pytest.fixture(params=APPLICATIONS)
def application(request):
    """(an application that has seen images, the layer with classes, pixel_std, images in [0, 1])."""
    head, pixel_std = APPLICATIONS[request.param]
    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, request.param)(weights=None, input_shape=(32, 32, 3), classes=10)
    images = np.random.default_rng(0).random((8, 32, 32, 3), np.float32)
    for layer in model.layers:  # statistics of data, as in a trained net: without them features vanish
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = 0.0
    model(images / pixel_std, training=True)
    return model, model.get_layer(head), pixel_std, images


@pytest.mark.slow
def test_a_keras_application_keeps_its_features_and_logits(application, tmp_path):
    model, head, pixel_std, images = application
    net = wca_tf.harden(model, pixel_std=(pixel_std,))
    features = keras.Model(model.inputs[0], head.input)(images / pixel_std).numpy()
    assert features.std() > 0.1
    np.testing.assert_allclose(net.backbone(images / pixel_std), features, rtol=1e-5, atol=1e-5)
    probabilities = model(images / pixel_std).numpy()
    assert probabilities.std(axis=0).max() > 1e-3
    np.testing.assert_allclose(tf.nn.softmax(noise_free(net, images)), probabilities, atol=1e-4)
    net.save(tmp_path / "net.keras")
    loaded = keras.saving.load_model(tmp_path / "net.keras")
    np.testing.assert_array_equal(loaded(images), net(images))  # the noise goes on where it was


ENDINGS = {
    "logits": lambda: [layers.Dense(CLASSES)],
    "no bias": lambda: [layers.Dense(CLASSES, use_bias=False)],
    "softmax": lambda: [layers.Dense(CLASSES, activation="softmax")],
    "a layer of softmax": lambda: [layers.Dense(CLASSES), layers.Softmax()],
    "an activation in float32": lambda: [layers.Dense(CLASSES), layers.Activation("softmax", dtype="float32")],
    "a convolution": lambda: [layers.Reshape((1, 1, -1)), layers.Conv2D(CLASSES, 1), layers.Flatten()],
    "a nested head": lambda: [keras.Sequential([layers.Dense(7, "relu"), layers.Dense(CLASSES, "softmax")])],
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_leaves_the_classifier_where_it_was(ending):
    images, _ = toy_data(20)
    model = classifier(*ENDINGS[ending]())
    net = wca_tf.harden(model, feature_dim=8)
    outputs = model(images).numpy()
    logits = np.log(outputs) if np.allclose(outputs.sum(axis=1), 1) else outputs
    np.testing.assert_allclose(log_softmax(noise_free(net, images)), log_softmax(logits), atol=1e-4)


@pytest.mark.parametrize("activation", ["sigmoid", None])
def test_one_logit_becomes_two_classes(activation):
    images, _ = toy_data(20)
    model = classifier(layers.Dense(1, activation))
    logits = noise_free(wca_tf.harden(model), images)
    differences = logits[:, 1:] - logits[:, :1]
    np.testing.assert_allclose(tf.sigmoid(differences) if activation else differences, model(images), atol=1e-4)


def test_layers_that_were_called_more_than_once_are_followed_along_the_graph():
    images, _ = toy_data(20)
    model = classifier(layers.Dense(9), layers.Dense(7))
    model.pop()
    model.add(layers.Dense(CLASSES))
    head = layers.Dense(CLASSES)
    inputs = keras.Input(SHAPE)
    head(layers.Flatten()(inputs[:, ::2, ::2]))
    twice = keras.Model(inputs, head(layers.Flatten()(inputs[:, 1::2, 1::2])))
    for each in (model, twice):
        np.testing.assert_allclose(noise_free(wca_tf.harden(each), images), each(images), atol=1e-4)


def test_a_model_in_a_model_is_opened_and_its_frozen_layers_stay_frozen(tmp_path):
    images, labels = toy_data(20)
    inner = classifier()
    inner.get_layer("convolution").trainable = False
    inputs = keras.Input(SHAPE)
    model = keras.Model(inputs, layers.Softmax()(inner(layers.Rescaling(0.5)(inputs))))
    net = wca_tf.harden(model)
    np.testing.assert_allclose(log_softmax(noise_free(net, images)), np.log(model(images)), atol=1e-4)
    net.save(tmp_path / "net.keras")
    for each in (net, keras.saving.load_model(tmp_path / "net.keras")):
        before = [weight.numpy() for weight in each.backbone.trainable_weights]
        compiled(each).fit(images, labels, verbose=0)
        assert len(before) == 2  # gamma and beta
        after = each.backbone.trainable_weights
        assert all(not np.array_equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("covariance", ["isotropic", "anisotropic"])
def test_a_hardened_net_starts_with_independent_unit_noise_and_learns_it(covariance):
    images, labels = toy_data()
    net = compiled(wca_tf.harden(classifier(), covariance=covariance, feature_dim=6))
    np.testing.assert_allclose(net.logit_scale @ tf.transpose(net.logit_scale), np.eye(CLASSES), atol=1e-5)
    before = [weight.numpy() for weight in net.trainable_weights]
    net.fit(images, labels, batch_size=len(images), verbose=0)
    after = net.trainable_weights
    assert all(not np.array_equal(old, new) for old, new in zip(before, after, strict=True))
    assert any(net.noise.scale_vector is weight for weight in after)


@pytest.mark.parametrize("covariance", ["none", "isotropic"])
def test_a_net_that_rescales_bytes_itself_can_be_attacked_once_it_is_hardened(covariance):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(SHAPE), layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(3)])
    model.layers[-1].bias.assign([0.0, 0.1, -0.1])
    images, _ = toy_data(200)
    target = adapt(wca_tf.harden(model, covariance=covariance, pixel_std=(1 / 255,)))
    logits = target.noise_free_logits(target.features(tf.constant(images)))
    np.testing.assert_allclose(logits, model(255 * images), atol=1e-3)
    net, labels = wca_tf.harden(model, covariance=covariance), np.argmax(logits, axis=1)
    with pytest.raises(InputError, match=r"pixels from 0 to 255: build it with .*pixel_std=\(1 / 255,\)"):
        wca_tf.parse_attack("fgsm")(net, images, labels)


def test_the_model_stays_as_it_is_when_the_hardened_one_trains():
    images, labels = toy_data()
    model = classifier()
    weights, config, logits = model.get_weights(), model.get_config(), model(images).numpy()
    compiled(wca_tf.harden(model)).fit(images, labels, epochs=2, verbose=0)
    np.testing.assert_array_equal(model(images), logits)
    assert model.get_config() == config
    assert all(np.array_equal(old, new) for old, new in zip(weights, model.get_weights(), strict=True))


def test_other_classes_get_a_new_classifier_on_the_same_features():
    images, _ = toy_data(20)
    model = classifier()
    net = wca_tf.harden(model, num_classes=5)
    assert net(images).shape == (20, 5)
    np.testing.assert_allclose(
        net.backbone(images), keras.Model(model.inputs[0], model.layers[-1].input)(images), atol=1e-5
    )


def test_two_features_for_more_classes_start_from_a_projection_of_the_logits():
    images, _ = toy_data(20)
    model = classifier()
    net = wca_tf.harden(model, feature_dim=2)
    kernel, bias = net.classifier.get_weights()
    expected = (model(images).numpy() - bias) @ kernel.T @ kernel + bias
    np.testing.assert_allclose(noise_free(net, images), expected, atol=1e-4)


def test_the_new_weights_depend_on_the_seed_alone():
    model = classifier()
    state = random.getstate()
    first = wca_tf.harden(model, seed=1).get_weights()
    assert random.getstate() == state
    random.random()
    again, other = (wca_tf.harden(model, seed=seed).get_weights() for seed in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    changed = [not np.array_equal(a, b) for a, b in zip(first, other, strict=True)]
    assert sum(changed) == 3  # bottleneck, classifier, random_state


def test_attacks_see_a_net_with_noise_in_its_head():
    images, labels = toy_data(8)
    target = wca_tf.adapt(wca_tf.harden(classifier()))
    assert isinstance(target, GaussianLogitsTarget)
    adversarial = wca_tf.parse_attack("z_margin:steps=2")(target, images, labels, epsilon=0.1).images
    assert 0 < np.abs(adversarial - images).max() <= 0.1 + 1e-6


@pytest.mark.slow
def test_a_fresh_process_loads_what_was_saved(tmp_path):
    images, _ = toy_data(32)
    net = wca_tf.harden(classifier())
    net.save(tmp_path / "net.keras")
    np.save(tmp_path / "images.npy", images)
    program = (
        "import keras, numpy as np\n"
        "from wca_tf import WCANet\n"
        "net, images = keras.saving.load_model('net.keras'), np.load('images.npy')\n"
        "assert isinstance(net, WCANet)\n"
        "np.savez('outputs.npz', features=net.features(images), logits=net(images))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=120)
    outputs = np.load(tmp_path / "outputs.npz")
    np.testing.assert_allclose(outputs["features"], net.features(images), atol=1e-5)
    np.testing.assert_allclose(outputs["logits"], net(images), atol=1e-5)


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs


def functional(*shapes, outputs=1, dtype="float32"):
    inputs = [keras.Input(shape, dtype=dtype) for shape in shapes]
    features = layers.Flatten()(layers.Rescaling(1 / 255)(inputs[0]))
    for other in inputs[1:]:
        features = layers.concatenate([features, layers.Flatten()(other)])
    return keras.Model(inputs, [layers.Dense(3)(features) for _ in range(outputs)])


def with_dropout_in_training():
    inputs = keras.Input(SHAPE)
    features = layers.Dropout(0.5, name="always")(layers.Flatten()(inputs), training=True)
    return keras.Model(inputs, layers.Dense(3)(features))


def inner_in_training():
    inputs = keras.Input(SHAPE)
    return keras.Model(inputs, classifier(layers.Dense(3))(inputs, training=True))


REFUSED = {
    "no model": (lambda: layers.Dense(3), "Keras model.*Dense"),
    "subclassed": (Subclassed, "functional.*Subclassed"),
    "not built": (lambda: keras.Sequential([layers.Flatten(), layers.Dense(3)]), "keras.Input"),
    "hardened": (lambda: wca_tf.harden(classifier()), "functional.*WCANet"),
    "two inputs": (lambda: functional(SHAPE, SHAPE), "one input.*2 and 1"),
    "two outputs": (lambda: functional(SHAPE, outputs=2), "one output.*1 and 2"),
    "vectors": (lambda: functional((64,)), r"images.*\[None, 64\]"),
    "uint8": (lambda: functional(SHAPE, dtype="uint8"), "float images.*uint8"),
    "no head": (lambda: keras.Sequential([keras.Input(SHAPE), layers.Flatten()]), "Dense.*ends in 'input.*WCANet"),
    "rectified logits": (lambda: classifier(layers.Dense(3, "relu")), "Dense.*ends in 'dense"),
    "sigmoids": (lambda: classifier(layers.Dense(3, "sigmoid")), "Dense.*ends in 'dense"),
    "maps of classes": (lambda: keras.Sequential([keras.Input(SHAPE), layers.Dense(3)]), "Dense.*ends in 'dense"),
    "a wide convolution": (
        lambda: keras.Sequential([keras.Input(SHAPE), layers.Conv2D(3, 8), layers.Flatten()]),
        "Dense.*Conv2D",
    ),
    "labels of parts": (lambda: classifier(layers.Dense(6), layers.Reshape((2, 3))), r"\[B, 6\].*\[None, 2, 3\]"),
    "dropout in training": (lambda: with_dropout_in_training(), "without training=True, received 'always'"),
    "an inner model in training": (lambda: inner_in_training(), "without training=True"),
    "a Lambda": (lambda: classifier(layers.Lambda(lambda x: 2 * x), layers.Dense(3)), ".keras file.*Lambda"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_hardened_is_refused_in_words(case):
    make, message = REFUSED[case]
    model = make()
    with pytest.raises(InputError, match=message):
        wca_tf.harden(model)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"feature_dim": 1}, "feature_dim"),
        ({"feature_dim": 1e3}, "feature_dim as a whole number"),
        ({"feature_dim": 10**7}, "feature_dim as a whole number"),
        ({"num_classes": 0}, "num_classes=0"),
        ({"num_classes": "a"}, "num_classes='a'"),
        ({"pixel_mean": (float("nan"),)}, "pixel_mean as a finite number for each of 1 channels"),
        ({"pixel_std": 1 / 255}, "pixel_std as a finite number"),
        ({"pixel_std": (1.0, 2.0)}, "pixel_std as a finite number"),
        ({"covariance": "full"}, "among none, isotropic, anisotropic"),
    ],
)
def test_arguments_that_a_wca_net_refuses_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        wca_tf.harden(classifier(), **options)
