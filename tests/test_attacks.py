"""What a caller may rely on for every attack: its reach, box, seed, batch independence, targets, and its errors."""

import math

import numpy as np
import pytest
import tensorflow as tf
from attack_nets import (
    EPSILON,
    IN_A_BALL,
    NORMS,
    PIXEL_TOLERANCE,
    PIXELS,
    QUICK,
    SHAPE,
    WITH_NORMS,
    build_attack,
    counting_target,
    flatten,
    linear_target,
    normal,
    perturbations,
    predictions,
    random_images,
    run,
)

from wca_tf.attacks import ATTACKS, parse_attack
from wca_tf.attacks.auto_pgd import AutoPGD
from wca_tf.attacks.carlini_wagner import CarliniWagner
from wca_tf.attacks.cascade import RestartedPGD
from wca_tf.attacks.n_pixel import NPixel
from wca_tf.attacks.pgd import ProjectedGradient
from wca_tf.attacks.square import Square
from wca_tf.core.errors import InputError
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.gaussian import margins
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import GaussianLogitsTarget

DRAWS = 8
# These begin at the image, or where the objective alone says.
WITHOUT_RANDOM_NUMBERS = ("fgsm", "bim", "cw")


def each(texts):
    """Every attack; in l2, those that are others of the list with another objective or repeated, with --slow."""
    composed = ("bim", "margin", "z_margin", "pgd_restarts", "auto_rand")
    slow = [text for text in texts if text.startswith(composed) and text.endswith("norm=l2")]
    return pytest.mark.parametrize(
        "text", [pytest.param(t, marks=[pytest.mark.slow] if t in slow else []) for t in texts]
    )


@pytest.fixture(scope="module")
def noisy_target():
    """Five classes, correlated noise."""
    return linear_target(normal(PIXELS, 5, seed=1), 0.3 * normal(5, 7, seed=2))


@pytest.fixture(scope="module")
def labelled(noisy_target):
    """Images, and the class that each has without noise."""
    images = random_images(8)
    return images, predictions(noisy_target, images)


def build(text, epsilon=EPSILON):
    return build_attack(text, epsilon, eot_samples=DRAWS)


# What holds for every attack


@each(WITH_NORMS)
def test_every_attack(noisy_target, labelled, text):
    images, labels = labelled
    attack = build(text, 0.4)
    adversarial = run(attack, noisy_target, images, labels)
    assert adversarial.dtype == tf.float32 and adversarial.shape == images.shape
    assert tf.reduce_min(adversarial) >= 0 and tf.reduce_max(adversarial) <= 1
    changes = perturbations(adversarial, images)
    expected = np.full(len(images), True)
    if text.startswith("cw"):  # it leaves what is an error already, by the mean of its draws: nothing is nearer
        features = noisy_target.features(images)
        logits = noisy_target.logits(features, fold_in(make_seed(0), 0), attack.eot_samples, tf.range(len(images)))
        expected = tf.reduce_mean(margins.margin(logits, labels), axis=0).numpy() > 0
        assert expected.any() and not expected.all()
    np.testing.assert_array_equal(np.any(changes != 0, axis=1), expected)
    if attack.has_radius:
        distances = np.linalg.norm(changes, np.inf if attack.norm == "linf" else 2, axis=1)
        assert np.all(distances <= 0.4 + PIXEL_TOLERANCE)
    np.testing.assert_array_equal(run(attack, noisy_target, images, labels), adversarial)


@each([text for text in WITH_NORMS if parse_attack(text).has_radius])
def test_epsilon_zero_is_the_identity(noisy_target, labelled, text):
    np.testing.assert_array_equal(run(build(text, 0.0), noisy_target, *labelled), labelled[0])


@each(WITH_NORMS)
def test_the_seed_decides(noisy_target, labelled, text):
    """Several attacks end at the same corner of their ball from most starts, but not for every image."""
    attack = build(text, 0.4)
    first, again = (run(attack, noisy_target, *labelled, seed=seed) for seed in (0, make_seed(0)))
    np.testing.assert_array_equal(first, again)
    if text.startswith("arc"):  # it has no start, and compares moves by the same draws for every seed
        return
    if not text.startswith(("fgsm", "bim")) or "norm=l2" in text:  # signs of gradients hardly know the draws
        assert any(np.any(first != run(attack, noisy_target, *labelled, seed=seed)) for seed in (1, 2, 3))


