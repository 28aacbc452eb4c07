"""Certificates of each test image of a net, and attacks that they must withstand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

import wca_tf
from reproduce.study import Study
from wca_tf import EvaluateConfig
from wca_tf.core.arithmetic import tensor_float_32
from wca_tf.gaussian import certificates as proofs

KNOWN_DRAWS = (0, 1)  # seeds of draws that an attack knows


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What the certificates of a net's test images follow from.

    Attributes:
        model: the net.
        images: [N, H, W, channels], from 0 to 1.
        labels: [N].
        logits: [N, C], without noise.
        scale: A [C, R] of the noise of the logits.
    """

    model: Any
    images: np.ndarray
    labels: np.ndarray
    logits: np.ndarray
    scale: np.ndarray

    @classmethod
    @tensor_float_32(on=False)
    def of(cls, study: Study, directory: wca_tf.ModelDirectory, split: str = "test") -> Bounds:
        """Return the bounds of a trained net: of 20 images at --scale=tiny, else of all.

        `split` is "test", "validation", or "train", for 10,000 images that the net was trained on.
        """
        count, data = 20 if study.scale == "tiny" else 0, study.engine.data["tfds_data_dir"]
        if split == "train":
            config = dataclasses.replace(directory.train_config(), tfds_data_dir=data)
            trained_on, _ = wca_tf.load_examples(config, "train").split_validation(
                config.validation_split, config.seed, config.max_train_examples
            )
            examples = trained_on.take(slice(0, count or 10_000))
        else:
            evaluation = EvaluateConfig(split=split, tfds_data_dir=data, num_examples=count)
            examples = wca_tf.load_evaluation_examples(evaluation, directory)
        model = directory.load_best()
        images, target = examples.images[:].astype(np.float32) / 255, cast(Any, wca_tf.adapt(model))
        parts = [np.asarray(model.noise_free_logits(part)) for part in np.array_split(images, len(images) // 500 + 1)]
        logits = np.concatenate(parts).astype(np.float64)
        return cls(model, images, np.asarray(examples.labels), logits, np.asarray(target.logit_scale, np.float64))

    @property
    def weights(self) -> np.ndarray:
        """The class weights, [C, D]."""
        return np.asarray(self.model.class_weights, np.float64)

    def check(self, radii: Sequence[str], attack: str) -> None:
        """Raise InputError where an attack goes below a certificate, as `violations`."""
        if below := [f"{at}: {each}" for at in radii for each in self.violations(at, attack)]:
            raise wca_tf.InputError(f"expected no attack below a certificate, received {'; '.join(below)}")

    @tensor_float_32(on=False)
    def violations(self, radius: str, attack: str) -> list[str]:
        """Return where an attack that knows the draw, or on the net without noise, is below its certificate.

        Each of these nets is deterministic. The first 100 images are attacked.
        """
        target, images, labels = cast(Any, wca_tf.adapt(self.model)), self.images[:100], self.labels[:100]
        nets = {"noise off": target.without_noise()} if self.scale.any() else {"no noise": target}
        if self.scale.any():
            nets |= {f"draw {seed} known": target.with_fixed_draw(wca_tf.make_seed(seed)) for seed in KNOWN_DRAWS}
        ball, found = wca_tf.as_radius(radius), []
        for name, net in nets.items():
            run = wca_tf.parse_attack(f"{attack}:norm={ball.norm}").run
            result = run(net, images, labels, ball.epsilon, np.arange(len(images)), 0)
            clean, attacked = (
                np.asarray(net.noise_free_logits(net.features(each)), np.float64) for each in (images, result.images)
            )
            proved = proofs.deterministic_certificate(clean, labels, self.weights, self._change(radius))
            if below := int(np.sum(proved & (attacked.argmax(axis=1) != labels))):
                found.append(f"{name}, {below} images")
        return found

    def adds(self, radius: str) -> dict[str, float]:
        """Return the certificate less that without noise, in pairs of an image, with its 95 % interval."""
        certificate, _, _, without = self._bounds(radius, self.scale)
        differences = certificate - without
        mean, error = differences.mean(), 1.96 * differences.std() / np.sqrt(len(differences))
        return {"value": float(mean), "low": float(mean - error), "high": float(mean + error)}

    def with_deviation(self, deviation: float, radius: str) -> list[float]:
        """Return the means of the certificate, C1, C2 and that without noise, with isotropic noise on the features."""
        return [float(values.mean()) for values in self._bounds(radius, deviation * self.weights)]

    @tensor_float_32(on=False)
    def rounding(self, radius: str) -> dict[str, float]:
        """Return what float32 adds to the features of a net of orthogonal layers, in l2.

        "bound" is the mean over 500 images of what is proved; "measured" is the largest difference from float64.
        """
        from wca_tf.nets.orthogonal_layers import l2_norms  # it loads TensorFlow

        few, ball = self.images[:500], wca_tf.as_radius(radius).in_l2(self.images.shape[1:])
        bounds = np.concatenate([self.model.rounding(part, ball) for part in np.array_split(few, 5)])
        measured = l2_norms(np.asarray(self.model.features(few), np.float64) - _features_in_float64(self.model, few))
        return {"bound": float(bounds.mean()), "measured": float(measured.max())}

    def _bounds(self, radius: str, scale: np.ndarray) -> tuple[np.ndarray, ...]:
        change, common = self._change(radius), (self.logits, self.labels, self.weights)
        known = proofs.known_draw_certificate(*common, scale, change)
        shift = proofs.gaussian_shift_certificate(*common, scale, change, None)
        without = proofs.deterministic_certificate(*common, change).astype(np.float64)
        return np.maximum(known, shift), known, shift, without

    def _change(self, radius: str) -> float:
        """Return by how much the features change within a radius at most."""
        return float(self.model.lipschitz() * wca_tf.as_radius(radius).in_l2(self.images.shape[1:]))


def _features_in_float64(model: Any, images: np.ndarray) -> np.ndarray:
    """Return the features [N, D] of a net with an orthogonal bottleneck, computed in float64."""
    from wca_tf.nets.inference_copy import inference_copy  # it loads TensorFlow

    normalised = images.astype(np.float64) - np.float32(model.pixel_mean)
    kernel, bias = (np.asarray(weight, np.float64) for weight in model.bottleneck.get_weights())
    return np.asarray(inference_copy(model, "float64").backbone(normalised), np.float64) @ kernel + bias
