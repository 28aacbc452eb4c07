"""The worker of wca_tf: attacks, passes and training steps in TensorFlow. Started by main.py."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import tensorflow as tf

from benchmarks.suite import nets, training
from benchmarks.suite.checks import check_result
from benchmarks.suite.plan import (
    COMPARED,
    CW_SEARCHES,
    DEVIATION_PASSES,
    EPSILON,
    MATMUL,
    RESTARTS,
    STEP_SHARE,
    cw_parameters,
)
from benchmarks.suite.process import Job, Pool, serve
from wca_tf.attacks import Attack, carlini_wagner, n_pixel, parse_attack
from wca_tf.attacks.n_pixel import NPixel, paint
from wca_tf.nets.sampled_target import SampledTarget

DEVICE = "CPU:0"
# GradientFreeAttacks that do not end early: the same number of steps and generations for every contender.
carlini_wagner.PATIENCE = 10**9
n_pixel.CONVERGED = -1.0


@functools.cache
def net_of(name: str, count: int) -> nets.Net:
    return nets.make_net(name, count)


def prepare(job: dict[str, Any]) -> Job:
    """The job of one of the kinds below."""
    if job["kind"] == "training":
        return training.prepare(job)
    net = net_of(job["net"], job["known"])
    return KINDS[job["kind"]](net, job)


def exported(net: nets.Net, job: dict[str, Any]) -> Job:
    nets.export_net(net, Path(job["path"]))
    return Job(lambda: None, info={"multiply_adds": nets.multiply_adds(net.model)})


def matmul(net: nets.Net, job: dict[str, Any]) -> Job:
    """A float32 product of square matrices: the most that this library gets from these threads."""
    matrix = tf.random.stateless_normal([MATMUL, MATMUL], [0, 0])
    return Job(lambda: tf.matmul(matrix, matrix).numpy(), info={"multiply_adds": MATMUL**3})


def passes(net: nets.Net, job: dict[str, Any]) -> Job:
    """As many bare passes of the deterministic net as an attack makes, in one graph: forward, and back if asked."""
    images = tf.constant(np.resize(net.images, (job["images"], *net.images.shape[1:])))
    labels = tf.constant(np.resize(net.labels, job["images"]))
    target = net.noise_free

    def one(moved: tf.Tensor) -> tf.Tensor:
        if not job["gradient"]:
            return target.noise_free_logits(target.features(moved))
        with tf.GradientTape() as tape:
            tape.watch(moved)
            logits = target.noise_free_logits(target.features(moved))
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tape.gradient(losses, moved)

    @tf.function(jit_compile=False)
    def all_passes() -> tf.Tensor:
        total = tf.zeros_like(images) if job["gradient"] else tf.zeros([len(images), nets.NUM_CLASSES])
        for number in tf.range(job["passes"]):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)  # as in an attack, one after the other
            # Images that differ from pass to pass, so that none is taken out of the loop.
            total += one(images + EPSILON * tf.cast(number, tf.float32))
        return total

    return Job(lambda: all_passes().numpy())


def attack(net: nets.Net, job: dict[str, Any]) -> Job:
    """An attack of wca_tf on the first images; `draws` 0 is the net without its noise."""
    draws, count = job["draws"], job["images"]
    target = net.target if draws else net.noise_free
    if job.get("repeat"):
        target = _pass_per_draw(net)
    made = make_attack(job, max(draws, 1))
    images, labels, indices = net.images[:count], net.labels[:count], np.arange(count)

    def run() -> np.ndarray:
        return made.run(target, images, labels, EPSILON, indices, 0).images.numpy()

    return Job(run, lambda result: check_result(job["attack"], result, images))


def hidden(net: nets.Net, job: dict[str, Any]) -> Job:
    """PGD on the net with noise before each convolution."""
    count = job["images"]
    made, target = make_attack(job, job["draws"]), nets.noise_before_convolutions(net).target()
    images, labels, indices = net.images[:count], net.labels[:count], np.arange(count)

    def run() -> np.ndarray:
        return made.run(target, images, labels, EPSILON, indices, 0).images.numpy()

    return Job(run, lambda result: check_result(job["attack"], result, images))


def hidden_deviation(net: nets.Net, job: dict[str, Any]) -> Job:
    """The standard deviation of noisy logits over passes, its mean over images and classes.

    `difference` is that of the logits without noise from those of the net that was exported, over the largest.
    """
    model, images = nets.noise_before_convolutions(net), tf.constant(net.images[:COMPARED])
    expected = net.model.noise_free_logits(images).numpy()
    difference = np.abs(model.noise_free_logits(images) - expected).max() / np.abs(expected).max()
    logits = tf.function(model.logits, jit_compile=False)
    passes = [logits(images, tf.constant([number, 0])).numpy() for number in range(DEVIATION_PASSES)]
    return Job(lambda: None, info={"deviation": float(np.std(passes, axis=0).mean()), "difference": float(difference)})


def _pass_per_draw(net: nets.Net) -> SampledTarget:
    """The net as one whose noise could be anywhere: one draw's activations in memory at a time, as in peers' loops."""
    model = net.model
    return SampledTarget(
        lambda images, seed: model.classifier(model.noise(model.features(images), seed=seed)), draws_per_pass=1
    )


def make_attack(job: dict[str, Any], draws: int) -> Attack:
    """The attack with the job's `units`: steps, queries or generations."""
    name, units = job["attack"], job["units"]
    texts = {
        "fgsm": "fgsm",
        "pgd": f"pgd:steps={units}:relative_step_size={STEP_SHARE}",
        "pgd_restarts": f"pgd_restarts:restarts={RESTARTS}:steps={units}:relative_step_size={STEP_SHARE}",
        "apgd": f"apgd_ce:steps={units}",
        "square": f"square:queries={units}",
    }
    if name == "n_pixel":
        return NPixel(population=job["population"], generations=units, eot_samples=draws)
    if name == "cw":
        options = {"steps": units, "searches": CW_SEARCHES, **cw_parameters()}
        return parse_attack("cw:" + ":".join(f"{key}={value}" for key, value in options.items()), eot_samples=draws)
    return parse_attack(texts[name], eot_samples=draws)


