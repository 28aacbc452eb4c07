"""Models that end in a WCAHead, on the toy images, in every way that Keras builds models."""

import keras
import pytest
import tensorflow as tf
from keras import layers
from toy_models import CLASSES, DIMENSIONS, toy_data

import wca_tf

SHAPE, SEED = (8, 8, 1), 5


def cases(names, *quick):
    """The names as parameters; all but the quick ones are slow tests."""
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in names]


def head(**options):
    return wca_tf.WCAHead(CLASSES, **{"feature_dim": DIMENSIONS, "weight_decay": 0.1, "seed": SEED, **options})


def features():
    """The layers from images to 16 features. All weights that are made afterwards are the same at each call."""
    keras.utils.set_random_seed(0)
    return [layers.Flatten(), layers.Dense(16, "tanh")]


def body():
    return keras.Sequential([keras.Input(SHAPE), *features()])


def sequential(*after, **options):
    return keras.Sequential([keras.Input(SHAPE), *features(), head(**options), *after])


def functional(middle=lambda x: x, after=lambda x: x, layer=None):
    images = keras.Input(SHAPE)
    hidden = middle(body()(images))
    return keras.Model(images, after((layer or head())(hidden)))


def nested(*after):
    return keras.Sequential([keras.Input(SHAPE), functional(), *after])


@keras.saving.register_keras_serializable("head_nets")
class Subclassed(keras.Model):
    """A model whose call passes nothing on: Keras tells the head that the model trains."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.body, self.head = body(), head()

    def call(self, images, training=None):
        return self.head(self.body(images))


class WithoutTraining(Subclassed):
    """A model whose call has no `training`: Keras cannot tell the head."""

    def call(self, images):
        return self.head(self.body(images))


def twin():
    """A WCANet with the layers of `functional`, for weights of the same shapes in the same order."""
    net = wca_tf.WCANet(body(), CLASSES, DIMENSIONS, weight_decay=0.1, seed=SEED)
    net.build((None, *SHAPE))
    return net


def compiled(model, optimizer=None, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ce = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="ce")
    metrics = [] if isinstance(model, wca_tf.WCANet) else ["accuracy", ce]  # a WCANet has them
    options = {"metrics": metrics, "jit_compile": False, **options}
    model.compile(optimizer or keras.optimizers.Adam(0.01), loss, **options)
    return model


def fitted(model, epochs=1, batch_size=32, optimizer=None, examples=96, options=None, **fit):
    """The history of a fit on the toy images, in order."""
    images, labels = toy_data(examples)
    compiled(model, optimizer, **(options or {}))
    return model.fit(images, labels, batch_size, epochs, shuffle=False, verbose=0, **fit).history


def trained(model, epochs=4):
    fitted(model, epochs)
    return model


def state(model):
    """The weights that training moves; the stream of noise is counted apart."""
    return [weight.numpy() for weight in model.trainable_weights]


def largest_difference(one, other):
    return max(float(tf.reduce_max(tf.abs(a - b))) for a, b in zip(state(one), state(other), strict=True))
