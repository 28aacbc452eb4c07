"""What could be taken for something else: attacks, nets and noise that change without a change of their name."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from evaluation_nets import dense_net, digits

import wca_tf
from wca_tf.attacks import parse_attack
from wca_tf.attacks.pgd import ProjectedGradient
from wca_tf.core.errors import InputError
from wca_tf.defences import Defence
from wca_tf.evaluation.identity import digest_of_net
from wca_tf.evaluation.measures import registry
from wca_tf.evaluation.measures.measure import Measure
from wca_tf.nets.adapter import adapt
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.noise import ActivationNoise
from wca_tf.nets.noisy_net import NoisyNet
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.serving.export import export

SHAPE = (8, 8, 1)
SHARED = {"epsilons": 0.1, "eot_samples": 3}


@pytest.fixture(scope="module")
def net():
    return dense_net(4)


@pytest.fixture(scope="module")
def images():
    test = digits(4)[1]
    return test.images[:20], test.labels[:20]


# Attacks


class Nothing(wca_tf.BallAttack):
    passes = 1

    def perturb(self, target, batch, epsilon, seed):
        return batch.images


def test_a_field_that_is_no_option_is_refused():
    """Neither name nor record would tell one value from another."""

    @dataclasses.dataclass(frozen=True)
    class Scaled(Nothing):
        strength: float = dataclasses.field(default=1.0, kw_only=True)

    with pytest.raises(InputError, match="every field of Scaled.*received strength"):
        Scaled()


def test_an_attack_that_is_no_frozen_dataclass_is_refused():
    """Two of them would be equal, and share a graph."""
    with pytest.raises(InputError, match="frozen"):
        Nothing()


def test_a_changed_attack_does_not_keep_its_old_name():
    changed = dataclasses.replace(parse_attack("pgd"), steps=100)
    assert changed.name == "pgd:steps=100"
    assert dataclasses.replace(parse_attack("pgd"), eot_samples=3).name == "pgd"  # said by the evaluation


def test_adding_attacks_leaves_the_options_of_an_attack_object_alone(net, images, tmp_path):
    attack = ProjectedGradient(steps=1)  # of 50 draws, where the evaluation has 3
    first = wca_tf.evaluate(net, *images, attacks=[attack], report_dir=tmp_path / "report", **SHARED)
    more = wca_tf.evaluate(net, *images, attacks="fgsm", report_dir=tmp_path / "report", **SHARED)
    assert more["attacks"][0]["config"]["eot_samples"] == 50
    assert {**more["attacks"][0], "seconds": 0} == {**first["attacks"][0], "seconds": 0}


def test_an_attack_that_is_not_known_here_is_not_left_out_of_the_worst_case(net, images, tmp_path, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Own(Nothing):
        pass

    wca_tf.evaluate(net, *images, attacks=[Own()], report_dir=tmp_path / "report", **SHARED)
    with pytest.raises(InputError, match="Own of this report"):
        wca_tf.evaluate(net, *images, attacks="fgsm", report_dir=tmp_path / "report", **SHARED)


@pytest.mark.parametrize("dtype", [np.int32, np.uint16])
def test_whole_numbers_that_are_not_bytes_are_no_images(net, images, dtype):
    with pytest.raises(InputError, match="uint8"):
        parse_attack("fgsm")(net, images[0].astype(dtype), images[1], 0.1)


def test_numbers_of_numpy_are_numbers(net, images, tmp_path):
    attack = ProjectedGradient(steps=np.int64(2), relative_step_size=np.float32(0.25))
    options = {"epsilons": np.float32(0.25), "eot_samples": np.int64(2), "num_examples": np.int64(5)}
    report = wca_tf.evaluate(net, *images, attacks=[attack], report_dir=tmp_path / "report", **options)
    assert report["attacks"][0]["epsilon"] == 0.25 and report["num_examples"] == 5


@pytest.mark.parametrize(
    "changes", [{"attacks": None}, {"attacks": [5]}, {"attacks": [ProjectedGradient]}, {"epsilons": "1e99999999"}]
)
def test_what_is_no_attack_or_radius_is_an_input_error(net, images, changes):
    with pytest.raises(InputError):
        wca_tf.evaluate(net, *images, **{"attacks": "fgsm", "epsilons": 0.1, **changes})


@pytest.mark.parametrize("text", ["wca_tf.attacks:BallAttack", "wca_tf.attacks.attack:WorstCase"])
def test_an_abstract_attack_is_an_input_error(text):
    with pytest.raises(InputError, match="expected"):
        parse_attack(text)


# Nets


@pytest.mark.parametrize("kept", ["records", "measures"])
def test_records_without_the_name_of_their_net_are_not_taken_for_those_of_this_net(net, images, tmp_path, kept):
    wca_tf.evaluate(net, *images, attacks="fgsm", report_dir=tmp_path, **SHARED)
    for path in tmp_path.iterdir():  # as `rm report/*` does, which leaves directories
        if path.is_file():
            path.unlink()
    for folder in {"records", "measures"} - {kept}:
        shutil.rmtree(tmp_path / folder, ignore_errors=True)
    (tmp_path / kept).mkdir(exist_ok=True)
    with pytest.raises(InputError, match=f"{kept} is of something else"):
        wca_tf.evaluate(dense_net(4), *images, attacks="fgsm", report_dir=tmp_path, **SHARED)


def test_a_net_that_is_built_again_in_one_process_is_the_same_net(net):
    """Keras counts the names of layers up: dense, dense_1, ..."""

    def build():
        inputs = keras.Input(SHAPE)
        features = keras.layers.Flatten()(inputs)
        shortcut = keras.layers.Dense(4)(features)
        again = keras.Model(inputs, keras.layers.Add()([shortcut, keras.layers.Dense(4)(features)]))
        again.set_weights([np.full(weight.shape, number) for number, weight in enumerate(again.weights)])
        return again

    first = build()
    assert digest_of_net(first) == digest_of_net(build())
    first.trainable = False
    assert digest_of_net(first) == digest_of_net(build()), "frozen, it answers alike"
    kept = keras.Sequential([keras.Input(SHAPE), *first.layers[1:3]])
    assert digest_of_net(kept) != digest_of_net(first)


def layers(*inner):
    return keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(), *inner])


def test_a_random_stream_that_moved_is_the_same_net():
    net = wca_tf.WCANet(layers(keras.layers.Dense(16)), 4, 16)
    net.build((None, *SHAPE))
    before = digest_of_net(net)
    net(tf.zeros([1, *SHAPE]))
    assert digest_of_net(net) == before
    net.classifier.kernel.assign(net.classifier.kernel + 1)
    assert digest_of_net(net) != before


class Dropout(keras.layers.Dropout):
    def call(self, inputs, training=False):
        return super().call(inputs, training=True)


@pytest.mark.parametrize("make", [lambda b: wca_tf.WCANet(b, 4, 16), lambda b: NoisyNet(b, 4)], ids=["wca", "noisy"])
def test_keras_noise_inside_a_net_of_this_package_follows_the_seed(make, tmp_path):
    net = make(layers(keras.layers.Dense(16), Dropout(0.5, seed=1)))
    net.build((None, *SHAPE))
    target, images = adapt(net), tf.random.stateless_uniform([5, *SHAPE], [0, 0])
    assert isinstance(target, SampledTarget) and not target.per_image_noise and target.noise_free_logits is None
    first, again, other = (target.logits(images, tf.constant([0, seed]), 3).numpy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    with pytest.raises(InputError, match="follows from its seed"):
        export(net, tmp_path, image_shape=SHAPE, class_names=list("abcd"))


@pytest.mark.parametrize("make", [lambda b: BottleneckNet(b, 4, 4), lambda b: adapt(keras.Sequential([b]), SHAPE)])
def test_layers_of_noise_that_would_be_silent_are_refused(make):
    with pytest.raises(InputError, match="NoisyNet"):
        make(layers(ActivationNoise(1.0), keras.layers.Dense(4)))


def test_a_layer_of_noise_that_is_called_twice_is_refused():
    images, noise = keras.Input((4,)), ActivationNoise(1.0)
    outputs = keras.layers.Subtract()([noise(images), noise(images)])
    with pytest.raises(InputError, match="once"):
        NoisyNet(keras.Model(images, outputs), 4)


class OnDarkImages(keras.layers.Layer):
    def call(self, inputs):
        dark = tf.cast(tf.reduce_max(inputs, axis=1, keepdims=True) < 0.01, tf.float32)
        return inputs + dark * tf.random.normal(tf.shape(inputs))


def test_noise_on_dark_images_alone_is_noise():
    assert isinstance(adapt(layers(OnDarkImages(), keras.layers.Dense(4))), SampledTarget)


@pytest.mark.parametrize(
    "outputs", [lambda f: [f, f], lambda f: {"a": f, "b": f}, lambda f: keras.layers.Reshape((2, 2))(f)]
)
def test_a_net_with_other_outputs_than_logits_is_an_input_error(outputs):
    images = keras.Input(SHAPE)
    logits = keras.layers.Dense(4)(keras.layers.Flatten()(images))
    with pytest.raises(InputError, match="one tensor|one output"):
        adapt(keras.Model(images, outputs(logits)))


@pytest.mark.parametrize("model", [None, "net.keras", len])
def test_what_is_no_net_is_an_input_error(images, model):
    with pytest.raises(InputError, match="a Keras 3 model.* a target|in one (tensor|array), received"):
        wca_tf.evaluate(model, *images, attacks="fgsm", **SHARED)


def test_a_target_needs_a_name_where_a_report_is_kept(net, images, tmp_path):
    with pytest.raises(InputError, match="name="):
        wca_tf.evaluate(adapt(net), *images, attacks="fgsm", report_dir=tmp_path / "report", **SHARED)


# Measures and defences


class WorstOfAll(Measure):
    name = "worst_of_all"

    def measure(self, context):
        left = [outcome.judgement.probability_correct.mean() for outcome in context.outcomes]
        return float(min(left))


def test_a_measure_of_the_attacks_is_made_again_when_attacks_are_added(net, images, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_registered", [WorstOfAll()])
    options = {"report_dir": tmp_path / "report", "epsilons": 0.3, "eot_samples": 2}
    weak = wca_tf.evaluate(net, *images, attacks="random_sampling:points=1", **options)
    strong = wca_tf.evaluate(net, *images, attacks="pgd", **options)
    assert strong["worst_of_all"] < weak["worst_of_all"]
    with pytest.raises(InputError, match="derived from Measure"):
        registry.register_measure(WorstOfAll)


@dataclasses.dataclass(frozen=True)
class PlainKeras(Defence):
    def build(self, request):
        return keras.Sequential([keras.Input(request.image_shape), keras.layers.Flatten(), keras.layers.Dense(10)])


def test_a_defence_that_builds_another_net_is_refused_before_training(tmp_path, tiny_config):
    config = dataclasses.replace(tiny_config, defence=f"{__name__}:PlainKeras")
    with pytest.raises(InputError, match="to build a StochasticClassifier"):
        wca_tf.train(config, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_run_whose_defence_has_other_defaults_now_is_refused(trained, tiny_config, tmp_path):
    copy = shutil.copytree(trained, tmp_path / "copy")
    stored = json.loads((copy / "config.json").read_text())
    assert stored["defence_options"]["weight_decay"] == 1e-4 and "wca_tf.defences.wca.net" in stored["modules"]
    stored["defence_options"]["weight_decay"] = 5.0
    (copy / "config.json").write_text(json.dumps(stored))
    with pytest.raises(InputError, match="other defaults"):
        wca_tf.train(tiny_config, copy)


@keras.saving.register_keras_serializable("tests")
class OneOfTwoHeads(keras.layers.Layer):
    """One of two heads, chosen at random in each call."""

    def __init__(self):
        super().__init__()
        self.heads = [keras.layers.Dense(3) for _ in range(2)]
        self.generator = keras.random.SeedGenerator(0)

    def call(self, features):
        first = keras.random.randint((), 0, 2, seed=self.generator)
        return tf.where(tf.equal(first, 0), self.heads[0](features), self.heads[1](features))


def test_a_net_that_chooses_one_of_two_heads_is_always_found_to_be_random():
    for _ in range(20):  # two calls chose the same head of half of these nets
        net = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), OneOfTwoHeads()])
        assert isinstance(adapt(net), SampledTarget)


def test_probabilities_in_bfloat16_are_found_wherever_the_softmax_is():
    keras.utils.set_random_seed(3)  # this net's probabilities do not add to 1 within 0.001
    large = keras.initializers.RandomNormal(stddev=3.0)
    dense = keras.layers.Dense(10, "softmax", dtype="mixed_bfloat16", kernel_initializer=large)
    net = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), dense])
    reshaped = [*net.layers, keras.layers.Reshape((10,), dtype="mixed_bfloat16")]
    for end in (net, keras.Sequential([keras.Input((4, 4, 1)), *reshaped])):
        assert "before the softmax" in adapt(end).net.outputs
    halved = keras.layers.Lambda(lambda x: (x + x) / 2)  # whose code nobody knows
    assert "before the softmax" in adapt(keras.Sequential([keras.Input((4, 4, 1)), *net.layers, halved])).net.outputs
