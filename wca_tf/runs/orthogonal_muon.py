"""OrthogonalMuon: steps of equal length in all directions, along the manifold of orthogonal matrices."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.nets.orthogonal_layers import is_orthogonal

# Of five steps, after which singular values between 0.01 and 1 are between 0.7 and 1.2 (Jordan et al., Muon, 2024).
_STEPS, _QUINTIC = 5, (3.4445, -4.7750, 2.0315)
_NOT_SHARED = (
    *("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_overwrite_frequency"),
    "gradient_accumulation_steps",
)


@keras.saving.register_keras_serializable("wca_tf")
class OrthogonalMuon(keras.optimizers.Optimizer):
    """Trains orthogonal weights on their manifold, and all other weights by another optimizer.

    With G the gradient and W [n, p] with orthonormal columns: M ← momentum M + G, U = G + momentum M, the tangent
    U ← U − ½ W (Wᵀ U + Uᵀ W), then U ← msign(U), which has the singular vectors of U and singular values near 1 (Muon),
    and W ← W − learning_rate U. The constraint of the layer then makes W orthogonal. Wide matrices are transposed.

    Args:
        learning_rate: a number or a schedule: the length of a step in each direction, with msign.
        momentum: from 0 to below 1 (Nesterov's).
        msign: whether to take the sign of the step's singular values.
        others: the optimizer of the weights that are not orthogonal; Adam at 0.003 by default.

    Raises:
        InputError: no orthogonal weights among those to train, when it is built; an option of Keras's optimizers that
            would have to count all weights together, such as `clipnorm`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.03,
        momentum: float = 0.9,
        msign: bool = True,
        others: keras.optimizers.Optimizer | None = None,
        name: str = "orthogonal_muon",
        **options: Any,
    ) -> None:
        if refused := [option for option in _NOT_SHARED if options.get(option)]:
            raise InputError(f"expected OrthogonalMuon without {', '.join(refused)}")
        super().__init__(learning_rate, name=name, **options)
        if not 0 <= momentum < 1:
            raise InputError(f"expected momentum from 0 to below 1, received {momentum}")
        self.momentum = momentum
        self.msign = msign
        self.others = keras.optimizers.get(others) if others else keras.optimizers.Adam(0.003)

    def build(self, variables: Sequence[Any]) -> None:
        """Make the state of these variables; raise InputError where none of them is orthogonal."""
        if self.built:
            return
        orthogonal = [variable for variable in variables if is_orthogonal(variable)]
        if not orthogonal:
            raise InputError("expected orthogonal weights (OrthogonalDense) to train by OrthogonalMuon, received none")
        super().build(orthogonal)
        self.momenta = self.add_optimizer_variables(orthogonal, "momentum")
        self.others.build([variable for variable in variables if not is_orthogonal(variable)])

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Update variables by their gradients; without `trainable_variables`, those that are orthogonal alone."""
        if trainable_variables is None:
            super().apply(grads)
            return
        self.build(list(trainable_variables))
        self.others.loss_scale_factor = self.loss_scale_factor
        pairs = list(zip(grads, trainable_variables, strict=True))
        for apply, chosen in ((super().apply, True), (self.others.apply, False)):
            of_kind = [pair for pair in pairs if is_orthogonal(pair[1]) == chosen]
            apply([gradient for gradient, _ in of_kind], [variable for _, variable in of_kind])

    def update_step(self, gradient: tf.Tensor, variable: Any, learning_rate: Any) -> None:
        """Step an orthogonal matrix along its manifold."""
        matrix, momentum = tf.convert_to_tensor(variable), self.momenta[self._get_variable_index(variable)]
        moved = self.momentum * tf.convert_to_tensor(momentum) + gradient
        self.assign(momentum, moved)
        step = gradient + self.momentum * moved
        if wide := matrix.shape[0] < matrix.shape[1]:
            matrix, step = tf.transpose(matrix), tf.transpose(step)
        step = tangent(matrix, step)
        step = matrix_sign(step) if self.msign else step
        self.assign_sub(variable, tf.cast(learning_rate, step.dtype) * (tf.transpose(step) if wide else step))

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "momentum": self.momentum, "msign": self.msign}
        return {**config, "others": keras.optimizers.serialize(self.others)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "OrthogonalMuon":
        others = keras.optimizers.deserialize(config["others"], custom_objects)
        return super().from_config({**config, "others": others}, custom_objects)


def tangent(matrix: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Return the part of a step [n, p] that is tangent to the matrices with orthonormal columns at `matrix` [n, p]."""
    product = tf.matmul(matrix, step, transpose_a=True)
    return step - 0.5 * tf.matmul(matrix, product + tf.transpose(product))


def matrix_sign(matrix: tf.Tensor) -> tf.Tensor:
    """Return a matrix [n, p] with the same singular vectors, and singular values between 0.7 and 1.2, or near 0."""
    matrix = tf.math.divide_no_nan(matrix, tf.norm(matrix))
    linear, cubic, quintic = _QUINTIC
    for _ in range(_STEPS):
        gram = tf.matmul(matrix, matrix, transpose_a=True)
        matrix = linear * matrix + tf.matmul(matrix, cubic * gram + quintic * tf.matmul(gram, gram))
    return matrix
