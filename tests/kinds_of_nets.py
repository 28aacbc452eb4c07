"""Nets of everyday life, small and trained on digits, and how their owners ask them."""

import functools

import keras
import tensorflow as tf
from evaluation_nets import digits
from keras import layers, ops

SHAPE, IMAGES = (8, 8, 1), 200


def logits_loss(labels, logits):
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def trained(model, scale=1.0, loss=logits_loss, labels=lambda labels: labels, epochs=6, shift=0.0):
    """The model after a few epochs on digits, with pixels from `shift` to `shift + scale`."""
    training, _ = digits()
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    model.fit(training.images * scale + shift, labels(training.labels), epochs=epochs, batch_size=50, verbose=0)
    return model


def sequential(*before, after=(), features=(layers.Flatten, lambda: layers.Dense(32, "relu"))):
    keras.utils.set_random_seed(0)
    made = [make() for make in features]
    return keras.Sequential([keras.Input(SHAPE), *before, *made, layers.Dense(10), *after])


def functional(before=lambda x: x, middle=lambda x: x, after=lambda x: x):
    keras.utils.set_random_seed(0)
    images = keras.Input(SHAPE)
    hidden = layers.Dense(32, "relu")(layers.Flatten()(before(images)))
    return keras.Model(images, after(layers.Dense(10)(middle(hidden))))


@functools.cache
def dense():
    return trained(sequential())


def cnn():
    return trained(sequential(features=(lambda: layers.Conv2D(8, 3, activation="relu"), layers.Flatten)))


def softmaxed():
    return trained(sequential(after=[layers.Softmax()]), loss="sparse_categorical_crossentropy")


class Subclassed(keras.Model):
    """A model as PyTorch's users write them, with arithmetic and dropout in `call`."""

    def __init__(self, scale, last=None):
        super().__init__()
        self.scale, self.flat, self.hidden = scale, layers.Flatten(), layers.Dense(32, "relu")
        self.dropout, self.last = layers.Dropout(0.2), layers.Dense(10, last)

    def call(self, images, training=False):
        hidden = self.hidden(self.flat(images / self.scale))
        return self.last(self.dropout(hidden, training=training))


def subclassed(scale=1.0, last=None):
    keras.utils.set_random_seed(0)
    loss = "sparse_categorical_crossentropy" if last else logits_loss
    return trained(Subclassed(scale, last), scale, loss)


def two_outputs():
    keras.utils.set_random_seed(0)
    images = keras.Input(SHAPE)
    hidden = layers.Dense(32, "relu")(layers.Flatten()(images))
    outputs = {"digit": layers.Dense(10, name="digit")(hidden), "size": layers.Dense(1, name="size")(hidden)}
    model, (training, _) = keras.Model(images, outputs), digits()
    model.compile(keras.optimizers.Adam(3e-3), {"digit": logits_loss, "size": "mse"})
    sizes = training.images.mean(axis=(1, 2, 3))
    model.fit(training.images, {"digit": training.labels, "size": sizes}, epochs=6, batch_size=50, verbose=0)
    return model


def ensemble(of_logits):
    keras.utils.set_random_seed(0)
    images = keras.Input(SHAPE)
    nets = [dense(), cnn()]
    outputs = [net(images) if of_logits else layers.Softmax()(net(images)) for net in nets]
    return compiled(keras.Model(images, layers.Average()(outputs)))


def compiled(model):
    model.compile(loss=logits_loss, metrics=["accuracy"])
    return model


def quantised():
    model = trained(sequential())
    model.quantize("int8")
    return compiled(model)


def mixed_precision():
    keras.utils.set_random_seed(0)
    body = [layers.Flatten(), layers.Dense(32, "relu", dtype="mixed_bfloat16"), layers.Dense(10, dtype="float32")]
    return trained(keras.Sequential([keras.Input(SHAPE), *body]))


def in_float64():
    keras.utils.set_random_seed(0)
    body = [layers.Flatten(), layers.Dense(32, "relu", dtype="float64"), layers.Dense(10, dtype="float64")]
    return trained(keras.Sequential([keras.Input(SHAPE, dtype="float64"), *body]))


def vision_transformer():
    keras.utils.set_random_seed(0)
    images = keras.Input(SHAPE)
    patches = layers.Reshape((16, 16))(layers.Conv2D(16, 2, strides=2)(images))
    hidden = layers.Add()([patches, layers.MultiHeadAttention(2, 8)(patches, patches)])
    hidden = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(hidden))
    model = keras.Model(images, layers.Dense(10, "softmax")(hidden))
    return trained(model, loss="sparse_categorical_crossentropy", epochs=30)


APPLICATIONS = ("densenet", "efficientnet", "mobilenet_v2", "resnet50", "vgg16")  # each way of preprocessing


def preprocessed(application):
    """A net of bytes in three channels, as images of colour are, behind the preprocessing of an application."""
    prepare = getattr(keras.applications, application).preprocess_input
    before = (lambda x: x / 255.0) if application == "efficientnet" else (lambda x: x)  # it prepares nothing itself
    return trained(functional(lambda x: before(prepare(ops.repeat(x, 3, axis=-1)))), 255)


def normalization():
    layer = layers.Normalization()
    layer.adapt(255 * digits()[0].images)
    return trained(sequential(layer), 255)


