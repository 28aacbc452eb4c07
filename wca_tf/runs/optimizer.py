"""The optimizer of a training run, its learning rate over the steps, its loss scale, and the loss."""

from typing import Any

import keras
import tensorflow as tf

from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.runs.orthogonal_muon import OrthogonalMuon

MOMENTUM = 0.9
# float16's normal numbers, 6e-5 to 65,504, then stand for gradients of 6e-8 to 64. Larger ones end the run as diverged.
LOSS_SCALE = {"mixed_float16": 1024.0}


def compile_model(
    model: StochasticClassifier,
    learning_rate: float,
    steps: int,
    schedule: str = "steps",
    precision: str = "float32",
    jit_compile: bool = False,
    optimizer: str = "adam",
    label_smoothing: float = 0.0,
    others_learning_rate: float = 3e-3,
) -> None:
    """Compile `model` with an optimizer and one of `SCHEDULES` over `steps`; in mixed_float16 with a fixed loss scale.

    The loss scale is fixed because a dynamic one skips steps. A resumed run would then not know its position.
    """
    rate, loss_scale = SCHEDULES[schedule](learning_rate, steps), LOSS_SCALE.get(precision)
    descent: keras.optimizers.Optimizer
    if optimizer.startswith("orthogonal"):
        others = keras.optimizers.Adam(SCHEDULES[schedule](others_learning_rate, steps))
        msign = optimizer == "orthogonal_muon"
        descent = OrthogonalMuon(rate, MOMENTUM, msign, others, loss_scale_factor=loss_scale)
    elif optimizer == "nesterov":
        descent = keras.optimizers.SGD(rate, momentum=MOMENTUM, nesterov=True, loss_scale_factor=loss_scale)
    else:
        descent = keras.optimizers.Adam(rate, loss_scale_factor=loss_scale)
    smoothed = SmoothedCrossEntropy(label_smoothing) if label_smoothing else None
    loss = smoothed or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=descent, loss=loss, jit_compile=jit_compile)


@keras.saving.register_keras_serializable("wca_tf")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy of logits [B, C] with labels [B], of which a share is given to all classes alike.

    Args:
        label_smoothing: the share, from 0 to 1 (Szegedy et al., CVPR 2016).
    """

    def __init__(self, label_smoothing: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.label_smoothing = label_smoothing

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        classes = y_pred.shape[-1]
        wanted = tf.one_hot(tf.cast(tf.reshape(y_true, [-1]), tf.int32), classes, dtype=y_pred.dtype)
        wanted = (1 - self.label_smoothing) * wanted + self.label_smoothing / classes
        return tf.nn.softmax_cross_entropy_with_logits(wanted, y_pred)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


def _step_schedule(learning_rate: float, steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
    """Return a rate that is divided by 10 after each third of the steps: the authors' schedule."""
    last_steps = [max(0, round(steps * third / 3) - 1) for third in (1, 2)]  # of the first two thirds, counted from 0
    return keras.optimizers.schedules.PiecewiseConstantDecay(
        last_steps, [learning_rate, learning_rate / 10, learning_rate / 100]
    )


def _cosine_schedule(learning_rate: float, steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
    """Return a rate for short runs: a rise over a fifth of the steps, then a cosine to zero.

    The rise starts at a tenth of `learning_rate` and ends at `learning_rate`.
    """
    warmup = steps // 5
    return keras.optimizers.schedules.CosineDecay(
        learning_rate / 10, steps - warmup, warmup_target=learning_rate, warmup_steps=warmup
    )


def _constant(learning_rate: float, steps: int) -> float:
    return learning_rate


SCHEDULES = {
    "steps": _step_schedule,
    "cosine": _cosine_schedule,
    "constant": _constant,
}
