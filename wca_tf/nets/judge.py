"""The four numbers of a stochastic classifier, each with a 95 % interval.

accuracy            one draw per image: the paper's protocol
expected_accuracy   mean of P(correct), exact up to a stated error: the mean accuracy of a single query
noise_free_accuracy accuracy of the net without its noise
n_query_accuracy    mean of P(correct)ⁿ: an attacker may ask n times and needs one error
"""

from __future__ import annotations

import dataclasses
from typing import Any

from wca_tf.core.arithmetic import tensor_float_32
from wca_tf.core.errors import NonFiniteError
from wca_tf.core.lazily import np, tf
from wca_tf.core.seeds import Purpose, fold_in, make_seed, normal_by_index
from wca_tf.gaussian import margins
from wca_tf.gaussian.independent import probability_of_largest
from wca_tf.gaussian.intervals import (
    Number,
    design_effect_of_a_draw,
    design_effect_of_blocks,
    design_effect_over_draws,
    mean_difference,
    mean_with_interval,
    variance_over_draws,
)
from wca_tf.gaussian.probability import probability_correct
from wca_tf.gaussian.several_draws import all_correct, symmetric_means
from wca_tf.nets.batch import Batch
from wca_tf.nets.graphs import graph_of_target, sharded_graph
from wca_tf.nets.mixture_target import MixtureTarget
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import AnyTarget, GaussianLogitsTarget, is_gaussian

QUERIES = (1, 10, 100)
# Increase it with every change that gives other numbers for the same images.
JUDGEMENT_VERSION = 5  # with 4 equal logits counted as right where the label comes first
# The number of draws that estimate P(correct) of a net with noise before its last layer. The 95 % half-width is then
# 0.07 or less.
ESTIMATING_DRAWS = 200


@dataclasses.dataclass(frozen=True)
class Judgement:
    """The judgement of a set of images by the net, as numbers per image, [N].

    Attributes:
        correct: whether one draw of the noise gives the label.
        noise_free_correct: whether the net without noise gives the label; NaN where no such net is known.
        probability_correct: P(label | image), over the noise.
        probability_error: 95 % half-width of `probability_correct`.
        z_margin: distance to the nearest class, in standard deviations. For a net without noise it is the plain margin.
            For a net with noise anywhere it is the mean of the margin over draws, divided by its standard deviation.
            For a mixture it is the mean of its members' numbers.
        hits: [N, draws], for the draws that estimate the probability. Each is whether the draw gives the label (bool);
            or the probability that it does, given all noise but that of the last layer (float64). There are 0 draws
            where the probability is exact.
        blocks: whole numbers [N], equal for images that were attacked with the same draws. Clean images whose judging
            draws may depend on each other are one block.
    """

    correct: np.ndarray
    noise_free_correct: np.ndarray
    probability_correct: np.ndarray
    probability_error: np.ndarray
    z_margin: np.ndarray
    hits: np.ndarray
    blocks: np.ndarray

    @property
    def draws(self) -> int:
        """The number of draws that estimate the probability; 0 where it is exact."""
        return self.hits.shape[1]

    @property
    def shared_noise(self) -> bool:
        """Whether images may share the noise of a draw: then they are in blocks."""
        return len(np.unique(self.blocks)) < len(self.blocks)

    @property
    def parts(self) -> int | None:
        """The number of blocks, whose draws are independent; `None` where each image is its own."""
        return len(np.unique(self.blocks)) if self.shared_noise else None

    def numbers(self) -> dict[str, Any]:
        """Return the four numbers as in results.json; noise_free_accuracy is `None` where no such net is known."""
        known = not np.isnan(self.noise_free_correct).any()
        return {
            "accuracy": self._with_interval(self.correct, design_effect_of_a_draw(self.hits)),
            "expected_accuracy": self.n_query_accuracy(1),
            "noise_free_accuracy": self._with_interval(self.noise_free_correct) if known else None,
            "n_query_accuracy": {str(n): self.n_query_accuracy(n) for n in QUERIES},
        }

    def n_query_accuracy(self, queries: int) -> Number:
        """Return the mean of P(correct)ⁿ.

        The interval includes two more errors. One is the error of P(correct), which images may share. The other comes
        from the draws that the images of a block shared in the attack.
        """
        hits = self.hits_for(queries)
        of_judging = design_effect_over_draws(hits, queries, self.shared_noise)
        return self._with_interval(self.n_query_probability(queries), of_judging)

    def _with_interval(self, values: np.ndarray, of_judging: float = 1.0) -> Number:
        """Return the mean, with an interval that includes the error from the draws of the judge and of the attack."""
        return mean_with_interval(values, of_judging + design_effect_of_blocks(values, self.blocks) - 1)

    def majority_accuracy(self) -> Number:
        """Return the share of images that more than half of all draws get right: a majority vote gets these right.

        The interval is for the choice of images.
        """
        return self._with_interval(self.probability_correct > 0.5)

    def n_query_probability(self, queries: int) -> np.ndarray:
        """Return P(correct)ⁿ per image [N].

        From draws it is estimated without bias: of all choices of n draws, the share in which all are correct.
        """
        return all_correct(self.hits_for(queries), queries) if self.draws else self.probability_correct**queries

    def n_query_probabilities(self, queries: np.ndarray) -> np.ndarray:
        """Return `n_query_probability` for several n, [n's, N]."""
        if self.hits.dtype == bool or not self.draws:
            return np.stack([self.n_query_probability(int(n)) for n in queries])
        return symmetric_means(self.hits, int(queries.max()))[queries]  # all n at the cost of the largest

    def hits_for(self, queries: int) -> np.ndarray:
        """Return the hits [N, draws] that estimate P(correct)ⁿ for n = `queries`."""
        return self.hits

    def less(self, other: Judgement) -> Number:
        """Return the mean of P(correct) less that of `other`, in pairs of the same image, with its 95 % interval.

        The interval includes the same errors as that of `n_query_accuracy`.
        """
        both, differences = (self, other), self.probability_correct - other.probability_correct
        blocks = max(design_effect_of_blocks(differences, each.blocks) for each in both)
        return mean_difference(
            differences, blocks, sum(variance_over_draws(each.hits, shared_noise=each.shared_noise) for each in both)
        )

    @classmethod
    def concatenate(cls, parts: list[Judgement]) -> Judgement:
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


