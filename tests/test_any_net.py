"""Nets of everyday life: the accuracy that their owners know, or one line that says what is missing."""

import math
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from evaluation_nets import digits, read_strictly
from keras import layers, ops
from kinds_of_nets import (
    IMAGES,
    KINDS,
    RANDOM,
    SHAPE,
    always_noise,
    augmented,
    augmented_monte_carlo,
    dense,
    functional_of,
    noisy_call,
    sequential,
    some_images,
    trained,
    two_outputs,
)

import wca_tf
from wca_tf.core.errors import InputError
from wca_tf.core.own_modules import import_own
from wca_tf.nets.adapter import adapt, check_pixels
from wca_tf.nets.judge import judge
from wca_tf.nets.pixel_range import better_range
from wca_tf.nets.sampled_target import SampledTarget


def cases(names, *quick):
    """The names as parameters; all but the quick ones are slow tests."""
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in names]


def accuracy(model, **options):
    """The clean accuracy that every evaluation tells."""
    images, labels = some_images()
    target = adapt(model, SHAPE, **options)
    check_pixels(target, images, labels)
    return judge(target, tf.constant(images), labels, np.arange(IMAGES), 0).correct.mean()


QUICK = ("a dense net", "/ 255.0", "ops.softmax", "augmentation, functional", "subclassed, / 255.0, softmax")


@pytest.mark.parametrize("kind", cases(KINDS, *QUICK, "an ensemble of softmaxes"))
def test_the_clean_accuracy_is_that_of_the_owner(kind):
    make, options, scale = KINDS[kind]
    model, (images, labels) = make(), some_images()
    owners = model.evaluate(images * scale, labels, verbose=0)[1]
    assert owners > 0.3, "a net that has learnt nothing shows nothing"
    if scale != 1:
        with pytest.raises(InputError, match=r"give pixel_range=\((0, 255|-1, 1)\)"):
            wca_tf.parse_attack("fgsm")(model, images, labels)
        options = {**options, "pixel_range": (0, scale)}
    assert accuracy(model, **options) == pytest.approx(owners, abs=1e-6)


# Random nets: the number of the owner's own loop


@pytest.mark.parametrize("kind", cases(RANDOM, "dropout in call"))
def test_the_accuracy_of_a_random_net_is_within_the_interval_of_the_owners_loop(kind):
    make, call = RANDOM[kind]
    model, (images, labels) = make(), some_images()
    draws = np.array([np.argmax(call(model, images), axis=1) == labels for _ in range(200)])
    assert 0 < draws.std(axis=0).mean(), "the net is random"
    report = wca_tf.evaluate(model, images, labels, attacks="fgsm:eot_samples=1", epsilons=0.01)
    mine = report["clean"]["expected_accuracy"]["value"]
    error = math.sqrt(2 * draws.mean(axis=1).var(ddof=1) / len(draws))
    assert abs(mine - draws.mean()) < 5 * error + 1e-3


def test_augmentation_is_off_where_dropout_is_on():
    (model, twin), (images, labels) = augmented_monte_carlo(), some_images()
    report = wca_tf.evaluate(model, images, labels, attacks="fgsm:eot_samples=1", epsilons=0.01)
    assert report["net"]["random_layers"] == {"on": ["mc"], "off": ["move"]}
    owners = np.mean([np.argmax(twin(images), axis=1) == labels for _ in range(200)])
    assert abs(report["clean"]["expected_accuracy"]["value"] - owners) < 0.02
    with_all = np.mean([np.argmax(model(images), axis=1) == labels for _ in range(20)])
    assert owners > with_all + 0.1  # with the augmentation on, another number


def test_training_overrides_what_is_random():
    images = some_images()[0][:4]
    target = adapt(augmented_monte_carlo()[0], training=False)
    np.testing.assert_array_equal(target.features(images), target.features(images))
    assert target.net.random_on == [] and target.has_noise is False
    target = adapt(augmented(), training=True)
    assert target.net.random_on and not hasattr(target, "has_noise")


