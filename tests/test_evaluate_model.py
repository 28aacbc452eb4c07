"""evaluate_model on nets that are not ours: deterministic Keras nets, noise anywhere, and what cannot be used."""

import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from evaluation_nets import (
    SHAPE,
    Quantise,
    arrays,
    assert_same_arrays,
    dense_net,
    digits,
    in_and_out,
    read_strictly,
    with_layers,
    without_seconds,
)
from scipy import stats

from wca_tf.attacks import parse_attack
from wca_tf.attacks.radii import Radius
from wca_tf.core.errors import InputError
from wca_tf.data.batches import to_float
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures.registry import format_results
from wca_tf.evaluation.outcomes import load_outcome
from wca_tf.evaluation.report.sections import gradient_warnings
from wca_tf.evaluation.runner import evaluate_model
from wca_tf.nets.adapter import adapt
from wca_tf.nets.judge import ESTIMATING_DRAWS, Judgement, judge
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import GaussianLogitsTarget

CONFIG = EvaluateConfig(attacks="fgsm", epsilons="0.1", eot_samples=2, num_examples=30, batch_size=30)


def run(model, report, images=None, labels=None, classes=10, **changes):
    _, test = digits(classes)
    images = test.images[:30] if images is None else images
    labels = test.labels[: len(images)] if labels is None else labels
    return evaluate_model(model, images, labels, dataclasses.replace(CONFIG, **changes), report)


def values(results):
    """The value of each number of the clean images."""
    numbers = {
        key: number for key, number in results["clean"].items() if isinstance(number, dict) and "value" in number
    }
    return {key: number["value"] for key, number in {**numbers, **results["clean"]["n_query_accuracy"]}.items()}


# Nets on which attacks find no way


def large_logits():
    """The logits times 10: on most images the label leads by more than 17."""
    return with_layers(dense_net(), after=[keras.layers.Rescaling(10)])


def test_large_logits_mislead_cross_entropy_and_the_report_says_so(tmp_path):
    """Exact cross-entropy, which the report advises, finds what float32's misses. Hardly a gradient is zero."""
    images, shared = digits()[1].images[:60], {"num_examples": 60, "batch_size": 60, "epsilons": "0.15"}
    results = run(large_logits(), tmp_path, images, attacks="pgd,pgd:objective=ce_exact", **shared)
    pgd, exact = results["attacks"]
    assert pgd["no_useful_gradient_share"] > 0.5 and exact["no_useful_gradient_share"] < 0.05
    assert load_outcome(tmp_path / "records", "pgd", Radius(0.15, "linf")).zero_gradients.mean() < 0.05
    assert exact["expected_accuracy"]["value"] < pgd["expected_accuracy"]["value"] - 0.1
    [warning] = gradient_warnings(results)
    share = f"{100 * pgd['no_useful_gradient_share']:.1f}"
    assert warning.startswith(f"No useful gradient: pgd on {share} % of the images.")
    assert "adaptive" in warning and "objective=ce_exact" in warning
    page, card = ((tmp_path / name).read_text() for name in ("report.html", "model_card.md"))
    headline = page[page.index('id="summary"') : page.index('id="table"')]
    assert warning in headline and warning in card and warning in format_results(results).splitlines()
    assert warning in results._repr_html_()


def test_where_no_gradient_passes_the_report_names_an_attack_that_works(tmp_path):
    net = with_layers(dense_net(), [Quantise()])
    results = run(net, tmp_path, attacks="margin:steps=2,square:queries=100", epsilons="0.15")
    margin, square = results["attacks"]
    assert (margin["no_useful_gradient_share"], square["no_useful_gradient_share"]) == (1, None)
    [warning] = gradient_warnings(results)
    assert "margin:steps=2 on 100.0 % of the images" in warning and "use square" in warning
    assert square["expected_accuracy"]["value"] < margin["expected_accuracy"]["value"] - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("net", [large_logits, lambda: with_layers(dense_net(), [Quantise()])], ids=["large", "steps"])
def test_adaptive_works_where_the_report_advises_it(net, tmp_path):
    adaptive = "adaptive:steps=10:apgd_steps=2:class_steps=1:classes=1:queries=300"
    pgd, advised = run(net(), tmp_path, attacks=f"pgd,{adaptive}", epsilons="0.15")["attacks"]
    assert pgd["no_useful_gradient_share"] > 0.5
    assert advised["expected_accuracy"]["value"] < pgd["expected_accuracy"]["value"] - 0.1


