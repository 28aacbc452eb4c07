"""MixtureTarget: the interface of a net that answers by one of a few nets, picked at random, to attacks.

What its draws could do is known: a mean over draws is the weighted sum over its members, without sampling.

Shapes: B batch, H W channels of images in [0, 1], K members, S draws of a member, C classes.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import np, tf
from wca_tf.core.seeds import fold_in, uniform_by_index
from wca_tf.nets.sampled_target import SampledTarget

MOST_MEMBERS = 32
SUM_OF_WEIGHTS = 1e-6  # the largest error of their sum


class MixtureTarget:
    """A net that answers each image by member k with probability α_k.

    Args:
        members: the nets. Each is deterministic, or its logits given an image are Gaussian. A mixture among them stands
            for its members.
        weights: α [K], above 0, with sum 1.

    Raises:
        InputError: there is no member, or more than 32; one has other noise, or other classes than the first; the
            weights are not those of a choice.
    """

    per_image_noise = True
    noise_free_logits = None  # there is no such net: a mean of logits is none of the members
    net: Any = None  # what adapter.py found out about the net

    def __init__(self, members: Sequence[Any], weights: Sequence[float]) -> None:
        check_weights(weights, len(members))
        flat = [
            (float(weight) * own, net)
            for weight, member in zip(weights, members, strict=True)
            for own, net in members_of(member)
        ]
        if len(flat) > MOST_MEMBERS:
            raise InputError(f"expected at most {MOST_MEMBERS} nets in a mixture, received {len(flat)}")
        self.members: tuple[Any, ...] = tuple(net for _, net in flat)
        total = math.fsum(weight for weight, _ in flat)
        self.weights = tuple(weight / total for weight, _ in flat)
        for number, member in enumerate(self.members):
            if not hasattr(member, "scale_of"):  # of Gaussian logits
                raise InputError(
                    "expected members of a mixture that are deterministic, or whose only noise is Gaussian and enters "
                    f"after the features, received a net with other noise as number {number}"
                )
        classes = {member.num_classes for member in self.members if member.num_classes is not None}
        if len(classes) > 1:
            raise InputError(f"expected members of a mixture with the same classes, received {sorted(classes)}")
        self.num_classes: int | None = classes.pop() if classes else None

    @property
    def has_noise(self) -> bool:
        """Whether two answers may differ."""
        return len(self.members) > 1 or self.members[0].has_noise

    @property
    def cheap_draws(self) -> int:
        """The number of draws of a member that cost almost nothing; 1 where every member is deterministic."""
        return max(member.cheap_draws for member in self.members)

    @property
    def draws_per_pass(self) -> int:
        """The number of draws of a member that `logits` makes at a time within the memory budget."""
        if self.cheap_draws == 1:
            return 2**30  # they are all alike, and made once
        return max(1, self.members[0].draws_per_pass // len(self.members))

    def with_draw_offset(self, first: int | tf.Tensor) -> MixtureTarget:
        part = copy.copy(self)
        part.members = tuple(member.with_draw_offset(first) for member in self.members)
        return part

    def features(self, images: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return the features of each member, [B, ...]."""
        return tuple(member.features(images) for member in self.members)

    def logits(
        self, features: tuple[tf.Tensor, ...], seed: tf.Tensor, draws: int | tf.Tensor, indices: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return logits [K S, B, C] of all members, member after member; S is 1 where every member is deterministic.

        `mean_of_draws` is their mean. Members share the draws of noise that is inside of them.
        """
        count = draws if self.cheap_draws > 1 else 1
        pairs = zip(self.members, features, strict=True)
        return tf.concat([member.logits(own, seed, count, indices) for member, own in pairs], axis=0)

    def weighted(self, of_members: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the sum of α_k times the tensor of member k; in this order, whatever the batch."""
        products = [weight * each for weight, each in zip(self.weights, of_members, strict=True)]
        return sum(products[1:], products[0])

    def pick(self, seed: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        """Return the number of the member that answers each image, int32 [B], by the seed and the images' numbers."""
        bounds = tf.constant(list(itertools.accumulate(self.weights))[:-1], tf.float32)
        return tf.searchsorted(bounds, uniform_by_index(seed, indices, (1,))[:, 0], side="right")

    def sampled(self) -> SampledTarget:
        """Return the same net by its draws alone: what is not a mean over draws needs them."""

        def of_draws(images: tf.Tensor, seeds: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
            features = self.features(images)

            def one(seed: tf.Tensor) -> tf.Tensor:
                pairs = zip(self.members, features, strict=True)
                logits = [member.logits(own, fold_in(seed, 0), 1, numbers)[0] for member, own in pairs]
                picked = tf.one_hot(self.pick(fold_in(seed, 1), numbers), len(logits))
                chosen = tf.transpose(picked)[..., tf.newaxis] > 0  # no product: 0 × a large number of another net
                return tf.reduce_sum(tf.where(chosen, tf.stack(logits), 0.0), axis=0)

            return tf.map_fn(one, seeds, fn_output_signature=tf.float32)

        def logits(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
            return of_draws(images, seed[tf.newaxis], tf.range(tf.shape(images, tf.int64)[0]))[0]

        target = SampledTarget(logits, 250, logits_of_draws=of_draws, per_image_noise=True)
        target.num_classes, target.net = self.num_classes, self.net
        return target

    def with_fixed_draw(self, seed: tf.Tensor, indices: tf.Tensor | None = None) -> SampledTarget:
        """Return the net under one draw: each image has the member that the seed and the image's number pick."""
        return self.sampled().with_fixed_draw(seed, indices)

    def averaged(self, draws: int) -> SampledTarget:
        """Return the net that answers with the mean logits of `draws` draws."""
        return self.sampled().averaged(draws)


def check_weights(weights: Sequence[float], members: int) -> None:
    """Raise InputError unless there is a weight above 0 for each of 1 to 32 members, and their sum is 1."""
    if not members:
        raise InputError("expected one net or more in a mixture, received none")
    if members > MOST_MEMBERS:
        raise InputError(f"expected at most {MOST_MEMBERS} nets in a mixture, received {members}")
    if len(weights) != members:
        raise InputError(f"expected a weight for each of {members} nets, received {len(weights)} weights")
    if not all(isinstance(weight, int | float | np.number) and 0 < weight < math.inf for weight in weights):
        raise InputError(f"expected weights above 0, received {list(weights)}")
    if abs(math.fsum(weights) - 1) > SUM_OF_WEIGHTS:
        raise InputError(f"expected weights with sum 1, received a sum of {math.fsum(weights):.9g}: {list(weights)}")


def members_of(target: Any) -> list[tuple[float, Any]]:
    """Return the weight and the target of each net that may answer: one, the target itself, but for a mixture."""
    if isinstance(target, MixtureTarget):
        return list(zip(target.weights, target.members, strict=True))
    return [(1.0, target)]


def mean_of_draws(target: Any, values: tf.Tensor) -> tf.Tensor:
    """Return the mean over draws [...] of values [S, ...], one for each of the logits that `target.logits` returned.

    The members of a mixture have their weights in it.
    """
    if not isinstance(target, MixtureTarget):
        return tf.reduce_mean(values, axis=0)
    each = tf.reshape(values, tf.concat([[len(target.members), -1], tf.shape(values)[1:]], axis=0))
    return target.weighted(tf.unstack(tf.reduce_mean(each, axis=1)))