@each(WITH_NORMS)
def test_an_image_does_not_depend_on_its_batch(noisy_target, labelled, text):
    """Up to the rounding of a matrix product, which may depend on its number of rows."""
    images, labels = labelled
    attack, indices = build(text, 0.4), np.arange(100, 108)
    together = run(attack, noisy_target, images, labels, indices=indices)
    reversed_ = run(attack, noisy_target, images[::-1], labels[::-1], indices=indices[::-1])
    np.testing.assert_allclose(reversed_[::-1], together, rtol=0, atol=PIXEL_TOLERANCE)
    # Among others that are lost at once, so that what is gathered of the batch differs.
    others = random_images(8, seed=1)
    mixed = tf.tensor_scatter_nd_update(others, [[2], [7]], tf.gather(images, [5, 0]))
    wrong = (predictions(noisy_target, mixed) + 1) % 5
    wrong[[2, 7]] = labels[[5, 0]]
    numbers = np.array([0, 1, 105, 3, 4, 5, 6, 100])
    among_others = run(attack, noisy_target, mixed, wrong, indices=numbers)
    np.testing.assert_allclose(among_others[2], together[5], rtol=0, atol=PIXEL_TOLERANCE)
    np.testing.assert_allclose(among_others[7], together[0], rtol=0, atol=PIXEL_TOLERANCE)


@pytest.mark.parametrize("name", ["pgd", "apgd_ce", "square", "cw", "n_pixel"])
def test_an_image_alone(noisy_target, labelled, name):
    images, labels = labelled
    attack, indices = build(QUICK[name], 0.4), np.arange(100, 108)
    together = run(attack, noisy_target, images, labels, indices=indices)
    for i in (0, 5):
        alone = run(attack, noisy_target, images[i : i + 1], labels[i : i + 1], indices=indices[i : i + 1])
        np.testing.assert_allclose(alone[0], together[i], rtol=0, atol=PIXEL_TOLERANCE)


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "auto_rand"])  # that is two of the others
def test_an_attack_costs_what_it_says(name):
    """Rows that pass the features: `passes` an image, and one or two to judge the image itself."""
    target, counted = counting_target()
    images = random_images(3)
    attack = build(QUICK[name])
    attack.check_target(target, images)
    run(attack, target, images, np.zeros(3, np.int64))
    passes = attack.passes
    if name == "adaptive":  # one of its members is left out of a net without noise
        passes = sum(each.passes for each in attack.stages(target))
    assert counted.numpy() <= 3 * (passes + 2)
    if name not in ("cw", "n_pixel"):  # these end where they no longer fall, or have converged
        assert counted.numpy() >= 3 * passes


# Targeted attacks


@pytest.mark.parametrize("name", ATTACKS)
def test_targeted_attacks_reach_their_targets(name):
    """Class j has the largest logit where pixel j does. n_pixel sets one pixel, and that to 1, or nearly so."""
    target = linear_target(5 * np.eye(PIXELS, dtype=np.float32))
    images = random_images(6, low=0.3, high=0.6)
    labels = predictions(target, images)
    targets = (labels + 1 + np.arange(6) % 5) % 6
    enough = {"square": {"queries": 300}, "random_sampling": {"points": 300}}
    enough |= {"n_pixel": {"population": 40, "generations": 30}}
    enough |= dict.fromkeys(("bim", "pgd", "pgd_restarts"), {"steps": 25})  # to cross the ball
    attack = build(f"{QUICK[name]}:targeted=true", 0.4).replace(**enough.get(name, {}))
    adversarial = run(attack, target, images, labels, targets=targets)
    np.testing.assert_array_equal(predictions(target, adversarial), targets)