# name -> (model, options, scale and shift of the pixels that it wants); the owner's number is that of `model.evaluate`
KINDS = {
    "a dense net": (dense, {}, 1),
    "a CNN": (cnn, {}, 1),
    "a functional net": (lambda: trained(functional()), {}, 1),
    "BatchNormalization first": (lambda: trained(sequential(layers.BatchNormalization())), {}, 1),
    "Rescaling": (lambda: trained(sequential(layers.Rescaling(1 / 255)), 255), {}, 255),
    "Rescaling to -1": (lambda: trained(sequential(layers.Rescaling(1 / 127.5, -1)), 255), {}, 255),
    "Normalization": (normalization, {}, 255),
    "/ 255.0": (lambda: trained(functional(lambda x: x / 255.0), 255), {}, 255),
    "ops.divide": (lambda: trained(functional(lambda x: ops.divide(x, 255.0)), 255), {}, 255),
    "Lambda": (lambda: trained(sequential(layers.Lambda(lambda x: x / 255.0)), 255), {}, 255),
    "BatchNormalization of bytes": (lambda: trained(sequential(layers.BatchNormalization()), 255, epochs=10), {}, 255),
    "Rescaling after dropout": (
        lambda: trained(sequential(layers.Dropout(0.1), layers.Rescaling(1 / 255)), 255),
        {},
        255,
    ),
    "softmax": (softmaxed, {}, 1),
    "ops.softmax": (lambda: trained(functional(after=ops.softmax), loss="sparse_categorical_crossentropy"), {}, 1),
    "softmax in an inner model": (lambda: compiled(keras.Sequential([keras.Input(SHAPE), softmaxed()])), {}, 1),
    "log_softmax": (lambda: compiled(functional_of(dense(), ops.log_softmax)), {}, 1),
    "relu at the end": (lambda: compiled(functional_of(dense(), ops.relu)), {}, 1),
    "augmentation first": (lambda: trained(sequential(layers.RandomTranslation(0.1, 0.1))), {}, 1),
    "augmentation in an inner model": (
        lambda: trained(sequential(keras.Sequential([layers.RandomRotation(0.05), layers.RandomZoom(0.1)]))),
        {},
        1,
    ),
    "augmentation, functional": (lambda: trained(functional(layers.RandomTranslation(0.1, 0.1))), {}, 1),
    "augmentation after Rescaling": (
        lambda: trained(sequential(layers.Rescaling(1 / 255), layers.RandomContrast(0.2)), 255),
        {},
        255,
    ),
    "augmentation behind a convolution": (
        lambda: trained(
            sequential(
                features=(lambda: layers.Conv2D(4, 3), lambda: layers.RandomTranslation(0.1, 0.1), layers.Flatten)
            )
        ),
        {},
        1,
    ),
    "augmentation called by a model": (lambda: compiled(functional_of(augmented(), lambda x: x)), {}, 1),
    "Dropout": (lambda: trained(functional(middle=layers.Dropout(0.3))), {}, 1),
    "GaussianNoise, off": (lambda: trained(sequential(layers.GaussianNoise(0.2))), {}, 1),
    "an ensemble of logits": (lambda: ensemble(True), {}, 1),
    "an ensemble of softmaxes": (lambda: ensemble(False), {}, 1),
    "quantised": (quantised, {}, 1),
    "mixed precision": (mixed_precision, {}, 1),
    "float64": (in_float64, {}, 1),
    "subclassed": (subclassed, {}, 1),
    "subclassed, / 255.0, softmax": (lambda: subclassed(255.0, "softmax"), {}, 255),
    "a small ViT": (vision_transformer, {}, 1),
    **{f"preprocess_input of {name}": (functools.partial(preprocessed, name), {}, 255) for name in APPLICATIONS},
}


def functional_of(net, after):
    images = keras.Input(SHAPE)
    return keras.Model(images, after(net(images)))


@functools.cache
def augmented():
    return trained(sequential(layers.RandomTranslation(0.1, 0.1)))


def some_images():
    test = digits()[1]
    return test.images[:IMAGES], test.labels[:IMAGES]


# Random nets


def monte_carlo():
    return trained(functional(middle=lambda x: layers.Dropout(0.4, name="mc")(x, training=True)))


def inner_monte_carlo():
    return compiled(keras.Sequential([keras.Input(SHAPE), monte_carlo()]))


@functools.cache
def augmented_monte_carlo():
    """(model, the same layers without the augmentation): dropout is on in both, as its owner calls it."""
    keras.utils.set_random_seed(0)
    body = [layers.Flatten(), layers.Dense(32, "relu"), layers.Dropout(0.4, name="mc"), layers.Dense(10)]

    def build(before):
        images = keras.Input(SHAPE)
        hidden = body[1](body[0](before(images)))
        return keras.Model(images, body[3](body[2](hidden, training=True)))

    twin = trained(build(lambda images: images))
    return build(layers.RandomTranslation(0.5, 0.5, name="move")), twin


def gaussian_noise():
    return trained(functional(lambda x: layers.GaussianNoise(0.5)(x, training=True)))


class AlwaysNoise(layers.Layer):
    def call(self, images):
        return images + tf.random.normal(tf.shape(images), stddev=0.3)


def always_noise():
    return trained(sequential(AlwaysNoise()))


class NoisyCall(keras.Model):
    """A model of its own class that keeps its dropout on."""

    def __init__(self):
        super().__init__()
        self.flat, self.hidden = layers.Flatten(), layers.Dense(32, "relu")
        self.dropout, self.last = layers.Dropout(0.4), layers.Dense(10)

    def call(self, images):
        return self.last(self.dropout(self.hidden(self.flat(images)), training=True))


def noisy_call():
    keras.utils.set_random_seed(0)
    return trained(NoisyCall())


# name -> (model, the owner's call)
RANDOM = {
    "Monte Carlo dropout": (monte_carlo, lambda model, x: model(x)),
    "Monte Carlo dropout in an inner model": (inner_monte_carlo, lambda model, x: model(x)),
    "GaussianNoise, on": (gaussian_noise, lambda model, x: model(x)),
    "noise of tf.random": (always_noise, lambda model, x: model(x)),
    "dropout in call": (noisy_call, lambda model, x: model(x)),
}
