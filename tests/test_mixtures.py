"""Nets that answer by one of a few nets: exact numbers against enumeration, attacks on them, and random ensembles."""

import itertools
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from attack_nets import (
    EPSILON,
    NORMS,
    PIXELS,
    ascent_direction,
    batch_of,
    build_attack,
    linear_target,
    normal,
    random_images,
    run,
    tanh_target,
)
from evaluation_nets import arrays, assert_same_arrays, without_seconds
from framework_nets import imported, keras_cnn, numpy_cnn, per_image
from kinds_of_nets import dense, some_images

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import wca_tf
from benchmarks import mixtures
from wca_tf.attacks.gradients import expected_gradient, score_images
from wca_tf.core.errors import InputError
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.defences.random_ensemble.net import RandomEnsembleNet, TrainingOfEachNet
from wca_tf.evaluation import trials
from wca_tf.evaluation.identity import digest_of
from wca_tf.evaluation.measures.noise_off import twin_of
from wca_tf.nets.adapter import adapt, adapted
from wca_tf.nets.judge import judge
from wca_tf.nets.mixture_target import MixtureTarget
from wca_tf.nets.passes import counting, passes_so_far
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import GaussianLogitsTarget

WEIGHTS = (0.5, 0.3, 0.2)
IMAGES = random_images(12, seed=5)
LABELS = np.arange(12) % 4
INDICES = np.arange(12)


def members(scale=0.0):
    """Three nets of tanh with four classes; the logits of the second are a hundredth of the others'."""
    return [tanh_target(20, scale=scale), hundredth(tanh_target(40, scale=scale)), tanh_target(60, scale=scale)]


def hundredth(target):
    return target._with(lambda features: target.noise_free_logits(features) / 100, lambda a: a / 100, target.has_noise)


def mixture(scale=0.0):
    return MixtureTarget(members(scale), WEIGHTS)


def right(target, images=IMAGES, labels=LABELS):
    """Whether a net without noise gives the label, [N], by NumPy."""
    logits = target.noise_free_logits(target.features(images)).numpy()
    return np.argmax(logits, axis=1) == labels


def judged(target, images=IMAGES, labels=LABELS, seed=0):
    return judge(target, images, tf.constant(labels), INDICES[: len(labels)], seed)


# Numbers against enumeration


def test_p_correct_is_the_weight_of_the_nets_that_are_right():
    by_hand = sum(weight * right(net) for weight, net in zip(WEIGHTS, members(), strict=True))
    judgement = judged(mixture())
    np.testing.assert_allclose(judgement.probability_correct, by_hand, rtol=1e-12)
    assert judgement.draws == 0 and not judgement.probability_error.any()
    assert len(np.unique(by_hand)) > 2
    score = score_images(mixture(), mixture().features(IMAGES), batch_of(IMAGES, LABELS), make_seed(0), 7)
    np.testing.assert_allclose(score.p_correct, by_hand, atol=1e-6)


def test_p_correct_of_nets_with_gaussian_heads_is_the_mean_of_theirs():
    nets = members(scale=0.5)
    own = [judged(net).probability_correct for net in nets]
    by_hand = np.average(own, axis=0, weights=WEIGHTS)
    np.testing.assert_allclose(judged(MixtureTarget(nets, WEIGHTS)).probability_correct, by_hand, rtol=1e-12)


def test_one_answer_is_that_of_a_net_picked_with_its_weight():
    target, many = mixture(), tf.range(20_000, dtype=tf.int64)
    picked = tf.function(target.pick, jit_compile=False)(make_seed(0), many)
    shares = np.bincount(picked, minlength=3) / len(many)
    np.testing.assert_allclose(shares, WEIGHTS, atol=4 * 0.5 / np.sqrt(len(many)))
    correct = np.mean([judged(target, seed=seed).correct for seed in range(25)], axis=0)
    np.testing.assert_allclose(correct, judged(target).probability_correct, atol=4 * 0.5 / np.sqrt(25))


