"""Nets as two functions of NumPy arrays: the numbers of the same net in Keras, or one line that says what is wrong."""

import json
import types

import numpy as np
import pytest
import tensorflow as tf
from evaluation_nets import arrays, assert_same_arrays, read_strictly, without_seconds
from framework_nets import keras_cnn, numpy_cnn, per_image, shared
from kinds_of_nets import SHAPE, some_images

import wca_tf
from wca_tf.attacks.attack import Attack
from wca_tf.core.errors import InputError
from wca_tf.evaluation import trials
from wca_tf.nets.adapter import adapt
from wca_tf.nets.judge import judge
from wca_tf.nets.passes import counting, passes_so_far
from wca_tf.nets.pullback_check import check_pullback

RADIUS = 0.05


def changed(net, **parts):
    """The same functions, but for some."""
    whole = {"logits": net.logits, "pullback": net.pullback, "num_classes": 10, **parts}
    return wca_tf.FunctionNet(**whole)


def few(count=40):
    images, labels = some_images()
    return images[:count], labels[:count]


def judged(target, images, labels, seed=0):
    return judge(target, tf.constant(images), labels, np.arange(len(images)), seed)


SLOW = ("square:queries=20", "cw:steps=10", "apgd_dlr:steps=5")


@pytest.mark.parametrize("text", ["fgsm", "pgd", *(pytest.param(text, marks=pytest.mark.slow) for text in SLOW)])
def test_an_attack_is_that_on_the_same_net_in_keras(text):
    images, labels = some_images()
    attack = wca_tf.parse_attack(text)
    own = attack(numpy_cnn(), images, labels, RADIUS)
    keras = attack(keras_cnn(), images, labels, RADIUS)
    assert abs(own.probability_correct.sum() - keras.probability_correct.sum()) <= 1
    assert np.mean(np.abs(own.images - keras.images) > 1e-4) < 0.01
    assert judged(adapt(keras_cnn()), own.images, labels).probability_correct.sum() == own.probability_correct.sum()


def test_a_report_has_the_numbers_of_the_same_net_in_keras(tmp_path):
    data, asked = some_images(), {"attacks": "fgsm,bounded:steps=3:restarts=2:class_steps=2", "epsilons": RADIUS}
    own = wca_tf.evaluate(numpy_cnn(), *data, **asked, report_dir=tmp_path / "functions", name="functions")
    keras = wca_tf.evaluate(keras_cnn(), *data, **asked, report_dir=tmp_path / "keras")
    for mine, theirs in zip(own["attacks"], keras["attacks"], strict=True):
        assert mine["expected_accuracy"]["value"] == pytest.approx(theirs["expected_accuracy"]["value"], abs=0.005)
        assert mine["passes"] == pytest.approx(theirs["passes"], rel=0.02), "counted by the same counter"
    stored = read_strictly(tmp_path / "functions" / "results.json")["net"]
    assert stored["framework"] == "functions of NumPy arrays" and stored["outputs"] == "logits"
    assert "functions of NumPy arrays" in (tmp_path / "functions" / "report.html").read_text()
    [group] = wca_tf.compare_evaluations([tmp_path / "functions", tmp_path / "keras"])
    assert "functions" in repr([group])


