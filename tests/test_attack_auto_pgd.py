"""Auto-PGD: its checkpoints, the published algorithm in NumPy, and what it returns."""

import numpy as np
import pytest
import tensorflow as tf
from attack_nets import NORMS, At, batch_of, build_attack, predictions, random_images, run, tanh_target

from wca_tf.attacks.auto_pgd import AutoPGD, checkpoint_periods
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.gradients import expected_gradient, score_images
from wca_tf.core.seeds import fold_in, make_seed


def checkpoints(steps):
    return [step + 1 for step, period in enumerate(checkpoint_periods(steps)) if period]


def test_checkpoints_are_the_papers():
    assert checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]


@pytest.mark.parametrize("steps", [1, 2, 5, 10, 40, 100, 1000])
def test_checkpoint_periods(steps):
    """The time between checkpoints falls by 0.03 of the steps from 0.22 of them, and never below 0.06."""
    periods = checkpoint_periods(steps)
    at = [0, *checkpoints(steps)]
    assert len(periods) == steps and [period for period in periods if period] == np.diff(at).tolist()
    first, fall, least = (max(int(share * steps), 1) for share in (0.22, 0.03, 0.06))
    assert np.diff(at).tolist() == [max(first - fall * number, least) for number in range(len(at) - 1)]


def published(value_and_gradient, images, start, epsilon, steps, norm):
    """Algorithm 1 of Croce & Hein (2020) for one image, in NumPy: every iterate after the start, in order.

    Rounded to float32 where the attack is, so that signs of gradients and comparisons are of the same numbers.
    """
    f32 = np.float32

    def project(x):
        change = x - images
        if norm == "linf":
            change = np.clip(change, -f32(epsilon), f32(epsilon))
        else:
            change = change * min(f32(1), f32(epsilon) / np.linalg.norm(change))
        return np.clip(images + change, f32(0), f32(1))

    def direction(gradient):
        return np.sign(gradient) if norm == "linf" else gradient / np.linalg.norm(gradient)

    alpha, rho, eta = f32(0.75), 0.75, f32(2 * epsilon)
    marks = [0, *checkpoints(steps)]
    x = start
    previous = x
    value, gradient = value_and_gradient(x)
    values = [value]
    best, best_value, best_gradient = x, value, gradient
    last_best, last_halved = value, True
    iterates = [x]
    for k in range(steps):
        z = project(x + eta * direction(gradient))
        momentum = alpha if k > 0 else f32(1)
        after = project(x + momentum * (z - x) + (1 - momentum) * (x - previous))
        previous, x = x, after
        value, gradient = value_and_gradient(x)
        values.append(value)
        iterates.append(x)
        if value > best_value:
            best, best_value, best_gradient = x, value, gradient
        if k + 1 in marks:
            since = marks[marks.index(k + 1) - 1]
            increases = sum(values[i + 1] > values[i] for i in range(since, k + 1))
            halve = increases <= rho * (k + 1 - since) or (not last_halved and last_best == best_value)
            last_halved, last_best = halve, best_value
            if halve:
                eta = eta / 2
                x, gradient = best, best_gradient
    return iterates


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("objective", ["ce", "dlr"])
def test_auto_pgd_is_the_published_algorithm(norm, objective):
    """On a net without noise; of its iterates, the one that is returned has the wrong class if any has, and then the
    least margin."""
    target, epsilon, steps = tanh_target(seed=70), 0.15, 40
    images = random_images(8, seed=71)
    labels = predictions(target, images)
    start = BALLS[norm].random_direction(fold_in(make_seed(2), 0), tf.range(8), images.shape[1:], tf.constant(epsilon))
    starts = tf.clip_by_value(images + start, 0.0, 1.0)
    adversarial = run(
        At(AutoPGD(objective=objective, steps=steps, norm=norm, eot_samples=1), epsilon), target, images, labels, seed=2
    )
    compiled = tf.function(expected_gradient)
    for number in range(8):
        batch = batch_of(images[number : number + 1], labels[number : number + 1])

        def value_and_gradient(x, batch=batch):
            x = tf.constant(x[np.newaxis])
            ascent = compiled(target, x, batch, make_seed(0), objective=objective, draws=1)
            return ascent.values.numpy()[0], ascent.gradient.numpy()[0]

        iterates = published(value_and_gradient, images[number].numpy(), starts[number].numpy(), epsilon, steps, norm)
        logits = target.noise_free_logits(target.features(tf.constant(np.stack(iterates)))).numpy()
        rivals = np.where(np.arange(4) == labels[number], -np.inf, logits).max(axis=1)
        expected = np.min(logits[:, labels[number]] - rivals)
        logits = target.noise_free_logits(target.features(adversarial[number : number + 1])).numpy()[0]
        received = logits[labels[number]] - np.delete(logits, labels[number]).max()
        # Comparisons of values that agree to rounding may go another way, late: the margins, of size 1, then agree.
        assert abs(received - expected) < 1e-4


def test_the_iterate_at_which_the_net_fails_most_is_returned():
    """By many common draws: of more steps from the same start no worse comes out."""
    target, images = tanh_target(seed=70, scale=0.7), random_images(20, seed=72)
    labels = predictions(target, images)
    shares = []
    for steps in (1, 2, 5):  # of one step size, as no checkpoint but those after every step can halve it
        found = run(build_attack(f"apgd_ce:steps={steps}:rho=1e-9", 0.05, eot_samples=3), target, images, labels)
        judged = tf.function(score_images)(target, target.features(found), batch_of(images, labels), make_seed(0), 1000)
        shares.append(judged.p_correct.numpy())
    # A draw at the edge may go either way by rounding.
    assert np.all(shares[1] <= shares[0] + 1.5e-3)
    assert np.mean(shares[2]) < np.mean(shares[0])


def test_auto_pgd_climbs_higher_than_pgd_in_equal_steps():
    """On cross-entropy of nets that are not linear: what its authors claim for it, on the mean."""
    margins = {"pgd:steps=25": [], "apgd_ce:steps=25": []}
    for seed in range(3):
        target = tanh_target(seed=80 + 10 * seed)
        images = random_images(40, seed=81 + seed)
        labels = predictions(target, images)
        for text, found in margins.items():
            adversarial = run(build_attack(text, 0.3, eot_samples=1), target, images, labels)
            judged = score_images(target, target.features(adversarial), batch_of(images, labels), make_seed(0), 1)
            found.append(judged.margin.numpy().mean())
    assert np.mean(margins["apgd_ce:steps=25"]) <= np.mean(margins["pgd:steps=25"])
