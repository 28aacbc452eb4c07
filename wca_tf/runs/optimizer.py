"""The optimizer of a training run: Adam, its learning rate over the steps, and its loss scale."""

import keras

from wca_tf.nets.classifier import StochasticClassifier

# float16's normal numbers, 6e-5 to 65,504, then stand for gradients of 6e-8 to 64. Larger ones end the run as diverged.
LOSS_SCALE = {"mixed_float16": 1024.0}


def compile_model(
    model: StochasticClassifier,
    learning_rate: float,
    steps: int,
    schedule: str = "steps",
    precision: str = "float32",
    jit_compile: bool = False,
) -> None:
    """Compile `model` with Adam and one of `SCHEDULES` over `steps`; in mixed_float16 with a fixed loss scale.

    The loss scale is fixed because a dynamic one skips steps. A resumed run would then not know its position.
    """
    model.compile(
        optimizer=keras.optimizers.Adam(
            SCHEDULES[schedule](learning_rate, steps), loss_scale_factor=LOSS_SCALE.get(precision)
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )


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
