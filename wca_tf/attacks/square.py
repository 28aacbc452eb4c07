"""Square Attack (Andriushchenko et al., ECCV 2020): a black box, by random search over squares.

A proposal is kept where the net errs in more draws, and among equal shares of draws by the bounded margin: the mean
margin would follow the draws with the largest logits. On a random net all proposals of an image meet the same draws. A
proposal is then kept for its effect, and not for lucky draws. An attacker with the model can do so; the client of a
server cannot repeat a draw. With `resample_noise` each proposal meets new draws, and its share is compared with that of
the proposal that was kept last. That share is the luckiest so far, so that the search soon stalls.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from wca_tf.attacks.attack import BallAttack
from wca_tf.attacks.gradients import Score, noise_indices, score_images
from wca_tf.attacks.objectives import SHARPNESS, bounded_margin, margin_units, score_logits
from wca_tf.core.lazily import np, tf
from wca_tf.core.options import option
from wca_tf.core.seeds import fold_in, uniform_by_index
from wca_tf.nets.batch import Batch, per_image, replace_rows
from wca_tf.nets.mixture_target import members_of
from wca_tf.nets.targets import Target, active_rows

# The share of pixels is halved after each of these proposals of 10,000. The schedule scales with the number of queries.
HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
WHOLE_SCHEDULE = 10_000
# Random numbers are drawn for so many proposals at a time.
BLOCK = 50
Phase = tuple[int, int, int]  # first proposal, last proposal + 1, side of the square


@dataclasses.dataclass(frozen=True)
class Square(BallAttack):
    """Random search over squares: first on the share of draws in which the net errs, then on the bounded margin."""

    version = 4  # 3 compared proposals by the mean margin over draws

    queries: int = option(5000, "number of proposals for each image", quick=60)
    initial_share: float = option(0.8, "p, the share of pixels that the first squares cover", maximum=1)
    stop_at: float = option(
        0.01,
        "an image is lost, and its search ends, when at most this share of `eot_samples` draws gives its label; other "
        "draws (1,000 where draws are cheap) must confirm it",
        minimum=0,
        maximum=1,
    )
    resample_noise: bool = option(False, "new draws for every proposal, as for the client of a server")

    @property
    def passes(self) -> int:
        return self.queries + 2  # of the image and of the start, for the units of the bounded margin

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        shape = batch.images.shape[1:]
        start = _START[self.norm](fold_in(seed, 0), batch.indices, shape, epsilon)
        best = tf.clip_by_value(batch.images + start, 0.0, 1.0)
        batch = batch._replace(units=_units(self, target, best, batch, seed))
        best_score = _score(self, target, best, batch, seed, tf.constant(0))
        every = phases(self, shape)
        # One loop is traced in seconds, one for each phase in ten times as long; but l2's patterns have static shapes.
        for in_one_loop in [every] if every and self.norm == "linf" else [[phase] for phase in every]:
            best, best_score = _search(self, target, batch, epsilon, seed, best, best_score, in_one_loop)
        return best


def phases(attack: Square, shape: tuple[int, ...]) -> list[Phase]:
    """Return (first proposal, last proposal + 1, side of the square) for each size of squares; the start is query 0."""
    sides = []
    for proposal in range(attack.queries - 1):
        time = proposal * WHOLE_SCHEDULE // attack.queries
        halvings = sum(time > proposals for proposals in HALVED_AFTER)
        sides.append(_side(attack.norm, attack.initial_share / 2**halvings, shape))
    starts = [0, *(i for i in range(1, len(sides)) if sides[i] != sides[i - 1]), len(sides)]
    return [(first + 1, last + 1, sides[first]) for first, last in itertools.pairwise(starts) if first < last]


def _logits(
    attack: Square, target: Target, features: tf.Tensor, batch: Batch, seed: tf.Tensor, query: int | tf.Tensor
) -> tf.Tensor:
    """Return logits [S, B, C] under the draws that a proposal meets."""
    indices = noise_indices(batch, attack.eot_samples)
    return target.logits(features, fold_in(seed, 1, query), attack.eot_samples, indices)


def _units(attack: Square, target: Target, start: tf.Tensor, batch: Batch, seed: tf.Tensor) -> tf.Tensor:
    """Return the units of the bounded margin, [B, S]: the larger of those of the image and of the start.

    Draws that are not met again have no units of their own: with `resample_noise` each has the mean, in a mixture that
    of its member, which is met again.
    """
    logits = (_logits(attack, target, target.features(images), batch, seed, 0) for images in (batch.images, start))
    units = tf.maximum(*(margin_units(each, batch) for each in logits)) / SHARPNESS
    if not attack.resample_noise:
        return units
    of_members = tf.reshape(units, [tf.shape(units)[0], len(members_of(target)), -1])
    return tf.repeat(tf.reduce_mean(of_members, axis=2), tf.shape(of_members)[2], axis=1)


def _score(attack: Square, target: Target, images: tf.Tensor, batch: Batch, seed: tf.Tensor, query: tf.Tensor) -> Score:
    """Return the score of images, with the bounded margin in place of the margin.

    Images that seem lost get the probability under other draws, of which there are more where draws are cheap.
    """
    draws = query if attack.resample_noise else tf.zeros_like(query)
    features = target.features(images)
    logits = _logits(attack, target, features, batch, seed, draws)
    p_correct, _ = score_logits(target, logits, batch)
    seems_lost = p_correct <= attack.stop_at
    if tf.reduce_any(seems_lost):
        most = max(attack.eot_samples, target.cheap_draws)
        tested = score_images(target, features, batch, fold_in(seed, 3, draws), most).p_correct
        p_correct = tf.where(seems_lost, tested, p_correct)
    return Score(p_correct, -bounded_margin(target, features, logits, batch))


def _search(
    attack: Square,
    target: Target,
    batch: Batch,
    epsilon: tf.Tensor,
    seed: tf.Tensor,
    best: tf.Tensor,
    best_score: Score,
    in_one_loop: list[Phase],
) -> tuple[tf.Tensor, Score]:
    """Return images and their score after the proposals of these phases."""
    propose, numbers = _PROPOSALS[attack.norm], 5 + batch.images.shape[3]
    draws = tf.zeros([tf.shape(best)[0], BLOCK, numbers])
    begins, ends, sides = np.array(in_one_loop, np.int32).T
    begin_of, side_of = (tf.constant(np.repeat(values, ends - begins)) for values in (begins, sides))
    query = tf.constant(begins[0])
    while query < ends[-1] and tf.reduce_any(best_score.p_correct > attack.stop_at):
        begin = begin_of[query - begins[0]]
        size = side_of[query - begins[0]] if len(in_one_loop) > 1 else in_one_loop[0][2]
        if (query - begin) % BLOCK == 0:
            draws = uniform_by_index(fold_in(seed, 2, query), batch.indices, (BLOCK, numbers))
        rows = active_rows(target, best_score.p_correct > attack.stop_at)
        part, incumbent, previous = batch.take(rows), tf.gather(best, rows), best_score.take(rows)
        uniforms = tf.gather(draws, rows)[:, (query - begin) % BLOCK]
        proposal = propose(incumbent, part.images, epsilon, size, uniforms)
        new = _score(attack, target, proposal, part, seed, query)
        kept = new.better_for_attacker(previous) & (previous.p_correct > attack.stop_at)
        best = replace_rows(best, rows, tf.where(per_image(kept), proposal, incumbent))
        new = new.where(kept, previous)
        best_score = best_score.replace(rows, new)
        query += 1
    return best, best_score


def _side(norm: str, share: float, shape: tuple[int, ...]) -> int:
    height, width = shape[:2]
    side = max(round(math.sqrt(share * height * width)), 1 if norm == "linf" else 3)
    if norm == "l2" and side % 2 == 0:
        side += 1
    return min(side, height, width)


def _corner(uniform: tf.Tensor, length: int, size: int | tf.Tensor) -> tf.Tensor:
    """Return a square's first row or column, [B], uniform over the places where the square fits."""
    return tf.cast(uniform * tf.cast(length - size + 1, tf.float32), tf.int32)


