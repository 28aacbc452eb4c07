"""Models whose owner calls them in ways of his own: classes with their own `call` or `test_step`, several outputs."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from kinds_of_nets import (
    IMAGES,
    SHAPE,
    compiled,
    dense,
    functional_of,
    monte_carlo,
    sequential,
    some_images,
    trained,
)

import wca_tf
from wca_tf.core.errors import InputError
from wca_tf.nets.adapter import adapt, adapted
from wca_tf.nets.judge import judge


class Wrapped(keras.Model):
    """A model of another class around a net."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def call(self, images):
        return self.net(images)


class WithTraining(Wrapped):
    def call(self, images, training=None):
        return self.net(images)


class OfTenPasses(Wrapped):
    def call(self, images):
        return sum(self.net(images) for _ in range(10)) / 10


class OwnSequential(keras.Sequential):
    def call(self, images):
        return super().call(images)


def around(make):
    model = make(monte_carlo())
    model(some_images()[0][:1])
    return model


WRAPPED = {
    "a class": lambda: around(Wrapped),
    "a class with training": lambda: around(WithTraining),
    "a mean of ten passes": lambda: around(OfTenPasses),
    "a functional model of a class": lambda: functional_of(around(Wrapped), lambda x: x),
    "a sequential class": lambda: around(lambda net: OwnSequential([keras.Input(SHAPE), net])),
    "functional": monte_carlo,
}


@pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=[] if name == "a class" else pytest.mark.slow) for name in WRAPPED]
)
def test_dropout_that_its_owner_keeps_on_is_on_wherever_the_net_is_called(kind):
    model, (images, labels) = WRAPPED[kind](), some_images()
    owners = np.mean([np.argmax(model(images), axis=1) == labels for _ in range(100)], axis=0)
    target = adapt(model, SHAPE)
    mine = judge(target, tf.constant(images), labels, np.arange(IMAGES), 0).probability_correct
    assert target.net.random_on and np.std(owners) > 0
    assert abs(mine.mean() - owners.mean()) < 0.02
    assert np.abs(mine - owners).max() < 5 * np.sqrt(0.25 * (1 / 100 + 1 / 200))


class Inverted(keras.Model):
    def test_step(self, data):
        images, labels = data
        return super().test_step((1 - images, labels))


def test_a_model_with_its_own_test_step_says_that_it_is_not_called(capsys):
    images = keras.Input(SHAPE)
    model = compiled(Inverted(images, dense()(images)))
    wca_tf.evaluate(model, *some_images(), attacks="fgsm", epsilons=0.01)
    assert "the net is model(images): test_step of the model are not called" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("form", [list, lambda both: dict(zip("ab", both, strict=True))])
@pytest.mark.parametrize("first", ["linear", "tanh"])
def test_an_output_is_interpreted_by_what_makes_it(form, first):
    images = keras.Input(SHAPE)
    logits = dense()(images)
    model = keras.Model(images, form([layers.Activation(first)(layers.Flatten()(images)), layers.Softmax()(logits)]))
    output = 1 if form is list else "b"
    target, pixels = adapt(model, output=output), some_images()[0]
    assert "before the softmax" in target.net.outputs
    np.testing.assert_allclose(target.features(pixels), dense()(pixels), atol=1e-4)


def test_one_sigmoid_among_outputs_is_no_logit():
    keras.utils.set_random_seed(0)
    images = keras.Input(SHAPE)
    hidden = layers.Flatten()(images)
    outputs = [layers.Dense(64)(hidden), layers.Dense(1, "sigmoid", name="class")(hidden)]
    model, pixels = keras.Model(images, outputs), some_images()[0]
    target = adapt(model, output="class")
    first, second = tf.unstack(target.features(pixels), axis=1)
    np.testing.assert_allclose(tf.sigmoid(second - first), model(pixels)[1][:, 0], atol=1e-5)


def test_the_advice_for_pixels_of_another_range_gives_the_number_of_the_owner():
    model, (images, labels) = trained(sequential(), 16), some_images()
    owners = model.evaluate(16 * images, labels, verbose=0)[1]
    with pytest.raises(InputError, match=r"divide by the largest .* pixel_range=\(0, that value\)"):
        wca_tf.evaluate(model, 16 * images, labels, attacks="fgsm")
    report = wca_tf.evaluate(model, images, labels, attacks="fgsm", epsilons=0.01, pixel_range=(0, 16))
    assert report["clean"]["accuracy"]["value"] == pytest.approx(owners)


def test_the_advice_for_preprocessed_images_gives_the_number_of_the_owner():
    model, (images, labels) = trained(sequential(), 1, shift=-0.5), some_images()
    owners = model.evaluate(images - 0.5, labels, verbose=0)[1]
    with pytest.raises(InputError, match=r"keras.Sequential\(\[keras.layers.Normalization\(mean=..., variance=...\)"):
        wca_tf.evaluate(model, images - 0.5, labels, attacks="fgsm")
    whole = keras.Sequential([keras.Input(SHAPE), layers.Normalization(mean=0.5, variance=1), model])
    report = wca_tf.evaluate(whole, images, labels, attacks="fgsm", epsilons=0.01)
    assert report["clean"]["accuracy"]["value"] == pytest.approx(owners)


@pytest.mark.parametrize("loss", ["mse", keras.losses.MeanAbsoluteError()])
def test_one_number_of_a_regression_needs_its_threshold(loss):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(SHAPE), layers.Flatten(), layers.Dense(1)])
    model.compile("adam", loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0.5)])
    images, labels = some_images()
    high = (labels > 4).astype(np.int64)
    model.fit(images, high, epochs=20, verbose=0)
    with pytest.raises(InputError, match=r"give lambda images: model\(images\) - 0.5"):
        wca_tf.evaluate(model, images, high, attacks="fgsm")
    report = wca_tf.evaluate(lambda images: model(images) - 0.5, images, high, attacks="fgsm", epsilons=0.01)
    assert report["clean"]["accuracy"]["value"] == pytest.approx(model.evaluate(images, high, verbose=0)[1], abs=0.011)


def test_a_model_that_gets_other_layers_is_adapted_anew():
    model, images = sequential(), some_images()[0][:4]
    first = adapted(model, SHAPE)
    assert adapted(model, SHAPE) is first
    model.pop()
    model.add(layers.Dense(10))
    np.testing.assert_allclose(adapted(model, SHAPE).features(images), model(images), atol=1e-5)
    model.layers[1].activation = ops.tanh
    np.testing.assert_allclose(adapted(model, SHAPE).features(images), model(images), atol=1e-5)


def test_equal_largest_logits_are_counted_in_the_first_line(capsys):
    model, (images, labels) = functional_of(dense(), ops.round), some_images()
    logits = np.sort(model(images), axis=1)
    ties = int(np.sum(logits[:, -1] == logits[:, -2]))
    report = wca_tf.evaluate(model, images, labels, attacks="fgsm", epsilons=0.01)
    line = f"{ties} images with equal largest logits count as wrong, whichever class comes first"
    assert ties > 0 and line in capsys.readouterr().out.splitlines()[0]
    owners = np.mean(np.argmax(model(images), axis=1) == labels)
    told = report["clean"]["accuracy"]["value"]
    assert owners - ties / IMAGES <= told <= owners