# Inputs of every kind


class Batches(keras.utils.PyDataset):
    """As of ImageDataGenerator.flow."""

    def __init__(self, images, labels):
        super().__init__()
        self.images, self.labels = images, labels

    def __len__(self):
        return math.ceil(len(self.images) / 64)

    def __getitem__(self, number):
        part = slice(64 * number, 64 * (number + 1))
        return self.images[part], self.labels[part]


DATA = {
    "float64": lambda x, y: (x.astype(np.float64), y),
    "float16": lambda x, y: (x.astype(np.float16), y),
    "bytes": lambda x, y: (np.round(255 * x).astype(np.uint8), y),
    "labels in a column": lambda x, y: (x, y[:, np.newaxis]),
    "one-hot": lambda x, y: (x, np.eye(10, dtype=np.float32)[y]),
    "float labels": lambda x, y: (x, y.astype(np.float32)),
    "tensors": lambda x, y: (tf.constant(x), tf.constant(y)),
    "grey images without channels": lambda x, y: (x[..., 0], y),
    "tf.data": lambda x, y: (tf.data.Dataset.from_tensor_slices((x, y)).batch(64), None),
    "tf.data, one-hot": lambda x, y: (tf.data.Dataset.from_tensor_slices((x, np.eye(10)[y])).batch(64), None),
    "int64": lambda x, y: (np.round(255 * x).astype(np.int64), y),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "bool one-hot": lambda x, y: (x, np.eye(10, dtype=bool)[y]),
    "PyDataset": lambda x, y: (Batches(x, y), None),
}


@pytest.mark.parametrize("kind", cases(DATA, "float64", "labels in a column", "tf.data"))
def test_images_and_labels_of_every_kind_have_the_same_accuracy(kind):
    images, labels = DATA[kind](*some_images())
    report = wca_tf.evaluate(dense(), images, labels, attacks="fgsm", epsilons=0.01)
    expected = dense().evaluate(*some_images(), verbose=0)[1]
    assert report["clean"]["accuracy"]["value"] == pytest.approx(expected, abs=0.02 if kind == "float16" else 1e-6)


REFUSED_DATA = {
    "dark images in floats": (lambda x, y: (100 * x, y), "divide by the largest value that a pixel can have"),
    "no labels": (lambda x, y: (x, None), "expected labels, or a tf.data.Dataset"),
    "a set without batches": (lambda x, y: (tf.data.Dataset.from_tensor_slices((x[..., 0], y)), None), "batch"),
    "a set of single images": (lambda x, y: (tf.data.Dataset.from_tensor_slices((x, y)), None), r"\.batch\(100\)"),
    "dictionaries": (
        lambda x, y: (tf.data.Dataset.from_tensor_slices({"image": x, "label": y}).batch(9), None),
        "as_supervised=True",
    ),
    "bytes of 0 and 1": (lambda x, y: (np.round(x).astype(np.uint8), y), "none with a pixel above 1: give them as"),
    "images less their mean": (lambda x, y: (x - 0.5, y), "a model that begins with your preprocessing"),
    "a set of images alone": (lambda x, y: (tf.data.Dataset.from_tensor_slices(x).batch(9), None), "one element"),
    "labels of two classes a row": (lambda x, y: (x, np.ones((IMAGES, 10))), "labels"),
}


@pytest.mark.parametrize("kind", REFUSED_DATA)
def test_data_that_cannot_be_used_are_one_line_with_advice(kind):
    make, message = REFUSED_DATA[kind]
    images, labels = make(*some_images())
    with pytest.raises(InputError, match=message) as raised:
        wca_tf.evaluate(dense(), images, labels, attacks="fgsm")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("last", ["sigmoid", None])