@tensor_float_32(on=False)
def judge(
    target: AnyTarget,
    images: tf.Tensor,
    labels: tf.Tensor,
    indices: tf.Tensor,
    seed: int | tf.Tensor,
) -> Judgement:
    """Judge images [B, H, W, channels].

    An image's numbers depend on `seed` and on the image's index, not on its batch. The exception is a
    net with noise anywhere whose target has `per_image_noise` False: its draws may depend on the batch. For a net with
    noise anywhere, the numbers are estimates from `ESTIMATING_DRAWS` draws.

    Raises:
        NonFiniteError: logits are NaN or Inf.
    """
    if isinstance(target, MixtureTarget):
        own = fold_in(make_seed(seed), Purpose.JUDGEMENT, 1)  # the members draw from the seed of JUDGEMENT itself
        picked = target.pick(own, tf.cast(indices, tf.int64)).numpy()
        return _mixed(target, [judge(member, images, labels, indices, seed) for member in target.members], picked)
    if not is_gaussian(target):
        return _judge_by_draws(target, images, labels, np.asarray(indices), make_seed(seed))
    batch = Batch(images, *(tf.cast(values, tf.int64) for values in (labels, indices)))
    mean, noisy, z_margins = (value.numpy() for value in _logits(target, batch, make_seed(seed)))
    _check_finite(mean)
    labels = np.asarray(labels)
    scale = target.scale_of(target.features(images)) if target.scale_per_image else target.logit_scale
    probability, error = probability_correct(mean, labels, scale.numpy())
    return Judgement(
        correct=_is_largest(noisy, labels),
        noise_free_correct=_is_largest(mean, labels).astype(np.float64),
        probability_correct=probability,
        probability_error=error,
        z_margin=z_margins,
        hits=np.zeros((len(labels), 0), bool),
        blocks=np.asarray(indices),
    )


