"""ARC (Dbouk & Shanbhag, ICML 2022): an attack on random ensembles that goes from net to net, the likeliest first.

Gradients of a mean over the nets may point where no net errs, although a point of the ball fools several. ARC moves to
the nearest boundary of one net after another, and keeps a move unless more of the nets are right after it.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from wca_tf.attacks.attack import BallAttack
from wca_tf.attacks.balls import BALLS, Ball
from wca_tf.attacks.gradients import num_scoring_draws, score_images
from wca_tf.attacks.objectives import num_classes_of
from wca_tf.attacks.pgd import EACH_STEP
from wca_tf.core.errors import InputError
from wca_tf.core.lazily import tf
from wca_tf.core.options import option
from wca_tf.core.seeds import make_seed
from wca_tf.nets.batch import Batch, per_image
from wca_tf.nets.mixture_target import members_of
from wca_tf.nets.targets import GaussianLogitsTarget, Target, is_exact

BEYOND = 0.05  # ρ over epsilon: how far a move goes beyond a boundary
TINY = 1e-10  # is added to what is divided by, as in the authors' code


@dataclasses.dataclass(frozen=True)
class ARC(BallAttack):
    """Moves to the nearest boundary of one net of a mixture after another; a move that makes more nets right is undone.

    A net with noise after its features moves by its logits without noise, and counts with its P(correct).
    """

    version = 1

    steps: int = option(20, "number of times that each net has its turn", quick=5)
    relative_step_size: float = option(1.0, EACH_STEP)
    classes: int = option(9, "number of other classes whose boundary may be the nearest, by logits, at most", quick=3)

    @property
    def passes(self) -> int:
        return 2 * self.steps  # of each net; a mixture compares its moves too

    @property
    def gradient_objective(self) -> str:
        return "margin"

    def check_target(self, target: Target, images: tf.Tensor) -> None:
        if not is_exact(target):
            raise InputError(
                "arc expects a net that picks one of a few nets without noise, or with Gaussian noise after their "
                "features (MixtureNet); received a net with other noise: use bounded or adaptive"
            )
        num_classes_of(target, images)
        super().check_target(target, images)

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        nets: list[tuple[float, Any]] = sorted(members_of(target), key=lambda pair: -pair[0])
        draws, ball = num_scoring_draws(target, self.eot_samples), BALLS[self.norm]
        length, beyond = self.relative_step_size * epsilon, BEYOND * epsilon

        def within(change: tf.Tensor) -> tf.Tensor:
            return tf.clip_by_value(batch.images + ball.project(change, epsilon), 0.0, 1.0)

        @functools.partial(tf.function, jit_compile=False)  # traced once: each of K nets has its moves judged by all K
        def p_correct(images: tf.Tensor) -> tf.Tensor:
            return score_images(target, target.features(images), batch, make_seed(0), draws).p_correct

        best, least = batch.images, p_correct(batch.images)
        for _ in tf.range(self.steps):
            so_far = best - batch.images
            move = tf.zeros_like(best)
            for number, (_, net) in enumerate(nets):
                distance, toward, unit = _nearest_boundary(self, ball, net, batch.images + so_far + move, batch)
                reach = tf.fill(tf.shape(distance), length)
                if number:
                    gone = tf.reduce_sum(unit * move, axis=[1, 2, 3])
                    across = length / (length - distance + TINY) * tf.abs(distance - gone) + beyond
                    reach = tf.where(distance < length, across, reach)
                moved = move + per_image(reach) * toward
                moved = length * moved / (per_image(ball.distance(moved)) + TINY)
                found = within(so_far + moved)
                p_found = p_correct(found)
                kept = p_found <= least
                move = tf.where(per_image(kept), moved, move)
                best, least = tf.where(per_image(kept), found, best), tf.where(kept, p_found, least)
        return best


def _nearest_boundary(
    attack: ARC, ball: Ball, net: GaussianLogitsTarget, images: tf.Tensor, batch: Batch
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the nearest boundary between a net's answer and another class, as if its logits were linear.

    Returns:
        (distance [B]; the shortest way there, as a perturbation of norm 1; the unit normal of the boundary, by whose
        product with a perturbation the perturbation comes nearer).
    """
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(images)
        logits = tf.debugging.check_numerics(net.noise_free_logits(net.features(images)), "the attack's logits")
        ranked = tf.math.top_k(logits, min(attack.classes + 1, logits.shape[-1])).indices
        rivals = ranked[:, 1:] if batch.targets is None else tf.cast(batch.targets[:, tf.newaxis], tf.int32)
        others = tf.gather(logits, rivals, batch_dims=1)
        leads = tf.transpose(tf.gather(logits, ranked[:, :1], batch_dims=1) - others)
    nearest = tf.fill([tf.shape(images)[0]], tf.constant(float("inf")))
    toward, unit = tf.zeros_like(images), tf.zeros_like(images)
    for number in range(leads.shape[0]):
        with tape:
            lead = leads[number]
        gradient = tape.gradient(lead, images, unconnected_gradients="zero")
        gradient = tf.debugging.check_numerics(gradient, "the attack's gradient")
        step = ball.steepest_step(-gradient)
        slope = -tf.reduce_sum(step * gradient, axis=[1, 2, 3])  # the dual norm of the gradient
        distance = lead / (slope + TINY)
        nearer = distance < nearest
        nearest = tf.where(nearer, distance, nearest)
        toward = tf.where(per_image(nearer), step, toward)
        unit = tf.where(per_image(nearer), -gradient / (per_image(slope) + TINY), unit)
    return nearest, toward, unit