def test_a_binary_net_has_the_accuracy_of_its_owner(last):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(SHAPE), layers.Flatten(), layers.Dense(16, "relu"), layers.Dense(1, last)])
    loss = keras.losses.BinaryCrossentropy(from_logits=last is None)
    training, (images, labels) = digits()[0], some_images()
    threshold = 0.5 if last else 0.0
    model.compile("adam", loss, metrics=[keras.metrics.BinaryAccuracy(threshold=threshold)])
    model.fit(training.images, training.labels > 4, epochs=8, verbose=0)
    owners = model.evaluate(images, labels > 4, verbose=0)[1]
    report = wca_tf.evaluate(model, images, (labels > 4).astype(np.float32), attacks="fgsm", epsilons=0.05)
    assert report["clean"]["accuracy"]["value"] == pytest.approx(owners, abs=1e-6) and owners > 0.8
    assert report["attacks"][0]["expected_accuracy"]["value"] < owners


@pytest.mark.parametrize("form", ["array", pytest.param("tf.data", marks=pytest.mark.slow)])
def test_float_images_up_to_255_are_those_that_the_model_takes(form):
    """As image_dataset_from_directory has them, for a model that rescales."""
    model, (images, labels) = KINDS["Rescaling"][0](), some_images()
    owners, data = model.evaluate(255 * images, labels, verbose=0)[1], (255 * images, labels)
    given = data if form == "array" else (tf.data.Dataset.from_tensor_slices(data).batch(50),)
    report = wca_tf.evaluate(model, *given, attacks="fgsm", epsilons=8 / 255)
    assert report["clean"]["accuracy"]["value"] == pytest.approx(owners) and report["net"]["pixel_range"] == [0, 255]
    result = wca_tf.parse_attack("fgsm")(model, *given, epsilon=8 / 255)
    left = report["attacks"][0]["expected_accuracy"]["value"]
    assert result.probability_correct.mean() == pytest.approx(left, abs=0.01) and result.images.max() <= 1


def test_one_output_of_several_is_chosen_by_its_name_or_number():
    model, (images, labels) = two_outputs(), some_images()
    owners = (np.argmax(model(images)["digit"], axis=1) == labels).mean()
    with pytest.raises(InputError, match=r"one output, received one with 2: choose by output=, of 0 \('digit'\)"):
        accuracy(model)
    assert accuracy(model, output="digit") == accuracy(model, output=0) == pytest.approx(owners)
    with pytest.raises(InputError, match="an output among digit, size, received 'none'"):
        accuracy(model, output="none")


def test_a_function_of_images_is_a_net():
    net, (images, labels) = dense(), some_images()
    assert accuracy(lambda images: net(images)) == pytest.approx(net.evaluate(images, labels, verbose=0)[1])
    with pytest.raises(InputError, match="expected image_shape|images of any size"):
        adapt(lambda images: net(images))


def test_a_net_whose_call_raises_leaves_no_trace_in_tensorflow():
    def logits(images, seed):
        if not tf.executing_eagerly():
            raise ValueError("a fault of the user")
        return tf.random.stateless_normal([len(images), 10], seed)

    target = SampledTarget(logits)
    images, labels = some_images()
    with pytest.raises(ValueError, match="a fault of the user"):
        wca_tf.parse_attack("pgd:steps=1")(target, images, labels, 0.1)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():  # raised NotImplementedError, and stayed entered
        assert tf.Variable(1.0).numpy() == 1


@pytest.mark.parametrize("options", [{"pixel_range": (0, 255)}, {"training": False}, {"independent_noise": True}])
def test_options_beside_a_target_are_refused_as_it_has_its_own(options):
    with pytest.raises(InputError, match=f"expected no {next(iter(options))} beside a target"):
        adapt(adapt(dense()), **options)


def test_probabilities_of_zero_that_cannot_be_undone_are_refused():
    hard = functional_of(dense(), lambda x: ops.one_hot(ops.argmax(x, axis=1), 10))
    with pytest.raises(InputError, match="probabilities above 0.*give a model that returns logits"):
        adapt(hard)


