"""A net's copy for attacks: batch normalisation folded where it can be, the same features, other precision."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import layers

from wca_tf.core.errors import InputError
from wca_tf.defences.wca.net import WCANet
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.runner import evaluate, evaluate_model
from wca_tf.nets.backbones import build_backbone
from wca_tf.nets.inference_copy import Shift, inference_copy

SHAPE = (9, 8, 3)


def moved(model):
    """The model with weights that no start has: a fold that forgets one of them is seen."""
    random = np.random.default_rng(0)
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, layers.BatchNormalization):
            for weight in layer.weights:
                low = 0.5 if weight.name in ("gamma", "moving_variance") else -1.0
                weight.assign(random.uniform(low, 1.5, weight.shape))
    return model


def net_on(backbone):
    net = WCANet(moved(backbone), 3, 4)
    net.build((None, *backbone.input_shape[1:]))
    return net


def images(shape=SHAPE):
    return np.random.default_rng(1).random((5, *shape), np.float32)


def kinds(net):
    return [type(layer) for layer in net.backbone._flatten_layers(include_self=False)]


def assert_same_features(net, copy, shape=SHAPE):
    expected = net.features(images(shape)).numpy()
    np.testing.assert_allclose(copy.features(images(shape)), expected, atol=2e-5 * np.abs(expected).max())


def plain(*more):
    return keras.Sequential([keras.Input(SHAPE), *more, layers.Flatten()])


FOLDED = {
    "without bias": (layers.Conv2D(4, 3, use_bias=False), layers.BatchNormalization()),
    "with bias": (layers.Conv2D(4, 3, bias_initializer="glorot_normal"), layers.BatchNormalization()),
    "groups": (layers.Conv2D(6, 3, groups=3, bias_initializer="normal"), layers.BatchNormalization()),
    "scale alone": (layers.Conv2D(4, 3), layers.BatchNormalization(center=False)),
    "shift alone": (layers.Conv2D(4, 3), layers.BatchNormalization(scale=False, epsilon=0.1)),
    "dense": (layers.Flatten(), layers.Dense(6, bias_initializer="normal"), layers.BatchNormalization()),
    "twice": (*[layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU()], layers.Conv2D(2, 3))
    + (layers.BatchNormalization(),),
}


@pytest.mark.parametrize("name", FOLDED)
def test_a_batch_normalisation_behind_a_linear_layer_is_folded_into_it(name):
    net = net_on(plain(*FOLDED[name]))
    copy = inference_copy(net, "float32")
    assert layers.BatchNormalization not in kinds(copy) and Shift in kinds(copy)
    assert_same_features(net, copy)


def two_readers():
    inputs = keras.Input(SHAPE)
    convolved = layers.Conv2D(4, 3)(inputs)
    return keras.Model(inputs, layers.Add()([convolved, layers.BatchNormalization()(convolved)]))


def shared_convolution():
    inputs, convolution = keras.Input(SHAPE), layers.Conv2D(3, 3, padding="same")
    return keras.Model(inputs, layers.BatchNormalization()(convolution(convolution(inputs))))


KEPT = {
    "an activation between": lambda: plain(layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization()),
    "another layer between": lambda: plain(layers.Conv2D(4, 3), layers.ReLU(), layers.BatchNormalization()),
    "first": lambda: plain(layers.BatchNormalization(), layers.Conv2D(4, 3)),
    "another axis": lambda: plain(layers.Conv2D(4, 3), layers.BatchNormalization(axis=1)),
    "depthwise": lambda: plain(layers.DepthwiseConv2D(3), layers.BatchNormalization()),
    "two readers": two_readers,
    "a convolution called twice": shared_convolution,
}


@pytest.mark.parametrize("name", KEPT)
def test_what_cannot_be_folded_is_copied_as_it_is(name):
    net = net_on(KEPT[name]())
    copy = inference_copy(net, "float32")
    assert layers.BatchNormalization in kinds(copy) and Shift not in kinds(copy)
    assert_same_features(net, copy)


def test_a_model_within_the_backbone_is_folded_too():
    inner = plain(layers.Conv2D(4, 3), layers.BatchNormalization())
    inputs = keras.Input(SHAPE)
    net = net_on(keras.Model(inputs, layers.Dense(5)(inner(inputs))))
    copy = inference_copy(net, "float32")
    assert layers.BatchNormalization not in kinds(copy)
    assert_same_features(net, copy)


def test_resnet_is_folded_whole_and_shares_the_head():
    net = net_on(build_backbone("resnet18", (8, 8, 3)))
    copy = inference_copy(net, "float32")
    assert kinds(copy).count(Shift) == sum(issubclass(kind, layers.BatchNormalization) for kind in kinds(net)) == 20
    assert_same_features(net, copy, (8, 8, 3))
    assert copy.classifier is net.classifier and copy.noise is net.noise
    np.testing.assert_array_equal(copy.logit_scale, net.logit_scale)


def test_bfloat16_is_close_and_its_features_are_float32():
    net = net_on(build_backbone("lenet_plus_plus", (25, 25, 1)))
    copy = inference_copy(net, "mixed_bfloat16")
    assert {layer.compute_dtype for layer in copy.backbone.layers[1:]} == {"bfloat16"}
    expected, received = net.features(images((25, 25, 1))), copy.features(images((25, 25, 1)))
    assert received.dtype == "float32"
    assert 0 < np.abs(received - expected).max() < 0.05 * np.abs(expected).max()


@keras.saving.register_keras_serializable("tests")
class Steep(layers.Layer):
    """What bfloat16 cannot compute: sin(1000 x)."""

    def call(self, inputs):
        return keras.ops.sin(1000 * inputs)


def test_a_copy_that_computes_something_else_is_refused():
    with pytest.raises(InputError, match="expected a backbone that computes the same in mixed_bfloat16, up to round"):
        inference_copy(net_on(plain(Steep())), "mixed_bfloat16")


class Subclassed(keras.Model):
    """A backbone without a graph of layers."""

    def __init__(self):
        super().__init__()
        self.flatten = layers.Flatten()

    def build(self, input_shape):
        self.built = True

    def compute_output_shape(self, input_shape):
        return self.flatten.compute_output_shape(input_shape)

    def call(self, inputs):
        return self.flatten(inputs)

    def get_config(self):
        return {}


def test_a_backbone_without_a_graph_of_layers_is_refused():
    net = WCANet(Subclassed(), 3, 4)
    net.build((None, *SHAPE))
    with pytest.raises(InputError, match="expected a functional or sequential backbone"):
        inference_copy(net, "mixed_bfloat16")


CONFIG = EvaluateConfig("pgd:steps=3", "0.1", num_examples=20)


def numbers(directory):
    with np.load(directory / "examples.npz") as arrays:
        return dict(arrays)


def test_attacks_see_the_copy_and_the_net_itself_judges(trained, tmp_path):
    own = evaluate(CONFIG, trained, tmp_path / "own")
    low = dataclasses.replace(CONFIG, attack_precision="mixed_bfloat16")
    results = evaluate(low, trained, tmp_path / "low")
    assert results["config"]["attack_precision"] == "mixed_bfloat16" and "attack_precision" not in own["config"]
    assert results["clean"] == own["clean"]
    attacked, expected = numbers(tmp_path / "low"), numbers(tmp_path / "own")
    assert not np.array_equal(attacked["z_margin"][1], expected["z_margin"][1])
    np.testing.assert_allclose(attacked["probability_correct"], expected["probability_correct"], atol=0.1)
    assert "a copy of the net in mixed_bfloat16" in (tmp_path / "low" / "report.html").read_text()
    assert "saw a copy of it in mixed_bfloat16" in (tmp_path / "low" / "model_card.md").read_text()
    with pytest.raises(InputError, match="attack_precision"):
        evaluate(CONFIG, trained, tmp_path / "low")


def test_a_copy_in_the_nets_own_precision_without_anything_to_fold_changes_nothing(trained, tmp_path):
    evaluate(CONFIG, trained, tmp_path / "own")
    evaluate(dataclasses.replace(CONFIG, attack_precision="float32"), trained, tmp_path / "copy")
    for name, values in numbers(tmp_path / "own").items():
        np.testing.assert_array_equal(numbers(tmp_path / "copy")[name], values, err_msg=name)


def test_any_other_keras_model_has_no_copy(tmp_path):
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(3)])
    config = dataclasses.replace(CONFIG, attack_precision="float32")
    with pytest.raises(InputError, match="expected a net of this package with attack_precision, received Sequential"):
        evaluate_model(model, np.zeros((4, 8, 8, 1), np.float32), np.zeros(4, int), config, tmp_path / "report")
