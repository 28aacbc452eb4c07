"""The untrained model of a configuration, compiled, and the weights of another net that it may start from."""

import dataclasses

import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.core.keras_graph import all_layers
from wca_tf.core.paths import expand_user
from wca_tf.core.seeds import keras_seed
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.defences import NetRequest
from wca_tf.nets.backbones.airbench import PatchWhitening
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.model_files import load_model
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.optimizer import compile_model

ADAPTED = 5000  # the number of training images that layers of a backbone adapt to


def new_model(config: TrainConfig, training: Examples) -> StochasticClassifier:
    """Return a compiled, untrained model; its weights depend on the configuration's seed alone."""
    pixel_mean, pixel_std = training.pixel_statistics()
    shape, num_classes = training.image_shape, len(training.class_names)
    request = NetRequest(
        shape, num_classes, pixel_mean, pixel_std, config.backbone, config.precision, config.seed, len(training)
    )
    with keras_seed(config.seed):
        model = config.parsed_defence.build(request)
        if not isinstance(model, StochasticClassifier) or not model.means:
            raise InputError(
                f"expected {config.defence} to build a StochasticClassifier that has called report_means, received "
                f"{type(model).__name__}"
            )
        model.build((None, *shape))
    model.defence = config.defence
    steps = max(1, config.epochs) * (len(training) // fitting(config, training).batch_size)
    for layer in all_layers(model):
        if isinstance(layer, PatchWhitening):
            some = training.take(slice(0, ADAPTED))
            layer.adapt((model.normalised(to_float(tf.constant(block))) for block in some.blocks()), len(some))
    compile_model(
        model,
        config.learning_rate,
        steps,
        config.learning_rate_schedule,
        config.precision,
        config.jit_compile,
        config.optimizer,
        config.label_smoothing,
        config.others_learning_rate,
    )
    return model


def take_weights(model: StochasticClassifier, model_dir: str) -> None:
    """Copy the layers of the trained net in `model_dir` to `model` (paper, E3).

    Noise that is a layer of its own, as in `wca`, starts anew. Noise within a layer, as in `pni` or `l2p`, is copied.

    Raises:
        InputError: a directory without a finished run, or a net with other parts or shapes.
    """
    directory = ModelDirectory(expand_user(model_dir))
    if not directory.last.exists():
        raise InputError(f"expected a finished run of bin/train in {model_dir}, to start from its net")
    source_net = load_model(directory.best)
    mine, theirs = (net.deterministic_layers for net in (model, source_net))
    if isinstance(model, BottleneckNet) and model.temperature != getattr(source_net, "temperature", 1.0):
        raise InputError(f"expected a net of temperature {model.temperature:g} in {model_dir}, to start from it")
    for name, layer in mine.items():
        source = theirs[name].weights if name in theirs else []
        if [weight.shape for weight in layer.weights] != [weight.shape for weight in source]:
            raise InputError(f"expected the same backbone, defence and images as in {model_dir}: its {name} differs")
        layer.set_weights([weight.numpy() for weight in source])


def fitting(config: TrainConfig, training: Examples, strategy: tf.distribute.Strategy | None = None) -> TrainConfig:
    """Return the configuration with batches of no more images than there are, which the replicas can share."""
    replicas = (strategy or tf.distribute.get_strategy()).num_replicas_in_sync
    if len(training) < replicas:
        raise InputError(f"expected {replicas} images to train on or more, one for each replica; got {len(training)}")
    most = len(training) // replicas * replicas
    return dataclasses.replace(config, batch_size=most) if most < config.batch_size else config