@pytest.mark.parametrize("objective", ["ce", "ce_exact", "expected_margin", "margin", "dlr", "bounded"])
def test_an_expected_gradient_is_the_weighted_sum_of_all_nets(objective):
    batch, start = batch_of(IMAGES, LABELS), random_images(12, seed=6)
    options = {"objective": objective, "draws": 5, "start": start}
    found = expected_gradient(mixture(), IMAGES, batch, make_seed(0), **options)
    alone = [expected_gradient(net, IMAGES, batch, make_seed(0), **options) for net in members()]
    np.testing.assert_allclose(found.values, np.average([each.values for each in alone], 0, WEIGHTS), rtol=1e-5)
    by_hand = np.average([each.gradient for each in alone], 0, WEIGHTS)
    np.testing.assert_allclose(found.gradient, by_hand, rtol=1e-4, atol=1e-7)


def test_the_gradient_of_cross_entropy_is_that_of_the_sum_written_out():
    with tf.GradientTape() as tape:
        tape.watch(IMAGES)
        losses = [
            weight * tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, net.noise_free_logits(net.features(IMAGES)))
            for weight, net in zip(WEIGHTS, members(), strict=True)
        ]
        total = tf.add_n(losses)
    found = expected_gradient(mixture(), IMAGES, batch_of(IMAGES, LABELS), make_seed(9), objective="ce", draws=1)
    np.testing.assert_allclose(found.values, total, rtol=1e-5)
    np.testing.assert_allclose(found.gradient, tape.gradient(total, IMAGES), rtol=1e-4, atol=1e-6)


def test_a_net_of_weight_one_in_a_million_counts():
    nets = members()
    target = MixtureTarget(nets[:2], [1 - 1e-6, 1e-6])
    by_hand = (1 - 1e-6) * right(nets[0]) + 1e-6 * right(nets[1])
    np.testing.assert_allclose(judged(target).probability_correct, by_hand, rtol=0, atol=1e-15)
    score = score_images(target, target.features(IMAGES), batch_of(IMAGES, LABELS), make_seed(0), 50).p_correct.numpy()
    assert np.all(score[by_hand == 1] > score[by_hand == 1 - 1e-6].max(initial=0))
    assert len(set(by_hand)) >= 3