def test_logits_between_0_and_1_are_taken_where_the_owner_says_so():
    squashed = functional_of(dense(), lambda x: 1 / (1 + ops.exp(-x)))
    with pytest.raises(InputError, match="outputs='logits'"):
        accuracy(squashed)
    assert accuracy(squashed, outputs="logits") == pytest.approx(dense().evaluate(*some_images(), verbose=0)[1])


def test_masked_classes_are_told_how_to_be_masked():
    masked = functional_of(dense(), lambda x: ops.concatenate([x[:, :9], x[:, 9:] - np.inf], axis=1))
    with pytest.raises(InputError, match="mask classes by a number such as -1e9"):
        adapt(masked)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras.Sequential([keras.Input((64,)), layers.Dense(10)]), r"Flatten\(\) before it"),
        (lambda: keras.Sequential([keras.Input((1, 8, 8)), layers.Flatten(), layers.Dense(10)]), "channels_first"),
    ],
)
def test_advice_about_shapes_works(make, message):
    images, _ = some_images()
    model = make()
    with pytest.raises(InputError, match=message):
        wca_tf.evaluate(model, *some_images(), attacks="fgsm")
    first = layers.Flatten() if "Flatten" in message else layers.Permute((3, 1, 2))
    adapt(keras.Sequential([keras.Input(SHAPE), first, model])).features(images[:2])


def test_images_of_a_net_with_channels_first_are_not_taken_for_others():
    """Else n_pixel would change a row in place of a pixel."""
    keras.utils.set_random_seed(0)
    body = [layers.Conv2D(4, 3, data_format="channels_first"), layers.Flatten(), layers.Dense(10)]
    model, (images, labels) = keras.Sequential([keras.Input((1, 8, 8)), *body]), some_images()
    with pytest.raises(InputError, match=r"received one that takes \(1, 8, 8\): channels_first\?"):
        wca_tf.evaluate(model, np.moveaxis(images, -1, 1), labels, attacks="fgsm")
    model = keras.Sequential([keras.Input(SHAPE), layers.Permute((3, 1, 2)), model])
    assert accuracy(model) == pytest.approx(np.mean(np.argmax(model(images), axis=1) == labels))


# What is printed and stored


def test_what_was_decided_is_printed_first_and_stored(tmp_path, capsys):
    report = wca_tf.evaluate(
        augmented(), *some_images(), attacks="fgsm", epsilons=0.01, report_dir=tmp_path / "report", name="mine"
    )
    first = capsys.readouterr().out.splitlines()[0]
    percent = f"{100 * report['clean']['accuracy']['value']:.1f}"
    assert first.startswith("mine (Sequential, Keras) on 200 images: pixels from 0 to 1; logits; random layers off: ")
    assert first.endswith(f"clean accuracy {percent} %")
    stored = read_strictly(tmp_path / "report" / "results.json")["net"]
    assert stored["pixel_range"] == [0, 1] and stored["outputs"] == "logits" and stored["framework"] == "Keras"
    assert first in repr(report)


def test_another_range_of_pixels_is_another_net_for_a_report(tmp_path):
    shared = {"attacks": "fgsm", "epsilons": 0.01, "report_dir": tmp_path / "report"}
    wca_tf.evaluate(dense(), *some_images(), **shared)
    with pytest.raises(InputError, match="another model"):
        wca_tf.evaluate(dense(), *some_images(), pixel_range=(0, 2), **shared)


# The comparison of ranges


def test_the_comparison_of_ranges_makes_few_errors_about_nets_that_are_equal():
    """Of a net at chance, whose answers to the same image differ between the ranges."""
    rng, images, labels = np.random.default_rng(0), np.zeros((256, 1, 1, 1)), np.zeros(256, int)
    for _ in range(300):  # 1e-4 each
        better_range(lambda some, _: rng.integers(0, 2, len(some)), lambda *_: "", images, labels)


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.slow), 13])
def test_few_images_are_no_error_but_a_note(count):
    model = trained(sequential(layers.Rescaling(1 / 255)), 255)
    images, labels = some_images()
    report = wca_tf.evaluate(model, images[:count], labels[:count], attacks="fgsm", epsilons=0.01)
    assert re.search(f"^{count} images are too few to measure|which is not sure", report["net"]["note"])


