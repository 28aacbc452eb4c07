"""WCAHead: weight-covariance alignment as one Keras layer, at the end of a model of one's own."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.core.keras_graph import has_activation, last_operation, layers_behind, outermost_call, takes_training
from wca_tf.defences.wca.alignment import ALIGNMENTS
from wca_tf.defences.wca.noise import NOISE_LAYERS, GaussianFeatureNoise
from wca_tf.gaussian import covariance as gaussian_covariance
from wca_tf.nets.gaussian_head import (
    FeatureNoise,
    GaussianHead,
    bottleneck_of,
    check_feature_dim,
    check_num_classes,
    keeps_gaussian,
)
from wca_tf.nets.lipschitz import constant_of_layer
from wca_tf.nets.losses import check_takes_logits

# What each form of the alignment term rewards noise along.
REWARDED = {
    "per_class": "the classes’ weights",
    "centred": "the classes’ weights less their mean",
    "pairwise": "differences of the classes’ weights",
    "pairwise_normalised": "differences of the classes’ weights, whatever their length",
}
FEATURES = {"free": None, "normalised": 10.0}  # the length of f(x), if it has one
# What each form of the alignment term rewards noise along.
REWARDED = {
    "per_class": "the classes’ weights",
    "centred": "the classes’ weights less their mean",
    "pairwise": "differences of the classes’ weights",
    "pairwise_normalised": "differences of the classes’ weights, whatever their length",
}


class _Term(keras.regularizers.Regularizer):
    """The head's term of the loss, on one of the two weights that it depends on."""

    def __init__(self, head: "WCAHead", on_kernel: bool) -> None:
        self.head, self.on_kernel = head, on_kernel

    def __call__(self, weight: tf.Tensor) -> tf.Tensor:
        """Return the term on the kernel, or on the noise where the kernel is frozen; 0 on the other weight."""
        classifier = self.head.classifier
        kernel_trains = any(each is classifier.kernel for each in classifier.trainable_weights)
        return self.head.regularisation() if self.on_kernel == kernel_trains else tf.zeros([])


def _check_loss(model: Any, head: "WCAHead") -> None:
    """Raise InputError where a model gives logits of the head to a loss that expects probabilities."""
    loss, outputs = getattr(model, "loss", None), getattr(model, "outputs", None) or [None]
    if isinstance(loss, dict):
        loss = [loss.get(name) for name in getattr(model, "output_names", loss)]
    losses = loss if isinstance(loss, list | tuple) else [loss] * len(outputs)
    for output, each in enumerate(losses):
        found = layers_behind(model, head, output) if output < len(outputs) else None
        if found:
            returns_logits = all(map(keeps_gaussian, found[1]))
        else:  # a model without a graph of layers: its one output counts as logits
            ends_in = functools.partial(has_activation, last_operation(model) if len(losses) == 1 else None)
            returns_logits = len(losses) == 1 and not any(map(ends_in, ("softmax", "sigmoid")))
        if returns_logits:
            check_takes_logits(each)