def test_the_order_of_the_nets_does_not_matter():
    nets, numbers = members(0.3), judged(mixture(0.3))
    for order in ((2, 0, 1), (1, 0, 2)):
        other = MixtureTarget([nets[i] for i in order], [WEIGHTS[i] for i in order])
        np.testing.assert_array_equal(judged(other).probability_correct, numbers.probability_correct)
        found = expected_gradient(other, IMAGES, batch_of(IMAGES, LABELS), make_seed(0), objective="ce", draws=8)
        same = expected_gradient(mixture(0.3), IMAGES, batch_of(IMAGES, LABELS), make_seed(0), objective="ce", draws=8)
        np.testing.assert_allclose(found.gradient, same.gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_equal_nets_are_one_net(scale):
    net, many = tanh_target(scale=scale), MixtureTarget([tanh_target(scale=scale)] * 5, [0.1, 0.3, 0.2, 0.3, 0.1])
    np.testing.assert_array_equal(judged(many).probability_correct, judged(net).probability_correct)
    found, own = (
        expected_gradient(each, IMAGES, batch_of(IMAGES, LABELS), make_seed(0), objective="ce", draws=8)
        for each in (many, net)
    )
    np.testing.assert_allclose(found.gradient, own.gradient, rtol=1e-4, atol=1e-7)


SLOW = ("apgd_ce:steps=10", "square:queries=40", "cw:steps=20:searches=2", "n_pixel:generations=3:population=8")


@pytest.mark.parametrize(
    ("text", "scale"),
    [
        ("pgd", 0.0),
        pytest.param("pgd", 0.4, marks=pytest.mark.slow),
        pytest.param("bounded", 0.0, marks=pytest.mark.slow),  # with noise, the classes to aim at are ranked by draws
        *(pytest.param(*each, marks=pytest.mark.slow) for each in itertools.product(SLOW, (0.0, 0.4))),
    ],
)
def test_a_mixture_of_one_net_is_that_net_to_the_bit(text, scale):
    one, attack = MixtureTarget([tanh_target(scale=scale)], [1.0]), build_attack(text, EPSILON)
    found, own = (run(attack, target, IMAGES, LABELS) for target in (one, tanh_target(scale=scale)))
    np.testing.assert_array_equal(found, own)
    np.testing.assert_array_equal(
        judged(one, found).probability_correct, judged(tanh_target(scale=scale), own).probability_correct
    )


def test_a_mixture_stands_for_its_nets_inside_another():
    inner = MixtureTarget(members()[:2], [0.25, 0.75])
    outer = MixtureTarget([inner, members()[2]], [0.4, 0.6])
    np.testing.assert_allclose(outer.weights, [0.1, 0.3, 0.6])
    by_hand = np.average([right(net) for net in members()], axis=0, weights=[0.1, 0.3, 0.6])
    np.testing.assert_allclose(judged(outer).probability_correct, by_hand)


def test_a_known_draw_is_one_of_the_nets_and_costs_a_pass_of_each():
    fixed = mixture().with_fixed_draw(make_seed(3))
    logits = fixed.logits(IMAGES, make_seed(0), 2, tf.range(12, dtype=tf.int64)).numpy()
    np.testing.assert_array_equal(logits[0], logits[1])
    every = np.array([net.noise_free_logits(net.features(IMAGES)) for net in members()])
    assert np.all(np.any(np.all(np.isclose(logits[0], every), axis=2), axis=0))
    assert twin_of(mixture()) is None, "no net without its noise is known"
    alike = MixtureTarget([tanh_target()] * 2, [0.5, 0.5]).averaged(3).logits(IMAGES, make_seed(0), 1, tf.range(12))
    np.testing.assert_allclose(alike[0], tanh_target().noise_free_logits(tanh_target().features(IMAGES)), rtol=1e-5)
    before = passes_so_far()
    tf.function(counting(lambda images: mixture().logits(mixture().features(images), make_seed(0), 9)))(IMAGES)
    assert passes_so_far().since(before) == (3 * len(IMAGES), 0)


# Optima


def linear_case(name):
    """A net of fault 15 as a mixture, its images and the optimum."""
    case = mixtures.CASES[name](name)
    pairs = zip(case.members.weights, case.members.biases, strict=True)
    nets = [linear_target(weights, bias=tf.constant(biases, tf.float32)) for weights, biases in pairs]
    return case, MixtureTarget(nets, [1 / len(nets)] * len(nets)), mixtures.optimum(case.members)


FAULT_15 = ("2 members, 30:1, C = 2", "4 members, 27:9:3:1, C = 2", "2 members, 4:1, C = 2", "2 members, 1:1, C = 2")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("2 members, 30:1, C = 2", "pgd:objective=bounded:steps=40:random_start=false"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in itertools.product(FAULT_15, ("bounded", "adaptive"))),
        *(pytest.param("2 members, 30:1, C = 3", text, marks=pytest.mark.slow) for text in ("bounded", "adaptive")),
        pytest.param("8 members, 128:1, C = 2", "adaptive", marks=pytest.mark.slow),
    ],
)
def test_an_attack_on_a_bounded_objective_comes_to_the_optimum_of_linear_nets(name, text):
    case, target, least = linear_case(name)
    found = wca_tf.parse_attack(text).run(target, case.pixels, case.labels, mixtures.EPSILON, np.arange(20), 0).images
    left = case.members.probability_correct(found)
    assert np.all(left >= least - 1e-9)  # no attack beats the linear programs
    assert left.mean() <= least.mean() + 0.01
    own = judge(target, found, tf.constant(case.labels), np.arange(20), 0).probability_correct
    np.testing.assert_allclose(own, left, rtol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_arc_on_one_linear_net_errs_wherever_the_ball_has_an_error(norm):
    """Theorem of ARC's authors for linear nets: it is consistent."""
    weights, images = normal(PIXELS, 2, seed=7), random_images(12, low=0.3, high=0.7)
    target = linear_target(weights)
    labels = np.argmax(np.reshape(images, (12, -1)) @ weights, axis=1)
    direction = ascent_direction(weights, labels).reshape(12, -1)
    dual = np.abs(direction).sum(axis=1) if norm == "linf" else np.linalg.norm(direction, axis=1)
    margin = -np.sum(direction * (np.reshape(images, (12, -1))), axis=1)
    epsilon = float(np.median(margin / dual))
    found = run(build_attack(f"arc:norm={norm}:steps=5", epsilon), target, images, labels)
    fooled = np.argmax(np.reshape(found, (12, -1)) @ weights, axis=1) != labels
    np.testing.assert_array_equal(fooled, margin / dual < epsilon)
    assert fooled.any() and not fooled.all()


@pytest.mark.slow
def test_arc_finds_what_pgd_on_the_mean_loss_does_not():
    """On linear nets of one scale; what ARC keeps is never better for the defender than the clean image."""
    case, target, least = linear_case("4 members, 27:9:3:1, C = 2")
    arguments = (target, case.pixels, case.labels, mixtures.EPSILON, np.arange(20), 0)
    arc, pgd = (
        case.members.probability_correct(wca_tf.parse_attack(text).run(*arguments).images)
        for text in ("arc:steps=10", "pgd:steps=10")
    )
    assert np.all(arc >= least - 1e-9) and np.all(arc <= 1)
    assert arc.mean() < pgd.mean() - 0.2


def test_arc_refuses_a_net_with_noise_anywhere_in_one_line():
    with pytest.raises(InputError, match="arc expects a net that picks one of a few nets.*bounded") as raised:
        run(build_attack("arc", EPSILON), mixture().sampled(), IMAGES, LABELS)
    assert "\n" not in str(raised.value)


# MixtureNet


def few(count=30):
    images, labels = some_images()
    return images[:count], labels[:count]


@pytest.mark.parametrize(
    ("nets", "weights", "message"),
    [
        (lambda: [], None, "one net or more in a mixture, received none"),
        (lambda: [dense()] * 33, None, "at most 32 nets in a mixture, received 33"),
        (lambda: [dense()] * 2, [1.0], "a weight for each of 2 nets, received 1"),
        (lambda: [dense()] * 2, [1.0, 0.0], "weights above 0"),
        (lambda: [dense()] * 2, [1.5, -0.5], "weights above 0"),
        (lambda: [dense()] * 2, [np.nan, 1.0], "weights above 0"),
        (lambda: [dense()] * 2, ["a", 1.0], "weights above 0"),
        (lambda: [dense()] * 2, [0.5, 0.4], "weights with sum 1, received a sum of 0.9"),
        (lambda: [dense()] * 2, [0.5, 0.50000101], r"a sum of 1\.00000101"),
        (lambda: [dense()], 1.0, "a flat list of weights, one for each net, received float"),
        (lambda: [dense()] * 2, (each for each in (0.5, 0.5)), "a flat list of weights, .* received generator"),
        (lambda: [dense()] * 2, [[0.5], [0.5, 0.5]], "a flat list of weights, .* received list"),
        (lambda: dense(), None, "a list of nets, received Sequential"),
        (lambda: [dense(), numpy_cnn(per_image)], None, "members of a mixture that are deterministic.* as number 1"),
        (lambda: [dense(), lambda x: tf.reshape(x, [len(x), 64])[:, :3] - 9.0], None, r"the same classes, .*\[3, 10\]"),
        (lambda: [dense(), 3], None, "a Keras 3 model, a function of images or a target, received builtins.int"),
    ],
)
def test_what_is_no_mixture_is_refused_in_one_line(nets, weights, message):
    with pytest.raises(InputError, match=message) as raised:
        adapt(wca_tf.MixtureNet(nets(), weights), (8, 8, 1))
    assert "\n" not in str(raised.value)


def test_nets_of_several_frameworks_are_one_mixture_and_attacks_trace_once():
    images, labels = few()
    net = wca_tf.MixtureNet([dense(), keras_cnn()], [0.7, 0.3])
    assert adapted(net, (8, 8, 1)) is adapted(net, (8, 8, 1))
    every = [wca_tf.parse_attack("fgsm")(each, images, labels, 0.0).probability_correct for each in net.nets]
    mixed = wca_tf.parse_attack("fgsm")(net, images, labels, 0.0)
    np.testing.assert_allclose(mixed.probability_correct, np.average(every, axis=0, weights=net.weights))
    foreign = wca_tf.MixtureNet([dense(), numpy_cnn()], [0.7, 0.3])
    found, own = (wca_tf.parse_attack("fgsm")(each, images, labels, 0.05) for each in (foreign, net))
    assert np.mean(np.abs(found.images - own.images) > 1e-4) < 0.01
    without = wca_tf.MixtureNet([dense(), wca_tf.FunctionNet(numpy_cnn().logits, None, 10)])
    with pytest.raises(InputError, match="no pullback") as raised:
        wca_tf.parse_attack("fgsm")(without, images, labels, 0.05)
    assert "\n" not in str(raised.value)


def test_a_pixel_range_is_for_all_nets_that_do_not_know_theirs():
    images, labels = few()
    wide = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Rescaling(1 / 255), dense()])
    plain = judged_few(adapt(dense()), images, labels)
    for nets, options in (
        ([wide, wide], {"pixel_range": (0, 255)}),
        ([adapt(wide, pixel_range=(0, 255)), dense()], {}),
    ):
        target = adapt(wca_tf.MixtureNet(nets), (8, 8, 1), **options)
        np.testing.assert_array_equal(judged_few(target, images, labels), plain)
    with pytest.raises(InputError, match="net 0 of the mixture: .*pixel_range"):
        wca_tf.evaluate(wca_tf.MixtureNet([wide, wide]), *some_images(), attacks="fgsm")
    with pytest.raises(InputError, match="no pixel_range for nets that know their pixels"):
        adapt(wca_tf.MixtureNet([adapt(dense())] * 2), (8, 8, 1), pixel_range=(0, 255))