@pytest.mark.slow
def test_nets_of_this_package_with_noise_raise_no_false_alarm():
    """Beside larger pixels their noise vanishes, and the answers get better."""
    around = ((0, 0), (2, 2), (2, 2), (0, 0))  # lenet5 takes 12×12 pixels
    training, (images, labels) = digits()[0], some_images()
    images, request = np.pad(images, around), wca_tf.NetRequest((12, 12, 1), 10, backbone="lenet5")
    for text in ("smoothing:deviation=0.7", "rse:first_deviation=0.7"):
        net = wca_tf.parse_defence(text).build(request)
        net.compile(keras.optimizers.Adam(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        net.fit(np.pad(training.images, around), training.labels, epochs=3, batch_size=50, verbose=0)
        wca_tf.parse_attack("fgsm:eot_samples=1")(net, images, labels)


def test_a_net_that_learns_more_is_measured_again():
    features = (layers.Flatten, lambda: layers.Dense(64, ops.sin))
    model, (images, labels) = trained(sequential(features=features), epochs=20), some_images()
    check_pixels(target := adapt(model), images, labels)
    measured = target.net._sums_when_sure
    check_pixels(target, images, labels)
    assert measured and target.net._sums_when_sure is measured, "sure"
    model.layers[1].kernel.assign(model.layers[1].kernel / 255)  # as if it had learnt from pixels up to 255
    with pytest.raises(InputError, match=r"give pixel_range=\(0, 255\)"):
        check_pixels(target, images, labels)


def test_evidence_that_is_not_sure_is_a_note_and_is_measured_again():
    """18 images, of which one is right in both ranges; an attack on them must not stop the check of more images."""
    model, (images, labels) = KINDS["Rescaling"][0](), some_images()
    with pytest.warns(UserWarning, match="which is not sure|too few images|are too few"):
        wca_tf.parse_attack("fgsm")(model, images[:12], labels[:12])
    with pytest.raises(InputError, match=r"give pixel_range=\(0, 255\)"):
        wca_tf.parse_attack("fgsm")(model, images, labels)
    adapted = adapt(model, pixel_range=(0, 255))  # as the message says
    assert wca_tf.parse_attack("fgsm")(adapted, images, labels, 0.0).success.mean() < 0.3

    def predict(some, pixel_range):
        """Eight of 64 images that only pixels up to 255 get right: too few to be sure."""
        return (np.arange(len(some)) % 32 < (5 if pixel_range[1] == 255 else 1)).astype(int)

    note, sure = better_range(predict, lambda low, high: "try it", np.zeros((64, 1, 1, 1)), np.ones(64, int))
    assert "which is not sure. If these are its pixels, try it" in note and not sure


def test_the_range_that_the_owner_gives_is_kept():
    """Of images that are all answered wrongly, another range gets some right."""
    model, (images, labels) = dense(), some_images()
    wrong = np.argmax(model(images), axis=1) != labels
    report = wca_tf.evaluate(model, images[wrong], labels[wrong], attacks="fgsm", epsilons=0.01, pixel_range=(0, 1))
    assert report["clean"]["accuracy"]["value"] == 0


def test_a_softmax_that_is_used_twice_is_not_left_out():
    keras.utils.set_random_seed(0)
    softmax, images = layers.Softmax(), keras.Input(SHAPE)
    hidden = layers.Dense(32, "relu")(layers.Flatten()(images))
    gated = layers.Multiply()([hidden, softmax(layers.Dense(32)(hidden))])
    model = trained(keras.Model(images, softmax(layers.Dense(10)(10 * gated))), loss="sparse_categorical_crossentropy")
    assert accuracy(model) == pytest.approx(model.evaluate(*some_images(), verbose=0)[1], abs=1e-6)


class OwnStep(keras.Model):
    """A functional model of a class of its own, without a `call` of its own."""


def test_dropout_stays_on_in_a_functional_model_of_a_class_of_its_own():
    images = keras.Input(SHAPE)
    hidden = layers.Dropout(0.5, name="mc")(layers.Flatten()(images), training=True)
    target = adapt(OwnStep(images, layers.Dense(10)(hidden)))
    assert target.net.random_on == ["mc"] and not hasattr(target, "has_noise")


@pytest.mark.parametrize("make", [noisy_call, always_noise])
def test_noise_in_a_call_is_said_to_be_on(make):
    assert adapt(make(), SHAPE).net.random_on == ["some, in its own call"]


def test_a_set_that_repeats_for_ever_is_refused():
    endless = tf.data.Dataset.from_tensor_slices(some_images()).batch(50).repeat()
    with pytest.raises(InputError, match="a finite tf.data.Dataset"):
        wca_tf.evaluate(dense(), endless, attacks="fgsm")


@pytest.mark.parametrize(
    ("images", "advice"), [(lambda x: 2 * x - 1, r"\(images \+ 1\) / 2, and pixel_range=\(-1, 1\)")]
)
def test_images_from_minus_one_are_told_what_to_do(images, advice):
    model = trained(sequential(), 2, shift=-1)
    pixels, labels = some_images()
    with pytest.raises(InputError, match=advice):
        wca_tf.evaluate(model, images(pixels), labels, attacks="fgsm")
    assert accuracy(model, pixel_range=(-1, 1)) == pytest.approx(model.evaluate(2 * pixels - 1, labels, verbose=0)[1])


# Files and names


FORMS = ("keras", "h5", "SavedModel", "model of a module", "function of a module")


@pytest.mark.parametrize("how", cases(FORMS, "SavedModel"))
def test_the_command_takes_models_of_every_form(command, tmp_path, how):
    model = trained(
        sequential(after=[layers.Softmax()], features=(layers.Flatten,)), loss="sparse_categorical_crossentropy"
    )
    path = tmp_path / {"h5": "net.h5", "SavedModel": "net"}.get(how, "net.keras")
    model.export(path, verbose=False) if how == "SavedModel" else model.save(path)
    named = path.name
    if "module" in how:
        load = f"keras.models.load_model({str(path)!r})"
        text = f"net = {load}" if how == "model of a module" else f"def net():\n    return {load}"
        (tmp_path / "mine.py").write_text(f"import keras\n{text}\n")
        named = "mine:net"
    shared = ("--dataset=digits", "--image_size=8", "--attacks=fgsm", "--epsilons=0.05", "--num_examples=40")
    done = command("evaluate", f"--model={named}", *shared, "--report_dir=report", cwd=tmp_path)
    assert done.code == 0, done.err
    results = read_strictly(tmp_path / "report" / "results.json")
    assert results["dataset"] == "digits" and "of digits" in done.out.splitlines()[0]
    assert results["clean"]["accuracy"]["value"] > 0.6 > results["attacks"][0]["expected_accuracy"]["value"]
    for page in ("report.html", "model_card.md"):
        assert "digits" in (tmp_path / "report" / page).read_text()


@pytest.mark.slow
def test_a_fresh_process_reads_a_net_by_keras_after_one_import(tmp_path):
    net = wca_tf.parse_defence("wca").build(wca_tf.NetRequest((28, 28, 1), 10, backbone="lenet5"))
    net.save(tmp_path / "net.keras")
    by_keras = ("import keras, wca_tf", "import wca_tf.keras_classes, keras")
    for line in (*(f"{each}; keras.saving" for each in by_keras), "import wca_tf; wca_tf"):
        code = f"{line}.load_model({str(tmp_path / 'net.keras')!r})"
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)


def test_the_working_directory_is_not_searched_before_packages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scipy.py").write_text("raise RuntimeError")
    assert import_own("scipy").__file__ != str(tmp_path / "scipy.py")