@pytest.mark.parametrize("name", ATTACKS)
def test_targets_are_for_targeted_attacks_and_for_them_alone(name):
    target, images, labels = linear_target(normal(PIXELS, 5)), random_images(2), np.array([0, 1])
    with pytest.raises(InputError, match="expects targets") as raised:
        run(build(f"{QUICK[name]}:targeted=true"), target, images, labels)
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match="expects no targets") as raised:
        run(build(QUICK[name]), target, images, labels, targets=np.array([1, 0]))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.array([1, 5]), "from 0 to 4"),
        (np.array([1, -1]), "from 0 to 4"),
        (np.array([1, 1]), "a label as its own target"),
        (np.array([1.0, 0.0]), "2 whole numbers as targets"),
        (np.array([True, False]), "2 whole numbers as targets"),
        (np.array([1, 0, 2]), "2 whole numbers as targets"),
        (np.array([[1], [0]]), "2 whole numbers as targets"),
        (np.array(1), "2 whole numbers as targets"),
        ([1, None], "2 whole numbers as targets"),
    ],
)
def test_targets_are_checked(targets, message):
    target = linear_target(normal(PIXELS, 5))
    with pytest.raises(InputError, match=message) as raised:
        run(build("margin:targeted=true"), target, random_images(2), np.array([0, 1]), targets=targets)
    assert "\n" not in str(raised.value)


# Errors


@pytest.mark.parametrize(
    "images",
    [
        np.full((2, *SHAPE), np.nan, np.float32),
        np.full((2, *SHAPE), np.inf, np.float32),
        np.full((2, *SHAPE), 1.01, np.float32),
        np.full((2, *SHAPE), -0.01, np.float32),
        np.zeros((2, *SHAPE), np.uint8),
        np.zeros((2, *SHAPE), np.float64),
        np.zeros((2, PIXELS), np.float32),
    ],
    ids=["nan", "inf", "above 1", "below 0", "uint8", "float64", "flat"],
)
@pytest.mark.parametrize("name", ["pgd", "cw", "n_pixel", "square"])
def test_unusable_images(noisy_target, name, images):
    with pytest.raises(InputError, match="expected .*images"):
        run(build(QUICK[name]), noisy_target, images, np.zeros(2, np.int64))


