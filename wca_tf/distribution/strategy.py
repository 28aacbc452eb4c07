"""The devices that share the work: tf.distribute's strategies by name (docs/howto/train.md)."""

import contextlib
import functools
import hashlib
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from wca_tf.core.errors import InputError, LostWorkerError
from wca_tf.core.files import TEMPORARY_PREFIX
from wca_tf.core.keras_graph import all_layers
from wca_tf.distribution.cluster import check_strategy, has_joined, is_chief, join, read_cluster

# The errors that TensorFlow raises in a worker when another worker is gone.
LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


def make_strategy(name: str) -> tf.distribute.Strategy:
    """Return the strategy of a `--strategy`; on one device TensorFlow's default, which distributes nothing.

    Call it before any other operation: memory growth and the cluster's connections are set when TensorFlow starts.

    Raises:
        InputError: a faulty TF_CONFIG, or no TF_CONFIG for "multi_worker".
    """
    gpus = tf.config.list_physical_devices("GPU")
    with contextlib.suppress(RuntimeError):  # TensorFlow has started already, and keeps its setting
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    check_strategy(name)
    if name == "auto":
        cluster = read_cluster()
        several = cluster is not None and cluster.num_workers > 1
        name = "multi_worker" if several else "mirrored" if len(gpus) > 1 else "one_device"
    makers = {"multi_worker": _multi_worker, "mirrored": _mirrored, "one_device": tf.distribute.get_strategy}
    return makers[name]()


@functools.cache  # a process has one connection to its cluster
def _multi_worker() -> tf.distribute.Strategy:
    library = tf.distribute.experimental.CommunicationImplementation
    implementation = library.NCCL if tf.config.list_physical_devices("GPU") else library.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    cluster = read_cluster()
    if cluster:
        join(cluster)
        print(f"waiting for all {cluster.num_workers} workers of TF_CONFIG (Ctrl-C ends it)", flush=True)
    with _interruptible():
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process while TensorFlow waits, when no handler of Python's can run.

    The handler of SIGTERM, which TensorFlow takes and which then does nothing, is put back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # one that Python did not set cannot be put back
                signal.signal(number, handler)


@functools.cache  # the collectives of a second one would clash with those of the first
def _mirrored() -> tf.distribute.Strategy:
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())


def check_shares(strategy: tf.distribute.Strategy, batch_size: int, jit_compile: bool) -> None:
    """Raise InputError for a batch that the replicas cannot share evenly, or for XLA where it fails or is slow."""
    replicas = strategy.num_replicas_in_sync
    if batch_size % replicas:
        raise InputError(
            f"expected a --batch_size that is a multiple of the {replicas} devices, received {batch_size}; "
            "--strategy=one_device uses one of them"
        )
    if jit_compile and (replicas > 1 or not tf.config.list_physical_devices("GPU")):
        raise InputError("expected one GPU, and --strategy=one_device, with --jit_compile; received another machine")


def synchronise_batch_normalisation(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Make every BatchNormalization take its statistics over the global batch; on one device, over the batch."""
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = strategy.num_replicas_in_sync > 1


def distribute_batches(
    strategy: tf.distribute.Strategy, batches: Callable[..., tf.data.Dataset], batch_size: int
) -> tf.data.Dataset | tf.distribute.DistributedDataset:
    """Return batches of `batch_size` images, divided among workers and devices.

    A worker makes only its own rows of each batch, and its devices divide these rows.

    Args:
        strategy: the strategy whose replicas share the batches.
        batches: function (worker=, workers=) -> dataset of this worker's rows of each batch.
        batch_size: the rows of the global batch, a multiple of the number of replicas.
    """
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        whole = batches(worker=0, workers=1)
        gpu = bool(tf.config.list_logical_devices("GPU"))
        return whole.apply(tf.data.experimental.prefetch_to_device("GPU:0")) if gpu else whole

    def for_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        rows = batches(worker=context.input_pipeline_id, workers=context.num_input_pipelines)
        return rows.rebatch(batch_size // replicas, drop_remainder=True)

    return strategy.distribute_datasets_from_function(for_worker)


@contextlib.contextmanager
def one_writer(strategy: tf.distribute.Strategy, path: Path) -> Iterator[Path]:
    """Yield `path` for the chief, and a copy of it for every other worker: all read the same files, and one writes.

    A worker's copy is made before the chief goes on, and removed at the end. Files that TensorFlow makes every worker
    save go into the copy.
    """
    if not _has_workers(strategy):
        yield path
        return
    with contextlib.ExitStack() as stack:
        own = path
        if not is_chief():
            stack.enter_context(contextlib.redirect_stdout(None))
            temporary = stack.enter_context(tempfile.TemporaryDirectory())
            own = Path(temporary) / path.name
            if path.exists():
                ignored = shutil.ignore_patterns("tensorboard", "evaluations", f"{TEMPORARY_PREFIX}*")
                shutil.copytree(path, own, ignore=ignored)
        check_same_everywhere(strategy, lambda: "copied")
        yield own
        check_same_everywhere(strategy, lambda: "done")  # no worker leaves while another may still need it


@contextlib.contextmanager
def lost_worker_is_an_error(path: Path) -> Iterator[None]:
    """Raise LostWorkerError in place of the errors that TensorFlow raises when another worker is gone."""
    try:
        yield
    except LOST as error:
        if not has_joined():
            raise
        raise LostWorkerError(
            f"another worker was lost: start the same command again on every worker, and {path} goes on from what is "
            f"complete in it (TensorFlow's {type(error).__name__})"
        ) from None


def check_same_everywhere(strategy: tf.distribute.Strategy, describe: Callable[[], Any]) -> None:
    """Wait for every worker, and raise InputError on all of them unless `describe()` has the same `repr` on all."""
    if not _has_workers(strategy):
        return
    digest = hashlib.sha256(repr(describe()).encode()).digest()
    number = tf.constant([int.from_bytes(digest[:4], "big", signed=True)])

    @tf.function
    def numbers() -> tf.Tensor:
        return strategy.gather(strategy.run(lambda: tf.identity(number)), axis=0)

    if len(set(numbers().numpy().tolist())) > 1:
        raise InputError("expected the same flags, data and model on every worker, received different ones")


def _has_workers(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