# A plain Keras net


def test_a_deterministic_net_has_the_numbers_computed_by_hand(tmp_path):
    net, (_, test) = dense_net(), digits()
    results = run(net, tmp_path, attacks="fgsm,pgd:steps=3")
    images, labels = tf.constant(test.images[:30]), test.labels[:30]
    rows = arrays(tmp_path)

    def fgsm():
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = tf.reduce_sum(keras.losses.sparse_categorical_crossentropy(labels, net(images), from_logits=True))
        return tf.clip_by_value(images + np.float32(0.1) * tf.sign(tape.gradient(loss, images)), 0, 1)

    for row, perturbed in ((0, images), (1, fgsm())):
        logits = net(perturbed).numpy()
        right = logits.argmax(axis=1) == labels
        rivals = np.where(np.eye(10, dtype=bool)[labels], -np.inf, logits).max(axis=1)
        entry = [results["clean"], *results["attacks"]][row]
        assert entry["accuracy"] == entry["expected_accuracy"] == entry["noise_free_accuracy"]
        assert entry["accuracy"]["value"] == right.mean()
        assert all(number == entry["accuracy"] for number in entry["n_query_accuracy"].values())
        assert entry["probability_error"] == 0
        np.testing.assert_array_equal(rows["probability_correct"][row], right)
        np.testing.assert_array_equal(rows["correct"][row], right)
        margin = logits[np.arange(30), labels] - rivals
        np.testing.assert_allclose(rows["z_margin"][row], margin, rtol=1e-4, atol=1e-4)  # sums in another order
        change = (perturbed - images).numpy().reshape(30, -1)
        np.testing.assert_allclose(rows["linf"][row], np.abs(change).max(axis=1), atol=1e-6)
        np.testing.assert_allclose(rows["l2"][row], np.linalg.norm(change, axis=1), atol=1e-5)
        np.testing.assert_array_equal(rows["l0"][row], (change != 0).sum(axis=1))
    assert 0 < results["attacks"][0]["accuracy"]["value"] < results["clean"]["accuracy"]["value"]
    assert results["model_dir"] is None
    assert (results["dataset"], results["split"], results["training"]) == ("model", "given", None)


def test_bytes_and_floats_are_the_same_images(tmp_path):
    images = np.round(digits()[1].images[:30] * 255).astype(np.uint8)
    results = run(dense_net(), tmp_path / "bytes", images)
    others = run(dense_net(), tmp_path / "floats", to_float(tf.constant(images)).numpy())
    for key in ("clean", "attacks", "worst_case"):
        assert without_seconds(results[key]) == without_seconds(others[key])
    assert_same_arrays(arrays(tmp_path / "bytes"), arrays(tmp_path / "floats"))


def test_labels_may_be_a_list_or_of_another_whole_type(tmp_path):
    labels = digits()[1].labels[:30].astype(np.uint8)
    results = [run(dense_net(), tmp_path / str(i), labels=given) for i, given in enumerate((labels, labels.tolist()))]
    assert results[0]["clean"] == results[1]["clean"]
    assert results[0]["clean"]["accuracy"]["value"] > 0.8