def _mixed(target: MixtureTarget, judged: list[Judgement], picked: np.ndarray) -> Judgement:
    """Return the judgement of a mixture from those of its members, and the numbers [N] of the members that answer."""
    own = [each.probability_correct for each in judged]
    return Judgement(
        correct=np.choose(picked, [each.correct for each in judged]),
        noise_free_correct=np.full(len(picked), np.nan),
        probability_correct=_mixed_numbers(target, own),
        probability_error=_mixed_numbers(target, [each.probability_error for each in judged]),
        z_margin=_mixed_numbers(target, [each.z_margin for each in judged]),
        hits=judged[0].hits,
        blocks=judged[0].blocks,
    )


def _mixed_numbers(target: MixtureTarget, of_members: list[np.ndarray]) -> np.ndarray:
    """Return Σ α_k x_k [N]: the same bits in any order of the members, and x where all have the same x."""
    values = np.asarray(of_members, np.float64)
    terms = np.sort(np.array(target.weights)[:, np.newaxis] * values, axis=0)
    return np.clip(terms.sum(axis=0), values.min(axis=0), values.max(axis=0))  # rounding may leave this range


def _judge_by_draws(
    target: SampledTarget, images: tf.Tensor, labels: tf.Tensor, indices: np.ndarray, seed: tf.Tensor
) -> Judgement:
    classes = tf.cast(labels, tf.int64)
    seed = fold_in(seed, Purpose.JUDGEMENT)
    correct, hits, margins = (values.numpy() for values in _draws(target, images, classes, indices, seed))
    _check_finite(margins)
    noise_free = np.full(len(classes), np.nan)
    if target.noise_free_logits is not None:
        noise_free[:] = _is_largest(target.noise_free_logits(images), classes)
    intervals = [mean_with_interval(column) for column in hits.T]
    mean, deviation = margins.mean(axis=0, dtype=np.float64), margins.std(axis=0, dtype=np.float64)
    return Judgement(
        correct=correct,
        noise_free_correct=noise_free,
        probability_correct=hits.mean(axis=0),
        probability_error=np.array([(number["high"] - number["low"]) / 2 for number in intervals]),
        z_margin=np.divide(mean, deviation, out=mean.copy(), where=deviation > 1e-5 * np.abs(mean)),
        hits=hits.T,
        blocks=indices,
    )


@graph_of_target
def _draws(
    target: SampledTarget, images: tf.Tensor, labels: tf.Tensor, indices: tf.Tensor, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return (whether the first draw is correct [B], hits of the draws [draws, B], their margins [draws, B])."""
    indices = tf.cast(indices, tf.int64)
    if target.has_moments:
        logits, mean, variance = target.logits_with_moments(images, seed, ESTIMATING_DRAWS, indices)
        found = margins.margin(logits, labels)
        hits = probability_of_largest(logits, mean, variance, labels)
    else:
        found = margins.margin(target.logits(images, seed, ESTIMATING_DRAWS, indices), labels)
        hits = found > 0  # equal logits are an error, as in the exact P(correct)
    return found[0] > 0, hits, found


def _is_largest(logits: np.ndarray | tf.Tensor, labels: np.ndarray | tf.Tensor) -> np.ndarray:
    """Return whether the label's logit is larger than all others, [B]: of equal logits no answer is right."""
    largest: np.ndarray = margins.margin(tf.convert_to_tensor(logits), labels).numpy() > 0
    return largest


def _check_finite(values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise NonFiniteError("expected finite logits, received NaN or Inf: the net's logits overflow")


@sharded_graph
def _logits(target: GaussianLogitsTarget, batch: Batch, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return noise-free logits [B, C], logits under one draw per image [B, C], and z-margins [B]."""
    features = target.features(batch.images)
    mean, scale = target.noise_free_logits(features), target.scale_of(features)
    draw = normal_by_index(fold_in(seed, Purpose.JUDGEMENT), batch.indices, (scale.shape[-1],))
    if target.scale_per_image:
        noise = tf.einsum("br,bcr->bc", draw, scale)
    else:
        noise = tf.matmul(draw, scale, transpose_b=True)
    return mean, mean + noise, margins.z_margin(mean, batch.labels, target.difference_scale(features))
