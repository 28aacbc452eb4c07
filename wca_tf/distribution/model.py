"""A keras.Model whose `fit` works with several workers and does not trace a step twice."""

from typing import Any

import keras
import tensorflow as tf

from wca_tf.distribution.replicas import in_multi_worker


class DistributedModel(keras.Model):
    """A model whose `fit` and `evaluate` run under any strategy, with the same results as Keras's own on one device."""

    def make_train_function(self, force: bool = False) -> Any:
        if self.built and not self.optimizer.built:  # else Keras traces the first step twice, to make these variables
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, tf.Tensor]:
        report = super().compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        if in_multi_worker():  # Keras reduces the values of several workers along their first axis
            report = {name: tf.reshape(value, [1]) for name, value in report.items()}
        return report

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Make the variables of compiled metrics.

        Without compiled metrics there is nothing to make, and a batch would be lost. Keras's own method fails with
        several workers (keras issue 20585): it gives whole batches to `strategy.reduce`.
        """
        if self.built and self._compile_metrics is None:
            return
        if not in_multi_worker():
            super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)
            return
        strategy = self.distribute_strategy
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], next(batches))
        with strategy.scope():
            self._symbolic_build(data_batch=data_batch)