def test_a_net_for_images_of_any_size(tmp_path):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    net = keras.Sequential([keras.Input((None, None, 1)), *layers])
    assert run(net, tmp_path)["num_examples"] == 30


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    """A net that Keras knows no input shape of."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(10)

    def call(self, images):
        return self.dense(self.flatten(images))


def test_a_subclassed_net(tmp_path):
    net = Subclassed()
    net(np.zeros((1, *SHAPE), np.float32))
    results = run(net, tmp_path)
    logits = net(digits()[1].images[:30]).numpy()
    assert results["clean"]["accuracy"]["value"] == (logits.argmax(axis=1) == digits()[1].labels[:30]).mean()


# Noise anywhere: a linear net of two classes with Gaussian noise on its pixels, whose P(correct) is known

WEIGHT = np.random.default_rng(5).standard_normal(64).astype(np.float32) / 8
DEVIATION = 0.5


def linear_logits(images):
    score = tf.linalg.matvec(tf.reshape(images - 0.5, [-1, 64]), WEIGHT)
    return tf.stack([score, tf.zeros_like(score)], axis=1)


def noisy_logits(images, seed):
    """The noise of each pixel of each image is its own."""
    return linear_logits(images + DEVIATION * tf.random.stateless_normal(tf.shape(images), seed))


def shared_noise_logits(images, seed):
    """One noise for all images: nothing depends on the batch."""
    return linear_logits(images + DEVIATION * tf.random.stateless_normal(images.shape[1:], seed))


LINEAR = SampledTarget(noisy_logits, noise_free_logits=linear_logits)


@pytest.fixture(scope="module")
def random_net():
    """(images, labels, P(label)): all sorts of probabilities."""
    images = np.random.default_rng(6).random((600, *SHAPE)).astype(np.float32)
    scores = linear_logits(images).numpy()[:, 0].astype(np.float64)
    positive = stats.norm.cdf(scores / (DEVIATION * np.linalg.norm(WEIGHT)))
    labels = np.random.default_rng(7).integers(0, 2, 600)
    return images, labels, np.where(labels == 0, positive, 1 - positive)


@pytest.fixture(scope="module")
def judged(random_net):
    images, labels, _ = random_net
    return judge(LINEAR, tf.constant(images), tf.constant(labels), tf.range(600), 0)


def test_probabilities_by_draws_are_those_in_closed_form(random_net, judged):
    """Each is a mean of 200 draws: 4.5 standard deviations, and one draw for the skewness at 0 and 1, hold for 600."""
    _, _, probability = random_net
    assert probability.min() < 0.2 and probability.max() > 0.8  # or the test says little
    deviation = np.sqrt(probability * (1 - probability) / ESTIMATING_DRAWS)
    difference = np.abs(judged.probability_correct - probability)
    assert (difference < 4.5 * deviation + 1 / ESTIMATING_DRAWS).all()
    # and together, as a mean of 120,000 draws
    assert abs((judged.probability_correct - probability).mean()) < 4.5 * np.sqrt((deviation**2).sum()) / 600
    assert judged.draws == ESTIMATING_DRAWS


def test_probabilities_by_draws_are_whole_numbers_of_draws_and_in_the_unit_range(judged):
    """Sums of parts in float32 are not: 1.0000001 is above its own interval."""
    assert judged.probability_correct.max() <= 1
    counts = judged.probability_correct * ESTIMATING_DRAWS
    np.testing.assert_allclose(counts, np.round(counts), rtol=0, atol=1e-9)


def test_their_intervals_cover_at_about_the_nominal_rate(random_net, judged):
    """600 intervals of 95 %: three standard deviations are 0.027. Wilson's are never empty, at 0 and 1 neither."""
    _, _, probability = random_net
    covered = np.abs(judged.probability_correct - probability) <= judged.probability_error
    assert 0.92 <= covered.mean() <= 0.985
    assert (judged.probability_error > 0).all() and judged.probability_error.max() < 0.07


@pytest.mark.parametrize("target", ["random", "gaussian"])
def test_equal_logits_are_an_error_whatever_the_label(target):
    """Such as those of a net whose features have all died."""

    def dead(images, seed=None):
        return tf.zeros([len(images), 3])

    net = SampledTarget(dead, noise_free_logits=dead)
    if target == "gaussian":
        net = GaussianLogitsTarget(lambda images: images[:, 0, 0], dead, tf.zeros([3, 1]))
    found = judge(net, tf.zeros([3, 1, 1, 1]), tf.range(3), tf.range(3), 0)
    for numbers in (found.correct, found.noise_free_correct, found.probability_correct):
        np.testing.assert_array_equal(numbers, 0)


def test_one_draw_is_one_of_the_draws(random_net, judged):
    _, _, probability = random_net
    deviation = math.sqrt((probability * (1 - probability)).sum())
    assert abs(judged.correct.sum() - probability.sum()) < 4.5 * deviation
    assert not judged.correct[judged.probability_correct == 0].any()
    assert judged.correct[judged.probability_correct == 1].all()


def test_the_z_margin_is_the_margins_mean_over_its_deviation(random_net, judged):
    images, labels, _ = random_net
    scores = linear_logits(images).numpy()[:, 0] * np.where(labels == 0, 1, -1)
    expected = scores / (DEVIATION * np.linalg.norm(WEIGHT))
    # The mean of 200 draws is 1/√200 = 0.07 off, its deviation 5 %; five of those
    np.testing.assert_allclose(judged.z_margin, expected, atol=0.36, rtol=0.25)


