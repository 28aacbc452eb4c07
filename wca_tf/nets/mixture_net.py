"""MixtureNet: a random ensemble of nets of any framework, whose P(correct) is exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import np
from wca_tf.nets.mixture_target import MixtureTarget, check_weights
from wca_tf.nets.targets import AnyTarget


class MixtureNet:
    """A net that answers each image by one of a few nets, picked at random: a random ensemble.

    P(correct) is Σ α_k 1[net k is right], or Σ α_k P_k where a net has noise after its features. So no draw decides a
    number, and an attack follows the exact mean over the nets (Dbouk & Shanbhag, ICML 2022, judge so).

    Args:
        nets: 1 to 32 classifiers of the same images and classes, each as `adapt` takes it. Each is deterministic, or
            its only noise is Gaussian and enters after the features. The options of `adapt` and `evaluate`, such as
            `pixel_range`, are for all of them; give `adapt(net, ...)` in place of a net that needs its own.
        weights: α, the probability of each net, above 0, with sum 1; equal when absent.

    Raises:
        InputError: there are no nets, or more than 32; the weights are not those of a choice.

    Examples:
        >>> import wca_tf
        >>> wca_tf.MixtureNet([lambda images: images[:, 0, 0]] * 2, [0.9, 0.1]).weights
        (0.9, 0.1)
    """

    def __init__(self, nets: Sequence[Any], weights: Sequence[float] | None = None) -> None:
        if not isinstance(nets, list | tuple):
            raise InputError(f"expected a list of nets, received {type(nets).__name__}")
        chances = [1 / max(len(nets), 1)] * len(nets) if weights is None else _as_list(weights)
        check_weights(chances, len(nets))
        self.nets, self.weights = tuple(nets), tuple(chances)
        self._target: MixtureTarget | None = None

    def target_of(self, targets: Sequence[AnyTarget]) -> MixtureTarget:
        """Return the mixture of the targets of the nets, the same object for the same targets: attacks trace once."""
        if self._target is None or list(map(id, self._target.net.targets)) != list(map(id, targets)):
            self._target = AdaptedMixture(targets, self.weights).target
        return self._target


class AdaptedMixture:
    """What is known about the nets of a mixture.

    Attributes:
        targets: those of the nets as they were given.
        target: the mixture for attacks.
        headed: `None`: a mixture has no head.
    """

    headed = None

    def __init__(self, targets: Sequence[AnyTarget], weights: Sequence[float]) -> None:
        self.targets = tuple(targets)
        self.target = MixtureTarget(targets, weights)
        self.target.net = self

    def check_pixels(self, images: np.ndarray, labels: np.ndarray) -> str:
        """Do what `check_pixels` of adapter.py says, for each net."""
        notes: dict[str, None] = {}
        for number, target in enumerate(self.targets):
            try:
                notes[target.net.check_pixels(images, labels) if target.net else ""] = None
            except InputError as error:
                raise InputError(f"net {number} of the mixture: {error}") from None
        return "; ".join(filter(None, notes))

    def describe(self) -> dict[str, Any]:
        """Return what was decided, for results.json."""
        each = [target.net.describe() if target.net else _of_target(target) for target in self.targets]
        ranges = {tuple(one["pixel_range"]) for one in each if one["pixel_range"]}
        random = {state: [name for one in each for name in one["random_layers"][state]] for state in ("on", "off")}
        weights = self.target.weights
        chances = "equal" if len(set(weights)) == 1 else ", ".join(f"{weight:.4g}" for weight in weights)
        notes = [f"each image is answered by one of {len(weights)} nets, with probabilities {chances}"]
        notes += [f"net {number}: {one['note']}" for number, one in enumerate(each) if one["note"]]
        return {
            "class": f"MixtureNet of {_different(one['class'] for one in each)}",
            "framework": _different(one["framework"] for one in each),
            "pixel_range": list(ranges.pop()) if len(ranges) == 1 else None,
            "outputs": _different(one["outputs"] for one in each),
            "random_layers": {state: list(dict.fromkeys(names)) for state, names in random.items()},
            "note": "; ".join(notes),
        }


def _as_list(weights: Any) -> list[Any]:
    """Return weights [K] as numbers of Python; raise InputError for anything that has no order or no length."""
    try:
        values = np.asarray(weights)
    except ValueError:  # lists of several lengths
        values = np.zeros(())
    if values.ndim != 1:
        raise InputError(f"expected a flat list of weights, one for each net, received {type(weights).__name__}")
    every: list[Any] = values.tolist()
    return every


def _of_target(target: AnyTarget) -> dict[str, Any]:
    """Return the description of a net that was given as a target."""
    return {
        "class": type(target).__name__,
        "framework": "TensorFlow",
        "pixel_range": [0, 1],
        "outputs": "logits",
        "random_layers": {"on": [], "off": []},
        "note": "",
    }


def _different(texts: Any) -> str:
    """Return the different texts in order, with a comma between two."""
    return ", ".join(dict.fromkeys(texts))
