"""Whatever is public and has a name is held to the same: it survives its file, its graph, its seed and a SavedModel.

What is new needs no test here: the registries are the package's own. Each has tests of what it does elsewhere.
"""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from attack_nets import EPSILON, QUICK, WITH_NORMS, batch_of, build_attack, predictions, random_images, run, tanh_target
from toy_models import AIRBENCH, MIN_SIDES

from reproduce.official import WCAOfficialNet
from wca_tf.attacks import ATTACKS, parse_attack
from wca_tf.core.seeds import keras_seed, make_seed
from wca_tf.data.batches import training_batches
from wca_tf.data.sources import load_examples
from wca_tf.defences.wca.net import WCANet
from wca_tf.nets.backbones import BACKBONES, build_backbone
from wca_tf.runs.config import TrainConfig

LAYERS = [layer for net in (WCANet, WCAOfficialNet) for layer in net.head_class.noise_layers.values()]


def smallest(name):
    """The shape of the smallest images of a backbone, in colour."""
    return (MIN_SIDES.get(name, 8),) * 2 + (3,)


def with_slow(names, slow):
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]


EACH_BACKBONE = with_slow(BACKBONES, {"resnet18", "resnet18_imagenet", "wide_resnet34_10", *AIRBENCH[1:]})
EACH_ATTACK = with_slow(ATTACKS, set(ATTACKS) - {"pgd"})  # seconds of tracing each
ROUNDING = {"rtol": 1e-5, "atol": 1e-5}  # a graph may sum in another order


def images_of(shape, count=3):
    return np.random.default_rng(0).random((count, *shape), np.float32)


# Layers


def make_layer(layer_class):
    layer = layer_class(seed=3)
    layer.build((None, 4))
    layer.scale_vector.assign(layer.scale_vector + 0.1 * np.arange(layer.scale_vector.shape[0]))
    return layer


@pytest.mark.parametrize("layer_class", LAYERS)
def test_a_layer_survives_its_file_and_goes_on_with_its_stream(layer_class, tmp_path):
    layer = make_layer(layer_class)
    model = keras.Sequential([keras.Input((4,)), layer])
    model(np.zeros((2, 4)))  # the stream has begun
    model.save(tmp_path / "layer.keras")
    loaded = keras.saving.load_model(tmp_path / "layer.keras")
    assert type(loaded.layers[0]) is layer_class
    assert loaded.layers[0].get_config() == layer.get_config()
    np.testing.assert_array_equal(loaded(np.ones((5, 4))), model(np.ones((5, 4))))


@pytest.mark.parametrize("layer_class", LAYERS)
def test_a_layer_is_the_same_in_a_graph_and_differs_by_its_seed_alone(layer_class):
    layer, features = make_layer(layer_class), np.ones((5, 4), np.float32)
    graph = tf.function(lambda x, seed: layer(x, seed=seed), jit_compile=False)
    first = layer(features, seed=make_seed(0)).numpy()
    np.testing.assert_allclose(graph(features, make_seed(0)), first, **ROUNDING)
    np.testing.assert_array_equal(layer(features, seed=make_seed(0)), first)
    assert np.all(layer(features, seed=make_seed(1)).numpy() != first)