def judged_few(target, images, labels):
    return judge(target, tf.constant(images), tf.constant(labels), np.arange(len(labels)), 0).probability_correct


def test_an_evaluation_has_exact_numbers_and_belongs_to_nets_and_weights(tmp_path):
    images, labels = few()
    asked = {"attacks": "fgsm", "epsilons": 0.05, "report_dir": tmp_path, "name": "mixture"}
    net = wca_tf.MixtureNet([dense(), keras_cnn()], [0.7, 0.3])
    report = wca_tf.evaluate(net, images, labels, **asked)
    by_hand = 0.7 * keras_right(dense(), images, labels) + 0.3 * keras_right(keras_cnn(), images, labels)
    assert report["clean"]["expected_accuracy"]["value"] == pytest.approx(by_hand.mean())
    assert report["clean"]["n_query_accuracy"]["10"]["value"] == pytest.approx(np.mean(by_hand**10))
    assert report["clean"]["noise_free_accuracy"] is None and "noise_off" not in report.results
    assert "one of 2 nets, with probabilities 0.7, 0.3" in report["net"]["note"]
    assert report["attacks"][0]["passes"] == {"forward": 2.0, "backward": 2.0}
    rows = {row["key"]: row["number"]["value"] for row in report["conventions"][0]["rows"]}
    assert rows["lowest_of_20"] <= rows["expected"] and "queries" in rows
    again = wca_tf.evaluate(wca_tf.MixtureNet([dense(), keras_cnn()], [0.7, 0.3]), images, labels, **asked)
    assert without_seconds(again.results) == without_seconds(report.results)
    with pytest.raises(InputError, match="of another model"):
        wca_tf.evaluate(wca_tf.MixtureNet([dense(), keras_cnn()], [0.6, 0.4]), images, labels, **asked)


