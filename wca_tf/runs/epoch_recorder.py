"""The files that a training run writes after each epoch, and the progress that it shows."""

import math
import shlex
import time
from collections.abc import Collection, Iterable
from typing import Any

import keras
import numpy as np

from wca_tf.core import files
from wca_tf.core.errors import DivergedError, InputError
from wca_tf.data.examples import Examples
from wca_tf.distribution.progress import progress_bar
from wca_tf.nets.model_files import save_model
from wca_tf.runs.catastrophic_overfitting import CatastrophicOverfitting
from wca_tf.runs.model_dir import ModelDirectory, best_line


class EpochRecorder(keras.callbacks.Callback):
    """A callback that writes, after each epoch, the best model, a line of metrics, then the backup.

    Each file is written completely or not at all. The backup comes last: a run that is killed before it repeats the
    epoch, and writes the same again. An epoch in which a file of `data` changed is not kept.
    """

    def __init__(
        self,
        directory: ModelDirectory,
        first_epoch: int,
        snapshots: Collection[int] = (),
        data: Iterable[Examples] = (),
    ) -> None:
        super().__init__()
        self.directory = directory
        self.snapshots = snapshots
        self.data = data
        self.lines = _lines_before(directory, first_epoch)
        self.started, self.started_cpu = time.monotonic(), time.process_time()
        self.overfitting: CatastrophicOverfitting | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.started, self.started_cpu = time.monotonic(), time.process_time()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.check_unchanged()
        if self.overfitting and self.overfitting.found:
            return  # the run ends with the epoch before
        values = {name: float(value) for name, value in (logs or {}).items()}
        if not all(map(math.isfinite, values.values())):  # a graph of XLA does not check this
            raise DivergedError(f"training diverged: {values} in epoch {epoch + 1}; try a smaller --learning_rate")
        if not all(np.isfinite(variable).all() for variable in self.model.trainable_variables):  # after the last step
            raise DivergedError(
                f"training diverged: weights of NaN or Inf after epoch {epoch + 1}; try a smaller --learning_rate"
            )
        seconds = {"seconds": time.monotonic() - self.started, "cpu_seconds": time.process_time() - self.started_cpu}
        line = {"epoch": epoch + 1, **values, **{name: round(value, 2) for name, value in seconds.items()}}
        self.lines.append(line)
        if best_line(self.lines) is line:
            save_model(self.model, self.directory.best)
        self.directory.write_metrics(self.lines)
        if epoch + 1 in self.snapshots:
            self._write_snapshot(epoch + 1, line)
        save_model(self.model, self.directory.backup)

    def check_unchanged(self) -> None:
        """Raise InputError where a file of the data is gone or has changed since the run started."""
        for part in self.data:
            part.check_unchanged()

    def _write_snapshot(self, epoch: int, line: dict[str, float]) -> None:
        """Write a directory with the net as it is now; last.keras comes last, and says that the others are complete."""
        kept = self.directory.snapshot(epoch)
        kept.path.mkdir(parents=True, exist_ok=True)
        files.write_json(kept.config, self.directory.read_config())
        kept.write_metrics([line])
        for path in (kept.best, kept.last):
            save_model(self.model, path)


def _lines_before(directory: ModelDirectory, first_epoch: int) -> list[dict[str, float]]:
    """Return the lines of the epochs that a run has behind it; raise InputError where some are lost."""
    lines, expected = directory.read_metrics()[:first_epoch], list(range(1, first_epoch + 1))
    if (received := [line["epoch"] for line in lines]) != expected:
        raise InputError(
            f"expected the epochs 1 to {first_epoch} in {directory.metrics}, as in {directory.backup.name}, received "
            f"{len({*received} & {*expected})} of them; to start again: rm {shlex.quote(str(directory.backup))}"
        )
    return lines


class TrainingProgress(keras.callbacks.Callback):
    """One bar for the whole run, with the time left, and a printed line after each epoch."""

    def __init__(self, steps_per_epoch: int, epochs: int, first_epoch: int) -> None:
        super().__init__()
        self.epochs = epochs
        self.bar = progress_bar(steps_per_epoch * epochs, "steps", initial=steps_per_epoch * first_epoch)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.bar.set_description(f"epoch {epoch + 1}/{self.epochs}", refresh=False)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.bar.update()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        shown = {name: value for name, value in (logs or {}).items() if name != "loss" and name != "val_loss"}
        values = "  ".join(f"{name} {float(value):.4g}" for name, value in shown.items())
        self.bar.write(f"epoch {epoch + 1}/{self.epochs}  {values}")