@pytest.mark.parametrize("layer_class", LAYERS)
def test_a_layer_is_the_same_from_a_saved_model(layer_class, tmp_path):
    layer, features = make_layer(layer_class), np.ones((5, 4), np.float32)
    module = tf.Module()
    module.layer_variables = layer.variables
    signature = [tf.TensorSpec([None, 4]), tf.TensorSpec([2], tf.int32)]
    module.serve = tf.function(lambda x, seed: layer(x, seed=seed), signature, jit_compile=False)
    tf.saved_model.save(module, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(loaded.serve(features, make_seed(7)), layer(features, seed=make_seed(7)), **ROUNDING)


# Attacks


@pytest.fixture(scope="module")
def attacked():
    """(target, images, labels)."""
    target, images = tanh_target(scale=0.3), random_images(5)
    return target, images, predictions(target, images)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_its_text_a_key_and_its_fields(name):
    attack = parse_attack(QUICK[name])
    assert attack == parse_attack(QUICK[name])
    assert hash(attack) == hash(dataclasses.replace(attack))
    again = type(attack)(**json.loads(json.dumps(attack.options())))
    assert again.options() == attack.options() == parse_attack(again.name).options()


def images_of_perturb(attack, target, batch):
    made = attack.perturb(target, batch, tf.constant(EPSILON), make_seed(3))
    return made[0] if isinstance(made, tuple) else made


@pytest.mark.parametrize("name", EACH_ATTACK)
def test_an_attack_differs_by_its_seed_alone_and_its_graph_is_a_saved_model(name, attacked, tmp_path):
    target, images, labels = attacked
    attack = build_attack(QUICK[name], EPSILON, eot_samples=5)
    first = run(attack, target, images, labels, seed=3).numpy()
    np.testing.assert_array_equal(run(attack, target, images, labels, seed=3), first)
    module = tf.Module()
    module.attack = tf.function(
        lambda images: images_of_perturb(attack, target, batch_of(images, labels)),
        [tf.TensorSpec(images.shape)],
        jit_compile=False,
    )
    tf.saved_model.save(module, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved")).attack(images)
    np.testing.assert_allclose(loaded, first, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("text", WITH_NORMS)
def test_an_attack_is_the_same_without_a_graph(text, attacked):
    target, images, labels = attacked
    attack = build_attack(text, EPSILON, eot_samples=5)
    python = images_of_perturb(attack, target, batch_of(images, labels))
    np.testing.assert_allclose(python, run(attack, target, images, labels, seed=3), rtol=0, atol=1e-5)


# Backbones


def net_on(name):
    with keras_seed(5):
        net = WCANet(build_backbone(name, smallest(name)), num_classes=3, feature_dim=4)
        net.build((None, *smallest(name)))
    return net


@pytest.mark.parametrize("name", EACH_BACKBONE)
def test_a_backbone_survives_its_file_its_graph_its_seed_and_a_saved_model(name, tmp_path):
    net, again = net_on(name), net_on(name)
    for mine, its in zip(net.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)
    images = images_of(smallest(name))
    features = net.features(images).numpy()
    graph = tf.function(net.features, jit_compile=False)
    np.testing.assert_allclose(graph(images), features, rtol=1e-4, atol=1e-4)
    net.save(tmp_path / "net.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "net.keras").features(images), features)
    net.backbone.export(tmp_path / "saved", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(loaded.serve(images), net.backbone(images), rtol=1e-4, atol=1e-4)


# Data


def write_folder(root):
    for label in "ab":
        (root / label).mkdir(parents=True)
        for number in range(10):
            png = tf.io.encode_png(np.full((8, 8, 3), 10 * number, np.uint8))
            tf.io.write_file(str(root / label / f"{number}.png"), png)


@pytest.fixture(params=["digits", "folder"])
def dataset(request, tmp_path):
    """A configuration; TFDS's own sets are in test_data.py, on a set made there."""
    if request.param == "digits":
        return TrainConfig(dataset="digits")
    write_folder(tmp_path / "images")
    return TrainConfig(dataset=f"folder:{tmp_path / 'images'}")


def test_a_data_set_is_the_same_again_in_a_pipeline_that_its_seed_decides(dataset, tmp_path):
    examples, again = (
        load_examples(dataset, "train"),
        load_examples(TrainConfig(**dataclasses.asdict(dataset)), "train"),
    )
    np.testing.assert_array_equal(examples.images, again.images)
    np.testing.assert_array_equal(examples.labels, again.labels)
    assert examples.class_names == again.class_names

    def batches(seed):
        return [
            (images.numpy(), labels.numpy())
            for images, labels, *_ in training_batches(examples, 4, 1, 0, seed, "crop_flip").take(3)
        ]

    for mine, its in zip(batches(0), batches(0), strict=True):
        np.testing.assert_array_equal(mine[0], its[0])
        np.testing.assert_array_equal(mine[1], its[1])
    assert any(np.any(mine[0] != other[0]) for mine, other in zip(batches(0), batches(1), strict=True))