def _window(uniforms: tf.Tensor, shape: tuple[int, ...], size: int | tf.Tensor) -> tf.Tensor:
    """Return masks [B, H, W, 1] of 0 and 1: a square at the place that two uniform numbers [B, 2] give."""
    inside = []
    for axis in (0, 1):
        first = _corner(uniforms[:, axis], shape[axis], size)[:, tf.newaxis]
        place = tf.range(shape[axis])[tf.newaxis]
        inside.append(tf.cast((place >= first) & (place < first + size), tf.float32))
    return (inside[0][:, :, tf.newaxis] * inside[1][:, tf.newaxis])[..., tf.newaxis]


def _signs(uniforms: tf.Tensor) -> tf.Tensor:
    """Return signs ±1, [B, 1, 1, channels]."""
    return tf.where(uniforms < 0.5, -1.0, 1.0)[:, tf.newaxis, tf.newaxis]


def _linf_start(seed: tf.Tensor, indices: tf.Tensor, shape: tuple[int, ...], epsilon: tf.Tensor) -> tf.Tensor:
    """Return vertical stripes of ±epsilon, one pixel wide."""
    return epsilon * tf.where(uniform_by_index(seed, indices, (1, *shape[1:])) < 0.5, -1.0, 1.0) * tf.ones(shape)


def _linf_proposal(
    incumbent: tf.Tensor, images: tf.Tensor, epsilon: tf.Tensor, size: int | tf.Tensor, uniforms: tf.Tensor
) -> tf.Tensor:
    """Return images with a square of ±epsilon per channel. It is never the square already there: that wastes a query.

    The authors' code ensures this too: it draws signs until they change something. AutoAttack and ART do not.
    """
    window = _window(uniforms[:, :2], images.shape[1:], size) > 0

    def with_square(signs: tf.Tensor) -> tf.Tensor:
        return tf.where(window, tf.clip_by_value(images + epsilon * signs, 0.0, 1.0), incumbent)

    signs = _signs(uniforms[:, 5:])
    unchanged = tf.reduce_all(with_square(signs) == incumbent, axis=[1, 2, 3], keepdims=True)
    return with_square(tf.where(unchanged, _other_signs(signs, uniforms[:, 2]), signs))