def test_the_noise_free_net_is_judged_where_it_is_known(random_net, judged):
    images, labels, _ = random_net
    noise_free = linear_logits(images).numpy().argmax(axis=1) == labels
    np.testing.assert_array_equal(judged.noise_free_correct, noise_free)
    unknown = judge(SampledTarget(noisy_logits), tf.constant(images), tf.constant(labels), tf.range(600), 0)
    assert np.isnan(unknown.noise_free_correct).all()
    np.testing.assert_array_equal(unknown.probability_correct, judged.probability_correct)
    assert unknown.numbers()["noise_free_accuracy"] is None
    assert judged.numbers()["noise_free_accuracy"]["value"] == noise_free.mean()


def test_a_net_that_happens_to_have_no_noise_has_its_plain_margin():
    """As its class says. Its variance is then rounding, whose square root is no deviation to divide by."""
    _, test = digits()
    images, labels = tf.constant(test.images[:30]), tf.constant(test.labels[:30])
    net = dense_net()  # outside the target, whose graph must not build it
    received = judge(SampledTarget(lambda images, seed: net(images)), images, labels, tf.range(30), 0)
    expected = judge(adapt(net), images, labels, tf.range(30), 0)
    np.testing.assert_array_equal(received.probability_correct, expected.probability_correct)
    np.testing.assert_allclose(received.z_margin, expected.z_margin, rtol=1e-3)


@pytest.mark.parametrize("queries", [1, 10, 100])
def test_the_estimate_of_n_queries_has_no_bias(queries):
    """Over 20,000 images. The plain k/J to the n, for comparison, is off by more than the tolerance for n > 1."""
    rng = np.random.default_rng(8)
    probability = rng.uniform(0.9, 1.0, 20_000)
    hits = rng.random((20_000, ESTIMATING_DRAWS)) < probability[:, np.newaxis]
    none = np.zeros(20_000)
    estimate = Judgement(none, none, hits.mean(axis=1), none, none, hits, none).n_query_probability(queries)
    error = estimate - probability**queries
    tolerance = 4.5 * error.std() / math.sqrt(len(error))
    assert abs(error.mean()) < tolerance
    assert (estimate >= 0).all() and (estimate <= 1).all()
    biased = abs((hits.mean(axis=1) ** queries - probability**queries).mean())
    assert biased > tolerance or queries == 1
    exact = Judgement(none, none, probability, none, none, hits[:, :0], none).n_query_probability(queries)
    np.testing.assert_array_equal(exact, probability**queries)


def test_n_queries_of_a_net_are_its_probabilities_to_the_n(random_net, judged):
    """The mean over 600 images; each image's estimate is at most 1, its deviation at most √(p^n(1 − p^n))."""
    _, _, probability = random_net
    for queries in (1, 10, 100):
        expected = probability**queries
        tolerance = 4.5 * math.sqrt((expected * (1 - expected)).sum()) / 600
        value = judged.numbers()["n_query_accuracy"][str(queries)]["value"]
        assert abs(value - expected.mean()) < tolerance + 1e-6


@pytest.fixture(scope="module")
def random_report(random_net, tmp_path_factory):
    images, labels, _ = random_net
    directory = tmp_path_factory.mktemp("random")
    return run(LINEAR, directory, images, labels, attacks="fgsm,pgd:steps=2"), directory


def test_noise_of_a_seed_repeats_to_the_bit_and_another_seed_differs(random_net, random_report, tmp_path):
    images, labels, _ = random_net
    results, directory = random_report
    again = run(LINEAR, tmp_path / "again", images, labels, attacks="fgsm,pgd:steps=2")
    assert without_seconds(again) == without_seconds(results)
    assert_same_arrays(arrays(tmp_path / "again"), arrays(directory))
    run(LINEAR, tmp_path / "other", images, labels, attacks="fgsm", seed=1)
    other = arrays(tmp_path / "other")
    assert not np.array_equal(other["probability_correct"][0], arrays(directory)["probability_correct"][0])