@pytest.mark.parametrize("epsilon", [-0.1, -1e-9, math.nan, math.inf, None])
@pytest.mark.parametrize("name", IN_A_BALL)
def test_unusable_epsilon(noisy_target, labelled, name, epsilon):
    with pytest.raises(InputError, match="epsilon"):
        run(build_attack(name, epsilon), noisy_target, *labelled)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "pdg",
            "",
            "pgd:stepz=3",
            "pgd:steps=3.5",
            "pgd:steps=0",
            "pgd:norm=l1",
            "pgd:steps",
            "pgd:targeted=maybe",
            "pgd:steps=2:steps=3",
        ),
        *("cw:norm=l2", "cw:confidence=-1", "cw:confidence=nan", "cw:objective=hinge", "n_pixel:pixels=0"),
        *(
            "square:stop_at=-0.1",
            "transfer:source_objective=nothing",
            "pgd_restarts:restarts=0",
            "random_sampling:points=1e4",
        ),
        *("square:stop_at=2", "square:initial_share=1.1", "n_pixel:stop_at=1.5", "apgd_ce:rho=2"),  # shares
    ],
)
def test_unusable_text(text):
    with pytest.raises(InputError, match="expected") as raised:
        parse_attack(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("objective", ["ce", "dlr"])
def test_cw_takes_margins_alone(noisy_target, labelled, objective):
    """The others are no differences to which a confidence can be added: cross-entropy is above 0 everywhere."""
    with pytest.raises(InputError, match="objective"):
        run(build_attack(f"cw:objective={objective}:steps=2:searches=1"), noisy_target, *labelled)


def test_text_sets_parameters():
    attack = build_attack("z_margin:steps=3:random_start=false:relative_step_size=0.5", 0.2, eot_samples=4)
    expected = {"objective": "z_margin", "steps": 3, "random_start": False, "relative_step_size": 0.5}
    assert attack.options() == RestartedPGD(eot_samples=4, restarts=1, **expected).options()
    targeted = CarliniWagner(confidence=0.0, targeted=True, eot_samples=4)
    assert parse_attack("cw:confidence=0:targeted=true", eot_samples=4).options() == targeted.options()
    assert parse_attack("square:norm=l2:stop_at=0").options() == Square(stop_at=0.0, norm="l2").options()


@pytest.mark.parametrize("name", ATTACKS)
def test_defaults_are_parameters_of_the_class(name):
    """`--attacks=NAME` and the class alone make the same attack, up to what the name is for."""
    attack = build_attack(name, EPSILON)
    assert attack.eot_samples == {"auto_rand": 20, "bounded": 10, "adaptive": 10}.get(name, 50) and not attack.targeted
    for key, value in ATTACKS[name].defaults.items():
        assert getattr(attack, key) == value


def test_a_radius_may_be_a_fraction_written_as_text(noisy_target, labelled):
    attack = build_attack("fgsm", 0.0).attack
    found, expected = (attack(noisy_target, *labelled, epsilon).images for epsilon in ("8/255", 8 / 255))
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(InputError, match="epsilon as numbers or fractions.*'x'"):
        attack(noisy_target, *labelled, "x")


@pytest.mark.parametrize("epsilon", ["linf:8/255", np.float32(8 / 255), np.array(8 / 255), tf.constant(8 / 255)])
def test_a_radius_may_have_its_norm_and_be_any_single_number(noisy_target, labelled, epsilon):
    attack = build_attack("fgsm").attack
    np.testing.assert_array_equal(
        attack(noisy_target, *labelled, epsilon).images, attack(noisy_target, *labelled, 8 / 255).images
    )


@pytest.mark.parametrize(
    ("text", "epsilon", "told"),
    [
        ("fgsm", 8, r"epsilon in linf of at most 1 .*received 8: 8/255\?"),
        ("fgsm", "8", r"8/255\?"),
        ("fgsm", 300, r"at most 1 .*received 300$"),
        ("fgsm:norm=l2", 1e9, r"at most 10,000 .*received 1e\+09$"),
        ("fgsm", [0.1], r"epsilon as one number, .*received \[0.1\]"),
        ("fgsm", np.array([0.1, 0.2]), "epsilon as one number"),
        ("fgsm", "0.1,0.2", "epsilon as numbers or fractions.*'0.1,0.2'"),
        ("fgsm", "l2:0.5", "a radius of linf, the attack's norm, received 'l2:0.5'"),
        ("fgsm", "l1:0.5", "a norm among linf, l2"),
        ("fgsm", {}, "epsilon as one number"),
    ],
)
def test_a_radius_that_cannot_be_meant_is_one_line(noisy_target, labelled, text, epsilon, told):
    with pytest.raises(InputError, match=told) as raised:
        build_attack(text).attack(noisy_target, *labelled, epsilon)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("seed", [2**32, -(2**31) - 1, np.int64(2**40)])
def test_a_seed_that_int32_does_not_hold_is_refused(noisy_target, labelled, seed):
    """Its numbers would be those of another seed: three seeds may be one."""
    with pytest.raises(InputError, match=f"seed from .* received {seed}"):
        build_attack("fgsm", 0.0).attack(noisy_target, *labelled, 0.1, seed=seed)


def test_defaults_are_the_papers():
    assert RestartedPGD().restarts == 100 and RestartedPGD().steps == 10
    classes = {"pgd_restarts": RestartedPGD(), "n_pixel": NPixel(), "cw": CarliniWagner(), "square": Square()}
    classes["apgd_dlr"] = AutoPGD(objective="dlr")
    for name, attack in classes.items():
        assert parse_attack(name).options() == attack.options()


@pytest.mark.parametrize("name", ["fgsm", "pgd", "margin", "z_margin", "apgd_dlr", "cw", "n_pixel", "random_sampling"])
def test_logits_that_overflow_raise(name):
    features = lambda images: 1e38 * flatten(images)  # noqa: E731
    weights = tf.constant(10 * np.abs(normal(PIXELS, 3)))
    target = GaussianLogitsTarget(features, lambda f: f @ weights, tf.ones([3, 3]) + tf.eye(3))
    images = random_images(2, low=0.5)
    assert not np.isfinite(target.noise_free_logits(features(images)).numpy()).any()
    with pytest.raises(InputError, match="expected finite") as raised:
        run(build(QUICK[name]), target, images, np.array([0, 1]))
    assert "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def broken_target():
    """A linear net of five classes, and the variable [5] that is added to its logits."""
    weights, bias = tf.constant(normal(PIXELS, 5, seed=1)), tf.Variable(tf.zeros([5]))
    return GaussianLogitsTarget(flatten, lambda features: features @ weights + bias, tf.zeros([5, 1])), bias


@pytest.mark.parametrize("name", ATTACKS)
def test_logits_that_are_not_finite_raise(broken_target, name):
    """In one class are enough: NaN there is no other class's success, nor is Inf."""
    target, bias = broken_target
    attack, images = build(QUICK[name]), random_images(3)
    quiet = []
    for wrong in (np.nan, np.inf, -np.inf):
        bias.assign([0.0, wrong, 0.0, 0.0, 0.0])
        try:
            run(attack, target, images, np.array([0, 2, 1]))
            quiet.append(wrong)
        except InputError as error:
            assert "\n" not in str(error)
    bias.assign(tf.zeros([5]))
    assert not quiet
    run(attack, target, images, np.array([0, 2, 1]))


@pytest.mark.parametrize(
    ("labels", "indices", "message"),
    [
        (np.array([0, 3]), np.arange(2), "labels from 0 to 2"),
        (np.array([0, -1]), np.arange(2), "labels from 0 to 2"),
        (np.array([0, 1, 2]), np.arange(2), "2 whole numbers as labels"),
        (np.array([0.0, 1.0]), np.arange(2), "2 whole numbers as labels"),
        (np.array([0, 1]), np.arange(3), "2 whole numbers as indices"),
    ],
)
def test_labels_and_indices_are_checked(labels, indices, message):
    target = linear_target(normal(PIXELS, 3, seed=5), np.eye(3, dtype=np.float32))
    with pytest.raises(InputError, match=message):
        run(build_attack("margin", EPSILON), target, random_images(2), labels, indices=indices)


@pytest.mark.parametrize("name", ["pgd", "margin", "cw", "n_pixel", "square"])
@pytest.mark.parametrize("what", ["labels", "targets"])
def test_classes_of_a_random_net_are_checked(name, what):
    """Its number of classes is known only from its logits."""
    weights = normal(PIXELS, 3)
    target = SampledTarget(lambda images, seed: flatten(images) @ weights)
    labels = {"labels": np.array([0, 3]), "targets": np.array([0, 1])}[what]
    targets = {"labels": None, "targets": np.array([1, 3])}[what]
    attack = build(f"{QUICK[name]}:targeted={str(what == 'targets').lower()}")
    with pytest.raises(InputError, match="from 0 to 2") as raised:
        run(attack, target, random_images(2), labels, targets=targets)
    assert "\n" not in str(raised.value)


def test_no_images(noisy_target):
    nothing = np.zeros((0, *SHAPE), np.float32), np.zeros(0, np.int64)
    for name in QUICK:
        assert run(build(QUICK[name]), noisy_target, *nothing).shape == (0, *SHAPE)


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"steps": 10**10}, {"eot_samples": 0}, {"norm": "l3"}, {"relative_step_size": -0.1}]
)
def test_a_configuration_out_of_range_is_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        ProjectedGradient(**wrong)


@pytest.mark.parametrize("wrong", [{"population": 3}, {"crossover": 1.5}, {"stop_at": -0.1}, {"generations": 0}])
def test_an_evolution_out_of_range_is_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        NPixel(**wrong)


@pytest.mark.parametrize("norm", NORMS)
def test_indices_decide_random_numbers(noisy_target, labelled, norm):
    """A chance of 1/8 per image that three signs agree, for the l-infinity norm."""
    attack = build(f"square:norm={norm}:queries=5", 0.4)
    first, other = (
        run(attack, noisy_target, *labelled, indices=indices) for indices in (np.arange(8), np.arange(8, 16))
    )
    assert np.mean(np.any(first != other, axis=(1, 2, 3))) > 0.4
