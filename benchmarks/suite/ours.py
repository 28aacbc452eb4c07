"""The worker of wca_tf: attacks, passes and training steps in TensorFlow. Started by main.py."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize
import tensorflow as tf

from benchmarks.suite import nets, plan, training
from benchmarks.suite.process import Job, serve
from wca_tf import Attack, SampledTarget, parse_attack
from wca_tf.attacks import carlini_wagner, n_pixel

# Attacks that do not end early: the same number of steps and generations for every contender.
carlini_wagner.PATIENCE = 10**9
n_pixel.CONVERGED = -1.0


def prepare(job: dict[str, Any]) -> Job:
    """Make the job of one of the kinds below."""
    if job["kind"] == "training":
        return training.prepare(job)
    return KINDS[job["kind"]](nets.net_of(job["net"]), job)


def exported(net: nets.Net, job: dict[str, Any]) -> Job:
    nets.export_net(job["net"])
    return Job(told={"multiply_adds": nets.multiply_adds(net.model)})


def product(net: nets.Net, job: dict[str, Any]) -> Job:
    """Prepare a float32 product of square matrices: the most that this library gets from these threads."""
    matrix = tf.random.stateless_normal([plan.MATMUL, plan.MATMUL], [0, 0])
    return Job(lambda: tf.matmul(matrix, matrix).numpy())


def passes(net: nets.Net, job: dict[str, Any]) -> Job:
    """Prepare as many bare passes of the deterministic net as an attack makes, in one graph: forward, back if asked."""
    images = tf.constant(np.resize(net.images, (job["images"], *net.images.shape[1:])))
    labels, target = tf.constant(np.resize(net.labels, job["images"])), net.noise_free

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
        total = tf.zeros_like(images) if job["gradient"] else tf.zeros([len(images), plan.NUM_CLASSES])
        for number in tf.range(job["passes"]):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)  # as in an attack, one after the other
            # Images that differ from pass to pass, so that none is taken out of the loop.
            total += one(images + plan.EPSILON * tf.cast(number, tf.float32))
        return total

    return Job(lambda: all_passes().numpy())


def attack(net: nets.Net, job: dict[str, Any]) -> Job:
    """Prepare an attack of wca_tf; `draws` 0 is the net without its noise."""
    target = pass_per_draw(net.model) if job.get("repeat") else net.target if job["draws"] else net.noise_free
    return attack_on(target, net, job)


def attack_on(target: Any, net: nets.Net, job: dict[str, Any]) -> Job:
    """Prepare an attack of wca_tf on a target and the first images."""
    made = make_attack(job["attack"], job["units"], max(job["draws"], 1))
    images, labels = net.images[: job["images"]], net.labels[: job["images"]]

    def run() -> np.ndarray:
        return made.run(target, images, labels, plan.EPSILON, np.arange(len(images)), 0).images.numpy()

    return Job(run, lambda result: plan.check_result(job["attack"], result, images))


def pass_per_draw(model: Any) -> SampledTarget:
    """Return the net as one whose noise could be anywhere: one draw's activations at a time, as in peers' loops."""

    def logits(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return model.classifier(model.noise(model.features(images), seed=seed))

    return SampledTarget(logits, draws_per_pass=1)


def make_attack(name: str, units: int, draws: int) -> Attack:
    """Make the attack with so many steps, queries or generations."""
    size = f"relative_step_size={plan.STEP / plan.EPSILON}"
    searched = f"learning_rate={plan.CW_LEARNING_RATE}:initial_constant={plan.CW_CONSTANT}"
    texts = {
        "fgsm": "fgsm",
        "pgd": f"pgd:steps={units}:{size}",
        "pgd_restarts": f"pgd_restarts:restarts={plan.RESTARTS}:steps={units}:{size}",
        "cw": f"cw:steps={units}:searches={plan.CW_SEARCHES}:{searched}",
        "apgd": f"apgd_ce:steps={units}",
        "square": f"square:queries={units}",
        "n_pixel": f"n_pixel:population={plan.POPULATION}:generations={units}",
    }
    return parse_attack(texts[name], eot_samples=draws)


def evolution_by_scipy(net: nets.Net, job: dict[str, Any]) -> Job:
    """Prepare n_pixel's search of one image by SciPy: vectorised, or with a compiled pass for each candidate."""
    target, label, dimensions = net.noise_free, int(net.labels[0]), 2 + net.images.shape[3]

    @tf.function(jit_compile=False, reduce_retracing=True)
    def energy(points: tf.Tensor) -> tf.Tensor:
        images = tf.repeat(tf.constant(net.images[:1]), tf.shape(points)[0], axis=0)
        return tf.nn.softmax(target.noise_free_logits(target.features(n_pixel.paint(images, points))))[:, label]

    def by_scipy(points: np.ndarray) -> Any:
        energies = energy(tf.constant(points.T.reshape(-1, dimensions), tf.float32)).numpy().astype(np.float64)
        return energies if points.ndim == 2 else energies[0]

    def run() -> None:
        result = scipy.optimize.differential_evolution(
            by_scipy,
            [(0, 1)] * dimensions,
            init=np.random.default_rng(0).random((plan.POPULATION, dimensions)),
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

    return Job(run)


KINDS: dict[str, Callable[[nets.Net, dict[str, Any]], Job]] = {
    "export": exported,
    "product": product,
    "passes": passes,
    "attack": attack,
    "scipy": evolution_by_scipy,
}


def pool(which: str) -> int:
    """Return the bytes of TensorFlow's memory, "current" or at the "peak"; "current" starts a new peak."""
    if which == "current":
        tf.config.experimental.reset_memory_stats("CPU:0")
    return tf.config.experimental.get_memory_info("CPU:0")[which]


if __name__ == "__main__":
    serve(prepare, pool)