def identity_of(model):
    return digest_of(model, adapt(model, (8, 8, 1)))


def of_torch(factor=1.0):
    torch = imported("torch")
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    with torch.no_grad():
        net[1].weight.copy_(factor * torch.linspace(-1, 1, 640).reshape(10, 64))
        net[1].bias.zero_()
    return net


def test_a_mixture_with_targets_belongs_to_all_that_is_known_of_it():
    by_hand = GaussianLogitsTarget(dense(), tf.identity, tf.zeros([10, 1]))  # of which nothing is known
    for first in (adapt(dense()), by_hand):
        own = identity_of(wca_tf.MixtureNet([first, dense()], [0.5, 0.5]))
        others = [
            wca_tf.MixtureNet([first, dense()], [0.9, 0.1]),
            wca_tf.MixtureNet([first, dense(), dense()]),
            wca_tf.MixtureNet([first, keras_cnn()]),
            wca_tf.MixtureNet([adapt(keras_cnn()), dense()]),
            wca_tf.MixtureNet([adapt(dense(), pixel_range=(0, 255)), dense()]),
            wca_tf.MixtureNet([adapt(dense(), outputs="logits"), dense()]),
        ]
        assert len({own, *map(identity_of, others)} - {None}) == 7
        assert identity_of(wca_tf.MixtureNet([first, dense()])) == own, "the same at every call"
    mixed = adapt(wca_tf.MixtureNet([adapt(dense()), keras_cnn()], [0.5, 0.5]), (8, 8, 1))
    other = adapt(wca_tf.MixtureNet([adapt(dense()), keras_cnn()], [0.6, 0.4]), (8, 8, 1))
    assert len({identity_of(mixed), identity_of(other), None}) == 3, "given as a target itself"
    assert identity_of(adapt(dense()).averaged(2)) is None, "another net than the one it was made from"