def _other_signs(signs: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Return signs other than `signs`, [B, 1, 1, channels]. `uniform` [B] chooses among them.

    All are equally probable, up to 24 channels.
    """
    channels = signs.shape[3]
    choice = 1 + tf.floor(tf.cast(uniform, tf.float64) * (2.0**channels - 1))  # its bits: channels that change sign
    turned = tf.floor(choice[:, tf.newaxis] / 2.0 ** np.arange(channels)) % 2 == 1
    return tf.where(turned[:, tf.newaxis, tf.newaxis], -signs, signs)


def _normalise(perturbation: tf.Tensor, axis: list[int]) -> tf.Tensor:
    norm = tf.sqrt(tf.reduce_sum(tf.square(perturbation), axis=axis, keepdims=True))
    return tf.math.divide_no_nan(perturbation, norm)


def _l2_start(seed: tf.Tensor, indices: tf.Tensor, shape: tuple[int, ...], epsilon: tf.Tensor) -> tf.Tensor:
    """Return a grid of at least 5×5 patterns with random signs, of norm epsilon."""
    height, width, channels = shape
    size = max(min(height, width) // 5, 1)
    tiles = (height // size, width // size)
    signs = tf.where(uniform_by_index(seed, indices, (*tiles, channels)) < 0.5, -1.0, 1.0)
    pattern = np.tile(_pattern(size), tiles)[np.newaxis, ..., np.newaxis]
    whole = tf.repeat(tf.repeat(signs, size, axis=1), size, axis=2) * tf.constant(pattern, tf.float32)
    rest = [height - tiles[0] * size, width - tiles[1] * size]
    whole = tf.pad(whole, [[0, 0], *([r // 2, r - r // 2] for r in rest), [0, 0]])
    return epsilon * _normalise(whole, [1, 2, 3])


def _l2_proposal(
    incumbent: tf.Tensor, images: tf.Tensor, epsilon: tf.Tensor, size: int, uniforms: tf.Tensor
) -> tf.Tensor:
    """Return images in which a first square gets a pattern.

    The pattern takes over the norm that is spent in the first and in a second square, and the unspent norm.
    """
    shape = images.shape[1:]
    delta = incumbent - images
    here, there = _window(uniforms[:, :2], shape, size), _window(uniforms[:, 2:4], shape, size)
    spent = tf.reduce_sum(tf.square(delta), axis=[1, 2, 3], keepdims=True)
    both = tf.reduce_sum(tf.square(delta * tf.maximum(here, there)), axis=[1, 2], keepdims=True)
    budget = tf.sqrt(tf.maximum(tf.square(epsilon) - spent, 0.0) / shape[2] + both)

    upright = tf.constant(_pattern(size), tf.float32)
    pattern = tf.where((uniforms[:, 4] < 0.5)[:, tf.newaxis, tf.newaxis], upright, tf.transpose(upright))
    placed = _place(pattern, uniforms[:, :2], shape, size)[..., tf.newaxis] * _signs(uniforms[:, 5:])
    moved = _normalise(placed + _normalise(delta * here, [1, 2]), [1, 2]) * budget
    delta = delta * (1 - tf.maximum(here, there)) + moved
    return tf.clip_by_value(images + epsilon * _normalise(delta, [1, 2, 3]), 0.0, 1.0)


def _place(pattern: tf.Tensor, uniforms: tf.Tensor, shape: tuple[int, ...], size: int) -> tf.Tensor:
    """Return [B, H, W]: patterns [B, size, size] at the places of `_window`."""
    rows, columns = (
        tf.one_hot(_corner(uniforms[:, axis], shape[axis], size)[:, tf.newaxis] + tf.range(size), shape[axis])
        for axis in (0, 1)
    )
    return tf.einsum("bih,bij,bjw->bhw", rows, pattern, columns)


def _pattern(size: int) -> np.ndarray:
    """Return a pattern [size, size] of norm 1: a hill over the upper half, a valley over the lower.

    Source: Square Attack, section 3.3.
    """
    half = size // 2
    pattern = np.concatenate([_hill(half, size), -_hill(size - half, size)])
    return pattern / np.linalg.norm(pattern)


def _hill(height: int, width: int) -> np.ndarray:
    """Return a hill [height, width] of norm 1: the sum of 1/k² over rectangles that grow about the centre."""
    hill = np.zeros((height, width))
    row, column = height // 2, width // 2
    for k in range(max(row, column) + 1):
        rows = slice(max(row - k, 0), min(row + k + 1, height))
        hill[rows, max(column - k, 0) : min(column + k + 1, width)] += 1 / (k + 1) ** 2
    return hill / max(np.linalg.norm(hill), np.finfo(float).tiny)


_START = {"linf": _linf_start, "l2": _l2_start}
_PROPOSALS = {"linf": _linf_proposal, "l2": _l2_proposal}