def test_results_of_noise_anywhere_are_valid_json_with_its_errors(random_report):
    results, directory = random_report
    assert read_strictly(directory / "results.json") == results
    for entry in [results["clean"], *results["attacks"]]:
        assert 0 < entry["probability_error"] < 0.07
        assert entry["noise_free_accuracy"]["value"] >= 0
    assert results["attacks"][0]["expected_accuracy"]["value"] < results["clean"]["expected_accuracy"]["value"]
    assert results["attacks"][0]["no_useful_gradient_share"] == 0


def test_noise_of_a_seed_alone_gives_the_same_for_any_batch_size(random_net, tmp_path):
    images, labels, _ = random_net
    target = SampledTarget(shared_noise_logits)
    for size in (30, 7):
        run(target, tmp_path / str(size), images, labels, attacks="fgsm,pgd:steps=2", batch_size=size)
    one, other = (arrays(tmp_path / str(size)) for size in (30, 7))
    for name in ("correct", "probability_correct", "linf", "l0"):
        np.testing.assert_array_equal(one[name], other[name])
    np.testing.assert_allclose(one["z_margin"], other["z_margin"], rtol=1e-3, atol=1e-4)  # sums in another order


def test_intervals_of_clean_images_allow_for_noise_that_they_share(tmp_path):
    """Each draw is right here. A draw that is wrong for all images at once may not have been seen."""
    labels = np.arange(20) % 3
    images = np.tile(labels[:, np.newaxis, np.newaxis, np.newaxis] / 2, (1, 2, 2, 1)).astype(np.float32)
    levels = tf.constant([0.0, 0.5, 1.0])

    def logits(images, seed):
        return -10 * tf.abs(images[:, 0, 0, :1] - levels) + 0.1 * tf.random.stateless_normal([3], seed)

    results = run(SampledTarget(logits), tmp_path, images, labels, attacks="fgsm", epsilons="0.001")
    clean, attacked = (entry["n_query_accuracy"]["100"] for entry in (results["clean"], results["attacks"][0]))
    assert clean["value"] == attacked["value"] == 1
    assert attacked["low"] < clean["low"] < 0.5  # images that were attacked together share the luck of the attack too


@keras.saving.register_keras_serializable("tests")
class AlwaysDropout(keras.layers.Dropout):
    def call(self, inputs, training=None):
        return super().call(inputs, training=True)


def test_dropout_that_stays_on(tmp_path):
    net = with_layers(dense_net(), [AlwaysDropout(0.3)])
    assert isinstance(adapt(net), SampledTarget)
    results = run(net, tmp_path, attacks="fgsm,square:queries=3,pgd:steps=2:targeted=true")
    clean = values(results)
    assert 0.3 < clean["expected_accuracy"] < 0.99
    assert clean["1"] == clean["expected_accuracy"] > clean["10"] > clean["100"]
    assert results["clean"]["noise_free_accuracy"] is None
    assert results["attacks"][0]["expected_accuracy"]["value"] < clean["expected_accuracy"]
    assert np.isnan(arrays(tmp_path)["noise_free_correct"]).all()
    assert [attack["no_useful_gradient_share"] is None for attack in results["attacks"]] == [False, True, False]


def test_targeted_attacks_say_how_often_they_reach_their_class(tmp_path):
    """On a linear net of two classes the wanted class is the other one: its probability is one minus P(correct)."""
    noise = 0.3 * np.eye(2, dtype=np.float32)
    target = GaussianLogitsTarget(lambda images: images, linear_logits, tf.constant(noise))
    images = np.random.default_rng(9).random((30, *SHAPE)).astype(np.float32)
    labels = linear_logits(images).numpy().argmax(axis=1)
    results = run(target, tmp_path, images, labels, attacks="pgd:targeted=true,pgd")
    targeted, untargeted = results["attacks"]
    assert math.isclose(targeted["target_rate"]["value"], 1 - targeted["expected_accuracy"]["value"], abs_tol=1e-6)
    assert "target_rate" not in untargeted
    assert targeted["config"]["targeted"] is True


# What cannot be used


def two_classes():
    return GaussianLogitsTarget(lambda images: images, linear_logits, tf.zeros([2, 1]))


def some_images():
    return digits()[1].images[:30]


def some_labels():
    return digits()[1].labels[:30]