@pytest.mark.parametrize("build", [dense, numpy_cnn, of_torch, lambda: lambda images: dense()(images)])
def test_a_target_with_another_pixel_range_is_another_net(build):
    net = build()
    ranges = [adapt(net, (8, 8, 1), pixel_range=each) for each in ((0, 1), (-1, 1), (0, 1))]
    one, other, again = map(identity_of, ranges)
    assert one == again != other and one and other


def test_a_target_of_pytorch_belongs_to_its_weights():
    target, same, other = (adapt(of_torch(factor), (8, 8, 1)) for factor in (1.0, 1.0, -1.0))
    assert identity_of(target) == identity_of(same) != identity_of(other)


def test_a_mixture_of_one_mixture_has_its_numbers_and_an_identity():
    images, labels = few()
    asked = {"attacks": "fgsm", "epsilons": 0.05}
    inner = wca_tf.MixtureNet([dense(), keras_cnn()], [0.7, 0.3])
    reports = (wca_tf.evaluate(each, images, labels, **asked) for each in (inner, wca_tf.MixtureNet([inner])))
    own, nested = ({**without_seconds(report.results), "model": None} for report in reports)
    assert nested == own
    others = [wca_tf.MixtureNet([wca_tf.MixtureNet(inner.nets, weights)]) for weights in ([0.7, 0.3], [0.6, 0.4])]
    assert len({None, *map(identity_of, others)}) == 3


def test_noise_of_each_image_is_asked_of_every_net_of_a_mixture():
    with pytest.raises(InputError, match="independent_noise for a net of PyTorch or JAX, received Sequential"):
        wca_tf.evaluate(wca_tf.MixtureNet([dense()] * 2), *few(), attacks="fgsm", independent_noise=True)
    nets = wca_tf.MixtureNet([of_torch(), of_torch(-1.0)])
    targets = adapt(nets, (8, 8, 1), independent_noise=True).net.targets
    assert all(target.net.net.independent_noise for target in targets)


def keras_right(model, images, labels):
    return np.argmax(model.predict(images, verbose=0), axis=1) == labels


@pytest.mark.slow
def test_a_killed_evaluation_of_a_mixture_goes_on_and_ends_alike(tmp_path, monkeypatch):
    images, labels = few(20)
    asked = {"attacks": "arc:steps=3,square:queries=20", "epsilons": 0.05, "batch_size": 10, "name": "mixture"}
    monkeypatch.setattr(trials, "SAVE_EVERY", 0.0)
    net, attack_run, calls = wca_tf.MixtureNet([dense(), keras_cnn()]), wca_tf.Attack.run, []
    whole = wca_tf.evaluate(net, images, labels, report_dir=tmp_path / "whole", **asked)

    def dies_at_third(self, *arguments):
        calls.append(self)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return attack_run(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(wca_tf.Attack, "run", dies_at_third)
        wca_tf.evaluate(net, images, labels, report_dir=tmp_path / "part", **asked)
    resumed = wca_tf.evaluate(net, images, labels, report_dir=tmp_path / "part", **asked)
    assert without_seconds(whole.results) == without_seconds(resumed.results)
    assert_same_arrays(arrays(tmp_path / "whole"), arrays(tmp_path / "part"))


@pytest.mark.slow
def test_32_nets_are_attacked_with_the_memory_of_one():
    """A gradient holds the activations of one net at a time: the largest tensors of 32 nets would be 1.7 GB."""
    script = Path(__file__).parent / "peak_memory_of_mixtures.py"
    import subprocess

    peaks = [
        int(subprocess.run([sys.executable, script, str(count)], capture_output=True, text=True, check=True).stdout)
        for count in (2, 32)
    ]
    assert peaks[1] - peaks[0] < 600, "MB"


# Random ensembles


def small(seed):
    keras.utils.set_random_seed(seed)
    backbone = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(16, "relu")])
    net = wca_tf.BottleneckNet(backbone, 10, feature_dim=10, weight_decay=0.01)
    net.build((None, 8, 8, 1))
    return net