@pytest.mark.parametrize(
    ("noise", "independent"),
    [(shared, False), pytest.param(per_image, False, marks=pytest.mark.slow), (per_image, True)],
)
def test_a_random_net_follows_its_seed_and_is_judged_as_its_owner_would(noise, independent):
    images, labels = some_images()
    net = numpy_cnn(noise, independent_noise=independent)
    target = adapt(net, SHAPE)
    one, again, other = (judged(target, images, labels, seed).hits for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    owners = np.array([np.argmax(net.logits(images, seed), axis=1) == labels for seed in range(1000, 1200)])
    error = np.sqrt(2 * owners.mean(axis=1).var(ddof=1) / len(owners))
    assert abs(one.mean() - owners.mean()) < 5 * error + 1e-3


def test_several_draws_of_an_image_are_one_batch():
    sizes = []
    net = numpy_cnn(per_image)

    def logits(images, seed):
        sizes.append(len(images))
        return net.logits(images, seed)

    target = adapt(changed(net, logits=logits, independent_noise=True), SHAPE)
    sizes.clear()
    before = passes_so_far()
    made = tf.function(counting(lambda images: target.logits(images, tf.constant([3, 0]), 20)))(few(5)[0])
    assert sizes == [8 * 5, 8 * 5, 4 * 5] and made.shape == (20, 5, 10)
    assert passes_so_far().since(before) == (100, 0)
    values = made.numpy()
    assert len(np.unique(values[:, 0, 0])) == 20, "each draw is another"


def test_a_gradient_of_a_random_net_is_that_of_its_own_draw():
    """The mean of draws' gradients, each by the pullback under the seed of its logits."""
    images, labels = few(3)
    seen = []
    net = numpy_cnn(shared)

    def logits(images, seed):
        seen.append(("logits", seed))
        return net.logits(images, seed)

    def pullback(images, seed, upstream):
        seen.append(("pullback", seed))
        return net.pullback(images, seed, upstream)

    target = adapt(changed(net, logits=logits, pullback=pullback), SHAPE)
    seen.clear()
    attack = wca_tf.parse_attack("fgsm:eot_samples=6")
    attack.run(target, tf.constant(images), labels, RADIUS, np.arange(3), 0)
    forward = [seed for kind, seed in seen if kind == "logits"]
    assert [seed for kind, seed in seen if kind == "pullback"] == forward and len(set(forward)) == 6


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_and_ends_alike(tmp_path, monkeypatch):
    images, labels = few(20)
    asked = {"attacks": "fgsm,pgd:steps=3", "epsilons": RADIUS, "eot_samples": 2, "batch_size": 10, "name": "mine"}
    calls, run = [], Attack.run
    monkeypatch.setattr(trials, "SAVE_EVERY", 0.0)

    def evaluated(report, dies_at=0):
        calls.clear()

        def counted(self, *arguments):
            calls.append(self)
            if len(calls) == dies_at:
                raise KeyboardInterrupt
            return run(self, *arguments)

        monkeypatch.setattr(Attack, "run", counted)
        return wca_tf.evaluate(numpy_cnn(shared), images, labels, report_dir=tmp_path / report, **asked)

    whole, every = evaluated("whole"), len(calls)
    with pytest.raises(KeyboardInterrupt):
        evaluated("part", dies_at=6)
    resumed = evaluated("part")
    assert len(calls) == every - 5, "what was done is not done again"
    assert without_seconds(whole.results) == without_seconds(resumed.results)
    assert_same_arrays(arrays(tmp_path / "whole"), arrays(tmp_path / "part"))


# Without a pullback


def test_a_net_without_a_pullback_meets_attacks_without_gradients_alone():
    images, labels = few()
    net = changed(numpy_cnn(), pullback=None)
    report = wca_tf.evaluate(net, images, labels, attacks="square:queries=20", epsilons=RADIUS)
    assert "attacks without gradients alone" in report["net"]["note"]
    for text in ("random_sampling:points=5", "n_pixel:generations=2:population=5"):
        assert len(wca_tf.parse_attack(text)(net, images, labels, RADIUS).images) == len(images)
    for text in ("fgsm", "adaptive", "cw", "multi_targeted", "auto_rand", "single_draw"):
        with pytest.raises(InputError, match=r"without gradients \(square, .* no pullback") as raised:
            wca_tf.parse_attack(text)(net, images, labels, RADIUS)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("net", [numpy_cnn, pytest.param(lambda: numpy_cnn(per_image), marks=pytest.mark.slow)])
def test_what_needs_a_gradient_is_refused_in_one_line_without_a_pullback(net):
    without = changed(net(), pullback=None)
    asked = {"attacks": "square:queries=2", "epsilons": RADIUS, "eot_samples": 2}
    with pytest.raises(InputError, match="the checklist expects a net with a gradient.* without a pullback") as raised:
        wca_tf.evaluate(without, *few(60), **asked, checklist=True)
    assert "\n" not in str(raised.value)
    made_of_it = adapt(without, SHAPE).with_fixed_draw(tf.constant([0, 0]))  # it no longer says that it has no gradient
    with pytest.raises(InputError, match="no pullback") as raised:
        wca_tf.parse_attack("pgd:steps=2").run(made_of_it, tf.constant(few(3)[0]), few(3)[1], RADIUS, np.arange(3), 0)
    assert "\n" not in str(raised.value)


# The checks on the probe


NET = {"deterministic": numpy_cnn, "random": lambda: numpy_cnn(per_image)}


def of_images(net, change):
    return changed(net, pullback=lambda images, seed, upstream: change(net.pullback(images, seed, upstream)))


def unseeded(net):
    return lambda images, seed: net.logits(images, np.random.randint(1 << 30))


REFUSED = {
    "another sign": (lambda net: of_images(net, lambda g: -g), "differs from finite differences by (198|199|200) %"),
    "a mean over the batch": (lambda net: of_images(net, lambda g: g / len(g)), "differs from finite differences"),
    "another scale": (lambda net: of_images(net, lambda g: 0.9 * g), "differs from finite differences by (9|10|11) %"),
    "rows for columns": (lambda net: of_images(net, lambda g: np.swapaxes(g, 1, 2)), "differs from finite"),
    "no gradient": (lambda net: of_images(net, lambda g: 0 * g), "differs from finite differences by (99|100) %"),
    "NaN": (lambda net: of_images(net, lambda g: np.nan * g), "expected a finite gradient"),
    "channels first": (lambda net: of_images(net, lambda g: np.moveaxis(g, -1, 1)), r"floats of shape \(6, 8, 8, 1\)"),
    "an error": (lambda net: of_images(net, lambda g: 1 / 0), "received ZeroDivisionError: division by zero"),
    "NaN logits": (lambda net: changed(net, logits=lambda x, s: np.nan * net.logits(x, s)), "expected finite logits"),
    "other classes": (lambda net: changed(net, num_classes=9), r"floats of shape \(6, 9\), received .*\(6, 10\)"),
    "classes": (lambda net: changed(net, logits=lambda x, s: np.argmax(net.logits(x, s), 1)), "received int64"),
    "an error in logits": (lambda net: changed(net, logits=lambda x, s: x.no), "received AttributeError"),
    "noise of its own": (lambda net: changed(net, logits=unseeded(numpy_cnn(per_image))), "ignores the seed"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_wrong_is_one_line(fault):
    make, message = REFUSED[fault]
    with pytest.raises(InputError, match=message) as raised:
        adapt(make(numpy_cnn()), SHAPE)
    assert "\n" not in str(raised.value)


def test_a_gradient_under_another_draw_is_refused():
    net = numpy_cnn(lambda images, seed: 3 * shared(images, seed))
    other = changed(net, pullback=lambda images, seed, upstream: net.pullback(images, seed + 1, upstream))
    with pytest.raises(InputError, match="under the same seed"):
        adapt(other, SHAPE)
    adapt(net, SHAPE)


@pytest.mark.parametrize("pixels", [1.0, 255.0])
def test_a_right_pullback_is_never_refused(pixels):
    """Of nets that learnt nothing, deep and saturated ones too."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        sizes, gain = [64, *[32] * rng.integers(1, 6), 10], rng.choice([0.01, 1, 3])
        kernels = [gain * rng.standard_normal((a, b)) / np.sqrt(a) for a, b in zip(sizes, sizes[1:], strict=False)]
        kernels[0] /= pixels

        def through(images, kernels=kernels):
            values = [images.reshape(len(images), -1)]
            for kernel in kernels[:-1]:
                values.append(np.maximum(values[-1] @ kernel.astype(np.float32), 0))
            return values

        def pullback(images, seed, upstream, kernels=kernels, through=through):
            for kernel, values in zip(reversed(kernels), reversed(through(images)), strict=True):
                upstream = (upstream @ kernel.T) * (values > 0)
            return upstream.reshape(images.shape)

        def logits(images, seed, kernels=kernels, through=through):
            return through(images)[-1] @ kernels[-1].astype(np.float32)

        images = (pixels * rng.random((6, *SHAPE))).astype(np.float32)
        check_pullback(wca_tf.FunctionNet(logits, pullback, 10), images)


def test_a_surrogate_of_the_gradient_is_taken_where_the_owner_says_so():
    net = numpy_cnn()
    steps = {"logits": lambda images, seed: net.logits(np.round(images * 16) / 16, seed)}
    with pytest.raises(InputError, match="say surrogate=True if it is meant to"):
        adapt(changed(net, **steps), SHAPE)
    target = adapt(changed(net, **steps, surrogate=True), SHAPE)
    assert "not compared" in target.net.describe()["note"]


def test_noise_that_ignores_the_seed_is_taken_where_the_owner_says_so():
    net = numpy_cnn(per_image)
    target = adapt(changed(net, logits=unseeded(net), reproducible=False), SHAPE)
    assert "no number can be repeated" in target.net.describe()["note"]
    images, labels = some_images()
    assert (judged(target, images, labels).hits != judged(target, images, labels).hits).any()


def test_noise_that_images_share_is_not_independent():
    def with_shared(share):  # of the deviation
        return lambda images, seed: per_image(images, seed) + share * shared(images, seed + 1)

    for noise in (shared, with_shared(1.0), with_shared(0.2)):
        with pytest.raises(InputError, match="received noise that images share"):
            adapt(numpy_cnn(noise, independent_noise=True), SHAPE)


def test_pixels_and_probabilities_are_met_as_those_of_keras():
    net, (images, labels) = numpy_cnn(), some_images()
    bytes_net = changed(
        net,
        logits=lambda x, s: np.asarray(tf.nn.softmax(net.logits(x / 255, s))),
        pullback=None,
    )
    with pytest.raises(InputError, match=r"give pixel_range=\(0, 255\)"):
        wca_tf.parse_attack("square:queries=5")(bytes_net, images, labels, RADIUS)
    report = wca_tf.evaluate(bytes_net, images, labels, attacks="square:queries=5", pixel_range=(0, 255))
    owners = np.mean(np.argmax(net.logits(images, 0), axis=1) == labels)
    assert report["clean"]["accuracy"]["value"] == pytest.approx(owners)
    assert "logarithm of the probabilities" in report["net"]["outputs"]
    scaled = changed(
        net, logits=lambda x, s: net.logits(x / 255, s), pullback=lambda x, s, u: net.pullback(x / 255, s, u) / 255
    )
    own = wca_tf.parse_attack("pgd")(adapt(scaled, SHAPE, pixel_range=(0, 255)), images, labels, RADIUS)
    assert (
        own.probability_correct.sum()
        == wca_tf.parse_attack("pgd")(net, images, labels, RADIUS).probability_correct.sum()
    )


def test_a_net_of_standardised_images_is_not_taken_for_one_of_raw_ones():
    """As the nets of PyTorch's users, whose loop has `Normalize`: with raw pixels they answer worse, not by chance."""
    net, (images, labels) = numpy_cnn(), some_images()
    mean, deviation = images.mean(), images.std()

    def logits(pixels, seed):
        return net.logits(np.clip(deviation * pixels + mean, 0, 1), seed)

    standardised = changed(net, logits=logits, pullback=None)
    with pytest.raises(InputError, match=r"put your own \(images - mean\) / std, if any, into the net, or give"):
        wca_tf.parse_attack("square:queries=5")(standardised, images, labels, RADIUS)
    wca_tf.parse_attack("square:queries=5")(net, images, labels, RADIUS)


def test_several_devices_and_options_of_keras_models_are_refused(monkeypatch):
    with pytest.raises(InputError, match=r"expected image_shape=\(H, W, channels\)"):
        adapt(numpy_cnn())
    with pytest.raises(InputError, match="no output= or training="):
        adapt(numpy_cnn(), SHAPE, training=True)
    devices = tf.config.list_logical_devices("CPU")
    with tf.distribute.MirroredStrategy([devices[0].name]).scope():  # one is enough for a net of functions
        target = adapt(numpy_cnn(), SHAPE)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: types.SimpleNamespace(num_replicas_in_sync=2))
    with pytest.raises(InputError, match="expected one device"):
        target.features(some_images()[0])


def test_a_command_takes_two_functions_of_a_module(command, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np, wca_tf\n"
        "kernel = np.random.default_rng(0).standard_normal((64, 10)).astype(np.float32)\n"
        "net = wca_tf.FunctionNet(lambda images, seed: images.reshape(-1, 64) @ kernel,\n"
        "    lambda images, seed, upstream: (upstream @ kernel.T).reshape(images.shape), 10)\n"
    )
    shared_flags = ("--dataset=digits", "--image_size=8", "--attacks=fgsm", "--epsilons=0.05", "--num_examples=40")
    done = command("evaluate", "--model=mine:net", "--pixel_range=0,1", *shared_flags, "--report_dir=r", cwd=tmp_path)
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "r" / "results.json").read_text())["net"]["class"] == "FunctionNet"


def test_functions_may_change_their_arguments_and_use_their_arrays_again():
    """TensorFlow shares its memory with the arrays that a function gets and returns."""
    net, (images, labels) = numpy_cnn(), some_images()
    buffers = {}

    def again(name, values):
        buffer = buffers.setdefault((name, values.shape), np.empty_like(values))
        buffer[:] = values
        return buffer

    def logits(images, seed):
        images -= 0.5
        return again("logits", net.logits(images + 0.5, seed))

    def pullback(images, seed, upstream):
        gradient = net.pullback(images.copy(), seed, upstream)
        images *= 0
        upstream *= 0
        return again("gradient", gradient)

    target = adapt(changed(net, logits=logits, pullback=pullback), SHAPE)
    for text in ("pgd", "apgd_ce:steps=5"):
        attack = wca_tf.parse_attack(text)
        own, plain = (attack(each, images, labels, RADIUS) for each in (target, adapt(net, SHAPE)))
        np.testing.assert_allclose(own.images, plain.images, atol=1e-6)
        np.testing.assert_array_equal(own.probability_correct, plain.probability_correct)