def other_channels():
    return keras.Sequential([keras.Input((*SHAPE[:2], 3)), keras.layers.Flatten(), keras.layers.Dense(10)])


REFUSED = {
    "label too large": ({"labels": lambda: some_labels() + 1}, "label"),
    "label below zero": ({"labels": lambda: some_labels() - 1}, "label"),
    "label too large for noise anywhere": ({"model": lambda: LINEAR}, "labels? from 0 to 1"),
    "labels that are no whole numbers": ({"labels": lambda: some_labels() + 0.5}, "whole numbers"),
    "labels as text": ({"labels": lambda: some_labels().astype(str)}, "whole numbers"),
    "a label for all images": ({"labels": 3}, "labels"),
    "labels in rows of different lengths": ({"labels": [[1, 2], *([[3]] * 29)]}, "different lengths"),
    "fewer labels": ({"labels": lambda: some_labels()[:7]}, "label for each"),
    "two inputs": ({"model": lambda: in_and_out(2, 1)}, "one input, received one with 2"),
    "two outputs": ({"model": lambda: in_and_out(1, 2)}, "one output, received one with 2"),
    "an input of bytes": ({"model": lambda: with_layers(dense_net(), dtype="uint8")}, "takes uint8"),
    "a net of other channels": ({"model": other_channels}, r"takes images \[B, H, W, channels\].*received one that"),
    "images without a row": ({"images": lambda: some_images()[:, :0]}, "with pixels"),
    "a radius that overflows": ({"attacks": "pgd:norm=l2", "epsilons": "1e30"}, "at most 10,000"),
    "no images": ({"images": lambda: some_images()[:0], "labels": lambda: some_labels()[:0]}, "with pixels"),
    "flat images": ({"images": lambda: some_images().reshape(30, -1)}, r"\[N, H, W, channels\]"),
    "images up to 2": ({"images": lambda: some_images() * 2}, r"\[0, 1\]"),
    "images that are NaN": ({"images": lambda: np.full_like(some_images(), np.nan)}, "NaN"),
    "images of another size": ({"images": lambda: np.zeros((30, 9, 9, 1), np.float32)}, "9, 9, 1"),
    "dlr of two classes": (
        {"model": two_classes, "labels": lambda: some_labels() % 2, "attacks": "fgsm,apgd_dlr:steps=2"},
        "dlr expects 3 classes or more, received 2",
    ),
    "z_margin of noise anywhere": (
        {"model": lambda: LINEAR, "labels": lambda: some_labels() % 2, "attacks": "fgsm,z_margin"},
        "z_margin expects",
    ),
    "transfer from nowhere": ({"attacks": "fgsm,transfer:source=/nowhere"}, "/nowhere/model.keras"),
    "a population of three": ({"attacks": "fgsm,n_pixel:population=3"}, "population"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_used_is_one_line_and_nothing_is_written(tmp_path, what):
    given, message = REFUSED[what]
    arguments = {name: value() if callable(value) else value for name, value in given.items()}
    model = arguments.pop("model", None)
    with pytest.raises(InputError, match=message) as raised:
        run(dense_net() if model is None else model, tmp_path / "report", **{"images": some_images(), **arguments})
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "report").exists()


def test_all_images_of_one_class_of_a_random_net_can_be_attacked_towards_another(tmp_path):
    """Which classes there are is the net's to say, not the labels'."""
    images, labels = np.full((4, *SHAPE), 0.5, np.float32), np.zeros(4, int)
    results = run(LINEAR, tmp_path, images, labels, attacks="pgd:steps=2:targeted=true")
    assert results["attacks"][0]["target_rate"]["value"] > 0.5


def test_a_targeted_attack_without_targets_is_an_input_error():
    attack = parse_attack("pgd:targeted=true")
    images, labels = tf.constant(some_images()[:2]), some_labels()[:2]
    with pytest.raises(InputError, match="targets"):
        attack(dense_net(), images, labels)
    with pytest.raises(InputError, match="targets"):
        parse_attack("pgd")(dense_net(), images, labels, targets=1 - labels)


def test_trained_nets_are_what_these_tests_take_them_for():
    """The nets of evaluation_nets.py are good enough to be attacked."""
    for classes in (2, 4, 10):
        _, test = digits(classes)
        assert (dense_net(classes)(test.images).numpy().argmax(axis=1) == test.labels).mean() > 0.85
