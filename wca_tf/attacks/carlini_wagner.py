"""C&W (Carlini & Wagner, S&P 2017): the nearest image in l2 on which the net errs with confidence."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from wca_tf.attacks.attack import Attack
from wca_tf.attacks.gradients import expected_gradient
from wca_tf.core.lazily import tf
from wca_tf.core.options import option
from wca_tf.core.seeds import fold_in
from wca_tf.nets.batch import Batch, per_image, replace_rows
from wca_tf.nets.targets import Target, active_rows

# Keeps pixels of 0 and 1 finite in tanh space.
SHRINK = 0.999999
# The parameters of Adam (Kingma & Ba, 2015), as in the authors' code.
BETA_1, BETA_2, TINY = 0.9, 0.999, 1e-8
# The least loss so far is checked ten times a search. A search stops after five checks in a row, half of its steps, at
# which the loss was not below this share of its value at the check before. With less patience, Adam's overshoot behind
# the boundary is mistaken for the end.
PROGRESS = 0.9999
CHECKS = 10
PATIENCE = 5


class _Search(NamedTuple):
    """The state of Adam in tanh space for each image, and the number of checks since the loss last fell."""

    w: tf.Tensor
    mean: tf.Tensor
    square: tf.Tensor
    least_loss: tf.Tensor
    checked_loss: tf.Tensor
    stale_checks: tf.Tensor

    @property
    def active(self) -> tf.Tensor:
        return self.stale_checks < PATIENCE

    def where(self, condition: tf.Tensor, other: _Search) -> _Search:
        """Return this state where `condition` [B] is true, else `other`."""
        return _Search(
            *(
                tf.where(tf.reshape(condition, [-1] + [1] * (mine.shape.rank - 1)), mine, theirs)
                for mine, theirs in zip(self, other, strict=True)
            )
        )


@dataclasses.dataclass(frozen=True)
class CarliniWagner(Attack):
    """The nearest image in l2 on which the net errs with confidence: ‖δ‖² + c max(margin + confidence, 0) is minimised.

    The margin is the negative of the objective: by default the mean over draws of h_y − max_j≠y h_j. An image counts as
    found when its margin is below −confidence. An image that is not found is returned unchanged. The draws are the same
    in every step, so that the test for success does not pick a step with lucky draws.
    """

    confidence: float = option(0.0, "κ, in logits (in standard deviations for objective z_margin)", minimum=0)
    objective: str = option(
        "expected_margin",
        "the margin to lower; `margin` is noise-free",
        choices=("expected_margin", "margin", "z_margin"),
    )
    steps: int = option(1000, "number of gradient steps of a search, at most", quick=100)
    learning_rate: float = option(5e-4, "learning rate of Adam, in tanh space", quick=0.03)
    initial_constant: float = option(1e-3, "the first weight c of the margin", quick=0.1)
    searches: int = option(9, "number of weights c that are tried", quick=5)

    @property
    def passes(self) -> int:
        return self.searches * self.steps

    def perturb(
        self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        best = batch.images
        best_square = tf.fill([tf.shape(best)[0]], math.inf)
        constant = tf.fill(tf.shape(best_square), self.initial_constant)
        lower, upper = tf.zeros_like(constant), tf.fill(tf.shape(constant), math.inf)
        for _ in tf.range(self.searches):
            best, best_square, found = _search(self, target, batch, constant, best, best_square, fold_in(seed, 0))
            lower = tf.where(found, lower, tf.maximum(lower, constant))
            upper = tf.where(found, tf.minimum(upper, constant), upper)
            constant = tf.where(upper < math.inf, (lower + upper) / 2, 10 * constant)
        images = tf.where(per_image(best_square > 0), best, batch.images)  # mapping to tanh space and back is inexact
        return images, {"found": tf.cast(best_square < math.inf, tf.int32)}


def _search(
    attack: CarliniWagner,
    target: Target,
    batch: Batch,
    constant: tf.Tensor,
    best: tf.Tensor,
    best_square: tf.Tensor,
    seed: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Run one descent with these constants.

    Returns:
        (nearest images found so far, their ‖δ‖², whether this search found an image).
    """
    start = tf.atanh((2 * batch.images - 1) * SHRINK)
    origin = _to_images(start)
    still = tf.zeros_like(start)
    forever = tf.fill(tf.shape(best_square), math.inf)
    state = _Search(start, still, still, forever, forever, tf.zeros_like(best_square, tf.int32))
    found = tf.zeros_like(best_square, tf.bool)
    step = tf.constant(0)
    while step < attack.steps and tf.reduce_any(state.active):
        rows = active_rows(target, state.active)
        part, active = batch.take(rows), tf.gather(state.active, rows)
        w = tf.gather(state.w, rows)
        x = _to_images(w)
        distance = x - tf.gather(origin, rows)
        square = tf.reduce_sum(tf.square(distance), axis=[1, 2, 3])
        ascent = expected_gradient(target, x, part, seed, objective=attack.objective, draws=attack.eot_samples)
        missing = attack.confidence - ascent.values
        weight = tf.gather(constant, rows)
        loss = square + weight * tf.maximum(missing, 0.0)

        nearer = active & (missing < 0) & (square < tf.gather(best_square, rows))
        best = replace_rows(best, rows, tf.where(per_image(nearer), x, tf.gather(best, rows)))
        best_square = replace_rows(best_square, rows, tf.where(nearer, square, tf.gather(best_square, rows)))
        found = replace_rows(found, rows, tf.gather(found, rows) | (active & (missing < 0)))

        pull = tf.where(missing > 0, weight, 0.0)
        gradient = (2 * distance - per_image(pull) * ascent.gradient) * (1 - tf.square(2 * x - 1)) / 2
        state = _descend(attack, state, rows, gradient, loss, step).where(state.active, state)
        step += 1
    return best, best_square, found


def _descend(
    attack: CarliniWagner, state: _Search, rows: tf.Tensor, gradient: tf.Tensor, loss: tf.Tensor, step: tf.Tensor
) -> _Search:
    """Return the state after a step of Adam at `rows`; a search ends when its loss no longer falls."""
    mean = BETA_1 * tf.gather(state.mean, rows) + (1 - BETA_1) * gradient
    square = BETA_2 * tf.gather(state.square, rows) + (1 - BETA_2) * tf.square(gradient)
    time = tf.cast(step + 1, tf.float32)
    change = mean / (1 - BETA_1**time) / (tf.sqrt(square / (1 - BETA_2**time)) + TINY)
    least = tf.minimum(tf.gather(state.least_loss, rows), loss)
    checked, stale = tf.gather(state.checked_loss, rows), tf.gather(state.stale_checks, rows)
    check = (step + 1) % max(attack.steps // CHECKS, 1) == 0
    counted = tf.where(least < PROGRESS * checked, 0, stale + 1)
    return _Search(
        replace_rows(state.w, rows, tf.gather(state.w, rows) - attack.learning_rate * change),
        replace_rows(state.mean, rows, mean),
        replace_rows(state.square, rows, square),
        replace_rows(state.least_loss, rows, least),
        replace_rows(state.checked_loss, rows, tf.where(check, least, checked)),
        replace_rows(state.stale_checks, rows, tf.where(check, counted, stale)),
    )


def _to_images(w: tf.Tensor) -> tf.Tensor:
    return (tf.tanh(w) + 1) / 2