@keras.saving.register_keras_serializable("wca_tf")
class WCAHead(GaussianHead):
    """The end of a WCA-Net: inputs [B, F] -> logits h(x) = W (f(x) + z) + b, z ~ N(0, L Lᵀ) (paper, section 3).

    f(x) is the output of a bottleneck. `fit` adds −Σ_i ln(w_iᵀ Sigma w_i) + weight_decay/2 (‖W‖² + ‖L‖²) to the loss
    (paper, Eq. 3), in training alone: `val_loss` is without it. The term is a regularizer on the weights, so it counts
    once however often the head is called, and under tf.distribute too. Freeze `bottleneck` and `classifier`, and the
    noise trains alone (paper, E3). Noise is drawn at test time too. The layer is float32 under every policy.

    Compile the model with a loss from logits.

    Args:
        num_classes: C, at least 2.
        feature_dim: D, the width of the bottleneck; at least C, or 2 for figures of the features in a plane.
        covariance: "anisotropic" or "isotropic".
        alignment: the form of the alignment term, one of `alignment.ALIGNMENTS`; "per_class" is the paper's.
        alignment_weight: the weight of the term in the loss, 0 or more.
        weight_decay: weight of the coupled l2 penalty on W and L alone, 0 or more; 0 with the callbacks of
            `constraints`.
        bottleneck_activation: Keras name of the bottleneck's activation, or `None`.
        features: "free", or "normalised": f(x) is scaled to the length 10.
        seed: starts the stream of noise.
        lipschitz_bottleneck: "aol" or "orthogonal" for a bottleneck of these layers, which have norm 1 and no
            activation; `None` for another.

    Call arguments:
        inputs: [B, F].
        seed: optional int32[2]. When it is given, it alone decides the noise, and the stream does not advance.
        training: whether the loss gets the term.

    Raises:
        InputError: an argument out of its range; inputs that are not [B, F]; in training, a loss that expects
            probabilities, or a model whose `call` has no argument `training`.
    """

    noise_layers: Mapping[str, type[GaussianFeatureNoise]] = NOISE_LAYERS

    def __init__(
        self,
        num_classes: int,
        feature_dim: int = 32,
        covariance: str = "anisotropic",
        alignment: str = "per_class",
        alignment_weight: float = 1.0,
        weight_decay: float = 1e-4,
        bottleneck_activation: str | None = None,
        features: str = "free",
        seed: int = 0,
        lipschitz_bottleneck: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{**kwargs, "dtype": "float32"})
        choices = {"covariance": (covariance, self.noise_layers), "alignment": (alignment, ALIGNMENTS)}
        for name, (value, known) in {**choices, "features": (features, FEATURES)}.items():
            if value not in known:
                raise InputError(f"expected {name} among {', '.join(known)}; received {value!r}")
        for name, weight in (("alignment_weight", alignment_weight), ("weight_decay", weight_decay)):
            if not 0 <= weight < math.inf:
                raise InputError(f"expected {name} of 0 or more, received {weight}")
        self.num_classes = check_num_classes(num_classes)
        self.feature_dim = check_feature_dim(feature_dim, self.num_classes)
        self.covariance = covariance
        self.alignment = alignment
        self.alignment_weight = alignment_weight
        self.weight_decay = weight_decay
        self.bottleneck_activation = bottleneck_activation
        self.feature_length = FEATURES[features]
        self.seed = seed
        self.lipschitz_bottleneck = lipschitz_bottleneck
        # Of the call before: whether it was in training, `None` where nobody said, and the model that it was part of.
        self.in_training: bool | None = False
        self._caller: Any = lambda: None
        self.bottleneck = bottleneck_of(self.feature_dim, bottleneck_activation, lipschitz_bottleneck)
        self.noise = self.noise_layers[covariance](seed=seed, name="noise")
        self.noise.regularizer = _Term(self, on_kernel=False)
        on_kernel = _Term(self, on_kernel=True)
        self.classifier = keras.layers.Dense(
            self.num_classes, dtype="float32", name="classifier", kernel_regularizer=on_kernel
        )

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if len(input_shape) != 2 or input_shape[1] is None:
            raise InputError(
                f"expected inputs [B, F] of WCAHead, received {list(input_shape)}: put "
                "keras.layers.GlobalAveragePooling2D() or keras.layers.Flatten() before it"
            )
        widths = {self.bottleneck: input_shape[1], self.noise: self.feature_dim, self.classifier: self.feature_dim}
        for layer, width in widths.items():
            if not layer.built:
                layer.build((None, width))

    def call(self, inputs: tf.Tensor, seed: tf.Tensor | None = None, training: bool | None = None) -> tf.Tensor:
        # Keras asks for the term after the call, in the same training step.
        self.in_training, self._caller = training, outermost_call()
        return super().call(inputs, seed)

    def features(self, inputs: tf.Tensor) -> tf.Tensor:
        features = self.bottleneck(inputs)
        if self.feature_length is None:
            return features
        return self.feature_length * tf.math.l2_normalize(features, axis=1)

    def with_noise(self, features: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        return self.noise(features, seed=seed)

    def logits_of(self, features: tf.Tensor) -> tf.Tensor:
        return self.classifier(features)

    @property
    def logit_scale(self) -> tf.Tensor:
        return gaussian_covariance.logit_scale(tf.convert_to_tensor(self.classifier.kernel), self.noise.scale_tril)

    @property
    def class_weights(self) -> tf.Tensor:
        return tf.transpose(tf.convert_to_tensor(self.classifier.kernel))

    def reward(self) -> tf.Tensor:
        """Return the alignment term (paper, Eq. 3), or the chosen form of it, times its weight: a scalar."""
        kernel = tf.convert_to_tensor(self.classifier.kernel)
        if self.alignment == "per_class":
            term = self.noise.alignment_term(kernel)
        else:
            term = ALIGNMENTS[self.alignment](kernel, self.noise.scale_tril)
        return self.alignment_weight * term

    def squared_norm(self) -> tf.Tensor:
        """Return ‖W‖² + ‖L‖², which weight decay penalises."""
        return tf.reduce_sum(tf.square(self.classifier.kernel)) + self.noise.squared_norm()

    def penalty(self) -> tf.Tensor:
        """Return weight_decay/2 (‖W‖² + ‖L‖²), a scalar."""
        return self.weight_decay / 2 * self.squared_norm()

    def regularisation(self) -> tf.Tensor:
        """Return what the loss of the model that calls the head gets: penalty − reward in training, else 0.

        Raises:
            InputError: the model cannot say that it trains, or its loss expects probabilities.
        """
        model = self._caller()
        if self.in_training is None and model is not None and not takes_training(model):
            raise InputError(
                f"expected a model whose call has the argument `training`, received {type(model).__name__}: without it "
                "nothing aligns the noise. Write call(self, inputs, training=None)"
            )
        if not self.in_training:
            return tf.zeros([])
        _check_loss(model, self)
        return self.penalty() - self.reward()

    def lipschitz(self) -> float:
        if self.feature_length is not None:
            raise InputError("expected free features: those scaled to one length have no known Lipschitz constant")
        return constant_of_layer(self.bottleneck)

    def feature_noise(self) -> FeatureNoise:
        scale_tril = np.asarray(self.noise.scale_tril, np.float64)
        return FeatureNoise(scale_tril, self.covariance, REWARDED[self.alignment])

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["dtype"]  # always float32
        names = ["num_classes", "feature_dim", "covariance", "alignment", "alignment_weight", "weight_decay"]
        names += ["bottleneck_activation", "seed", "lipschitz_bottleneck"]
        features = next(name for name, length in FEATURES.items() if length == self.feature_length)
        return {**config, **{name: getattr(self, name) for name in names}, "features": features}