def compiled(net, optimizer=None):
    net.compile(optimizer or keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


def fit(net, images, labels):
    return net.fit(images, labels, batch_size=20, epochs=2, shuffle=False, verbose=0).history


def test_each_net_of_an_ensemble_trains_as_it_would_alone():
    images, labels = few(60)
    together = compiled(RandomEnsembleNet([small(1), small(2)]))
    together.build((None, 8, 8, 1))
    history = fit(together, images, labels)
    losses = []
    for number, net in enumerate((small(1), small(2))):
        losses.append(fit(compiled(net), images, labels)["loss"])
        for mine, alone in zip(together.members[number].weights, net.weights, strict=True):
            np.testing.assert_allclose(mine, alone, atol=1e-5)
    np.testing.assert_allclose(history["loss"], np.mean(losses, axis=0), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True])
def test_each_net_of_an_ensemble_trains_adversarially_as_it_would_alone(mixed):
    images, labels = few(60)
    together = compiled(RandomEnsembleNet([small(1), small(2)]))
    together.build((None, 8, 8, 1))
    attack = wca_tf.parse_attack("bim:steps=2:relative_step_size=0.5")
    together.adversary = TrainingOfEachNet(attack, 0.1, mixed)
    fit(together, images, labels)
    for number, net in enumerate((small(1), small(2))):
        net.adversary = wca_tf.parse_defence("none").adversary(attack, 0.1, mixed)
        fit(compiled(net), images, labels)
        for mine, alone in zip(together.members[number].weights, net.weights, strict=True):
            np.testing.assert_allclose(mine, alone, atol=1e-4)


def test_an_ensemble_answers_by_one_net_for_each_image_and_survives_its_file(tmp_path):
    images, labels = few()
    net = RandomEnsembleNet([small(1), small(2)], seed=4)
    net.build((None, 8, 8, 1))
    every = np.array([each.noise_free_logits(images) for each in net.members])
    logits = net.logits(images, seed=make_seed(3)).numpy()
    from_first = np.all(np.isclose(logits, every[0]), axis=1)
    assert 0 < from_first.sum() < len(images) and np.all(from_first | np.all(np.isclose(logits, every[1]), axis=1))
    net.save(tmp_path / "net.keras")
    loaded = wca_tf.load_model(tmp_path / "net.keras")
    np.testing.assert_array_equal(loaded.logits(images, seed=make_seed(3)), logits)
    np.testing.assert_array_equal(loaded(images), net(images))
    assert len(loaded.weights) == len(net.weights) == 2 * len(small(1).weights) + 1
    by_hand = np.mean([np.argmax(each, axis=1) == labels for each in every], axis=0)
    np.testing.assert_allclose(judged_few(adapt(loaded), images, labels), by_hand)


def test_an_ensemble_is_not_exported_in_one_line(tmp_path):
    net = RandomEnsembleNet([small(1), small(2)])
    net.build((None, 8, 8, 1))
    with pytest.raises(InputError, match="noise_free_logits, received RandomEnsembleNet") as raised:
        wca_tf.export(net, tmp_path / "export", image_shape=(8, 8, 1))
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_the_sampled_net_has_the_mean_of_the_mixture():
    """Draws by the interface of nets with noise anywhere, against the weighted sum."""
    target = mixture()
    seeds = tf.stack([fold_in(make_seed(0), number) for number in range(4000)])
    sampled = target.sampled()
    of_draws = tf.function(sampled._logits_of_draws, jit_compile=False)
    logits = of_draws(IMAGES, seeds, tf.range(12, dtype=tf.int64)).numpy()
    share = (np.argmax(logits, axis=2) == LABELS).mean(axis=0)
    np.testing.assert_allclose(share, judged(target).probability_correct, atol=4 * 0.5 / np.sqrt(4000))
    assert isinstance(sampled, SampledTarget) and sampled.per_image_noise
    noisy = mixture(0.5)
    by_draws = judged(noisy.sampled())
    error = 5 * 0.5 / np.sqrt(by_draws.draws)
    np.testing.assert_allclose(by_draws.probability_correct, judged(noisy).probability_correct, atol=error)