def evolution_by_scipy(net: nets.Net, job: dict[str, Any]) -> Job:
    """n_pixel's search of one image by SciPy: vectorised, or with a compiled pass for each candidate."""
    target, label = net.noise_free, int(net.labels[0])

    @tf.function(jit_compile=False, reduce_retracing=True)
    def energy(points: tf.Tensor) -> tf.Tensor:
        images = tf.repeat(tf.constant(net.images[:1]), tf.shape(points)[0], axis=0)
        return tf.nn.softmax(target.noise_free_logits(target.features(paint(images, points))))[:, label]

    dimensions = 2 + net.images.shape[3]
    return Job(lambda: minimise(energy, dimensions, job))


def minimise(energy: Callable[..., Any], dimensions: int, job: dict[str, Any]) -> None:
    """SciPy's differential evolution with the attack's parameters; raises when it ends early."""

    def by_scipy(points: np.ndarray) -> Any:
        energies = energy(tf.constant(points.T.reshape(-1, dimensions), tf.float32)).numpy().astype(np.float64)
        return energies if points.ndim == 2 else energies[0]

    result = scipy.optimize.differential_evolution(
        by_scipy,
        [(0, 1)] * dimensions,
        init=np.random.default_rng(0).random((job["population"], dimensions)),
        maxiter=job["units"],
        atol=-1,
        mutation=0.5,
        recombination=0.7,
        polish=False,
        updating="deferred",
        vectorized=job["vectorised"],
        rng=0,
    )
    if result.nit != job["units"]:
        raise RuntimeError(f"SciPy spent {result.nit} generations, not {job['units']}")


KINDS: dict[str, Callable[[nets.Net, dict[str, Any]], Job]] = {
    "export": exported,
    "matmul": matmul,
    "passes": passes,
    "attack": attack,
    "scipy": evolution_by_scipy,
    "hidden": hidden,
    "hidden_deviation": hidden_deviation,
}


def start_peak() -> int:
    """Start a new peak of TensorFlow's memory; returns the bytes in use now."""
    tf.config.experimental.reset_memory_stats(DEVICE)
    return tf.config.experimental.get_memory_info(DEVICE)["current"]


def peak() -> int:
    """Bytes in use at TensorFlow's peak."""
    return tf.config.experimental.get_memory_info(DEVICE)["peak"]


if __name__ == "__main__":
    serve(prepare, Pool(start_peak, peak))
