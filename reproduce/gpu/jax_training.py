"""Train nets of wca_tf with JAX on a GPU, from jobs that exchange.py wrote.

    python jax_training.py DATA.npz JOBS OUT NAME...

TensorFlow is not on the machine with the GPU. This script has the recipe of `bin/train`: the same layers, losses,
attacks of training, learning rates and choice of epoch. Its random numbers differ. It needs JAX and NumPy alone.
"""

import functools
import json
import math
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Job = dict[str, Any]
Weights = dict[str, Any]
NUM_IMAGES = 50_000
MIN_SCALE = 1e-5  # of wca_tf.gaussian and of the noise: the least diagonal of L
JUDGING_DRAWS = {"head": 2000, "inside": 20}


# The net: the layers of a functional Keras backbone, then bottleneck, noise and classifier.


def batch_normalisation(x: Any, p: Weights, layer: Job, training: bool, updates: Weights) -> Any:
    """Return the layer's output; in training, put its new moving averages into `updates`."""
    wide, mean, variance = x.astype(jnp.float32), p["moving_mean"], p["moving_variance"]
    if training:
        mean = wide.mean((0, 1, 2))
        variance = ((wide - mean) ** 2).mean((0, 1, 2))
        for name, new in (("moving_mean", mean), ("moving_variance", variance)):
            updates[f"{layer['name']}/{name}"] = p[name] * layer["momentum"] + new * (1 - layer["momentum"])
    scale = p["gamma"] * lax.rsqrt(variance + layer["epsilon"])
    return (wide * scale + (p["beta"] - mean * scale)).astype(x.dtype)


def convolution(x: Any, kernel: Any, strides: Any, padding: str) -> Any:
    """Return the convolution of maps [B, H, W, channels]."""
    return lax.conv_general_dilated(x, kernel, strides, padding.upper(), dimension_numbers=("NHWC", "HWIO", "NHWC"))


def apply_layer(layer: Job, p: Weights, inputs: list[Any], training: bool, draw: Any, updates: Weights) -> Any:
    """Return the output of a layer; `draw(name, shape)` gives its noise, `None` leaves the noise out."""
    kind, dtype, x = layer["kind"], jnp.dtype(layer["dtype"] or "float32"), inputs[0]
    if kind == "Conv2D":
        return convolution(x, p["kernel"].astype(dtype), layer["strides"], layer["padding"])
    if kind == "PatchWhitening":
        return convolution(x, p["filters"].astype(dtype), (1, 1), "valid") + p["bias"].astype(dtype)
    if kind == "BatchNormalization":
        return batch_normalisation(x, p, layer, training, updates)
    if kind == "ReLU" or (kind == "Activation" and layer["activation"] == "relu"):
        return jax.nn.relu(x)
    if kind == "Add":
        return x + inputs[1]
    if kind == "GlobalAveragePooling2D":
        return x.astype(jnp.float32).mean((1, 2)).astype(dtype)
    if kind == "GlobalMaxPooling2D":
        return x.max((1, 2))
    if kind == "MaxPooling2D":
        window = (1, 2, 2, 1)
        return lax.reduce_window(x, np.array(-np.inf, dtype), lax.max, window, window, "VALID")
    if kind == "ActivationNoise":
        return x if draw is None else x + (jnp.array(layer["scale"]) * draw(layer["name"], x.shape)).astype(dtype)
    if kind == "RandomPixelWeights":
        return x * (p["mean"] if draw is None else p["mean"] + p["deviation"] * draw(layer["name"], x.shape))
    raise ValueError(f"unknown layer {kind}")


def backbone(job: Job, w: Weights, images: Any, training: bool, draw: Any) -> tuple[Any, Weights]:
    """Return the features of normalised images, and the new moving averages."""
    values: Weights = {}
    updates: Weights = {}
    for layer in job["architecture"]["layers"]:
        if layer["kind"] == "InputLayer":
            values[layer["name"]] = images
            continue
        inputs = [values[name].astype(layer["dtype"] or "float32") for name in layer["inputs"]]
        p = {name: w[f"{layer['name']}/{name}"] for name in layer["weights"]}
        values[layer["name"]] = apply_layer(layer, p, inputs, training, draw, updates)
    return values[job["architecture"]["output"]], updates


def features(job: Job, w: Weights, images: Any, training: bool, draw: Any = None) -> tuple[Any, Weights]:
    """Return f(x), or the backbone's features where there is no bottleneck, and the new moving averages."""
    found, updates = backbone(job, w, (images - w["_mean"]) / w["_std"], training, draw)
    found = found.astype(jnp.float32)
    if job["has_bottleneck"]:
        found = found @ w["bottleneck/kernel"] + w["bottleneck/bias"]
        found = jax.nn.relu(found) if job["bottleneck_activation"] == "relu" else found
    return found, updates


def head(job: Job, w: Weights, found: Any) -> Any:
    """Return the logits of features."""
    return (found @ w["classifier/kernel"] + w["classifier/bias"]) / job["temperature"]


def noise_in_head(job: Job) -> bool:
    """Return whether the net has WCA's noise."""
    return job["defence"] == "WCA"


def noise_inside(job: Job) -> bool:
    """Return whether the net has layers with noise in its backbone."""
    return not job["has_bottleneck"]


def scale_tril(job: Job, w: Weights) -> Any:
    """Return L of the noise."""
    vector = w["noise/scale_vector"]
    if job["options"]["covariance"] == "isotropic":
        return jnp.diag(jax.nn.softplus(vector) + MIN_SCALE)
    places = job["triangle"]
    raw = jnp.where(places > 0, vector[jnp.maximum(places - 1, 0)], 0.0)
    diagonal = jnp.diagonal(raw)
    return raw - jnp.diag(diagonal) + jnp.diag(jax.nn.softplus(diagonal) + MIN_SCALE)


def logit_scale(job: Job, w: Weights) -> Any:
    """Return A [C, D], with A Aᵀ the covariance of the logits."""
    return w["classifier/kernel"].T @ scale_tril(job, w) / job["temperature"]


def layer_draw(key: Any, shared: bool = False) -> Callable[[str, Any], Any]:
    """Return the noise of layers by name: of each image, or `shared` by all images."""

    def draw(name: str, shape: tuple[int, ...]) -> Any:
        of_layer = jax.random.fold_in(key, zlib.crc32(name.encode()) >> 1)
        return jax.random.normal(of_layer, (1, *shape[1:]) if shared else shape)

    return draw


# The loss.


def cross_entropy(logits: Any, labels: Any, smoothing: float = 0.0) -> Any:
    """Return the cross-entropy of each row of logits [..., C], with smoothed labels."""
    classes = logits.shape[-1]
    wanted = (1 - smoothing) * jax.nn.one_hot(labels, classes) + smoothing / classes
    return -(wanted * jax.nn.log_softmax(logits)).sum(-1)


def alignment(job: Job, w: Weights) -> Any:
    """Return the alignment term, per class or centred, times its weight."""
    weights, form = w["classifier/kernel"], job["options"]["alignment"]
    if form not in ("per_class", "centred"):
        raise ValueError(f"unknown alignment {form}")
    weights = weights - weights.mean(1, keepdims=True) if form == "centred" else weights
    term = jnp.log(((weights.T @ scale_tril(job, w)) ** 2).sum(1)).sum()
    return job["options"]["alignment_weight"] * term


def regulariser(job: Job, w: Weights) -> tuple[Any, Weights]:
    """Return what the loss has beside the cross-entropy, and its terms by name."""
    kernels = [name for name, trained in job["trainable"].items() if trained and name.endswith("/kernel")]
    squares = sum((w[name] ** 2).sum() for name in kernels if not name.startswith("classifier"))
    norm = (w["classifier/kernel"] ** 2).sum()
    if noise_inside(job):
        pixel_weights = [w[name] for name in w if name.endswith(("/mean", "/deviation"))]
        penalty = job["weight_decay"] / 2 * (squares + norm + sum((each**2).sum() for each in pixel_weights))
        return penalty, {"penalty": penalty}
    if not noise_in_head(job):
        penalty = job["weight_decay"] / 2 * norm + job["backbone_decay"] / 2 * squares
        return penalty, {"penalty": penalty}
    norm = norm + (scale_tril(job, w) ** 2).sum()
    penalty = job["weight_decay"] / 2 * norm + job["backbone_decay"] / 2 * squares
    term = alignment(job, w)
    return penalty - term, {"penalty": penalty, "alignment": term}


def noise_numbers(job: Job, w: Weights, found: Any, labels: Any) -> Weights:
    """Return the sums that give noise_to_margin, and common_noise_share."""
    scale, logits = logit_scale(job, w), head(job, w, found)
    rival = jnp.argmax(jnp.where(jax.nn.one_hot(labels, logits.shape[1]) > 0, -jnp.inf, logits), 1)
    deviations = jnp.sqrt(((scale[:, None] - scale[None]) ** 2).sum(-1))
    rows = jnp.arange(len(labels))
    return {
        "deviation_sum": deviations[labels, rival].sum(),
        "margin_sum": jnp.abs(logits[rows, labels] - logits[rows, rival]).sum(),
        "common_noise_share": (scale.sum(0) ** 2).sum() / ((scale**2).sum() * scale.shape[0]),
    }


# The attack of training: the net is as in evaluation.


def projected_gradient(
    job: Job, w: Weights, images: Any, labels: Any, key: Any, steps: int, step_size: float, draws: int, probe: bool
) -> Any:
    """Return images after steps of PGD on the cross-entropy. `probe`: CTRW's own attack has one draw, this has not."""
    epsilon = job["epsilon"]
    one_draw = job["defence"] == "ConstrainedRandomWeights" and not probe
    fixed = layer_draw(jax.random.fold_in(key, 99), shared=True) if one_draw else None

    def loss(attacked: Any, key: Any) -> Any:
        if not noise_inside(job):
            logits = head(job, w, features(job, w, attacked, False)[0])[None]
            if noise_in_head(job):
                scale = logit_scale(job, w)
                logits = logits + jax.random.normal(key, (draws, len(labels), scale.shape[1])) @ scale.T
            return cross_entropy(logits, labels[None]).mean(0).sum()

        def of_draw(number: Any) -> Any:
            draw = fixed or layer_draw(jax.random.fold_in(key, number))
            return cross_entropy(head(job, w, features(job, w, attacked, False, draw)[0]), labels).sum()

        return of_draw(0) if draws == 1 else lax.map(of_draw, jnp.arange(draws)).mean()

    def one_step(number: Any, attacked: Any) -> Any:
        gradient = jax.grad(loss)(attacked, jax.random.fold_in(key, number + 1))
        moved = attacked + step_size * epsilon * jnp.sign(gradient)
        return jnp.clip(images + jnp.clip(moved - images, -epsilon, epsilon), 0, 1)

    start = jax.random.uniform(jax.random.fold_in(key, 0), images.shape, minval=-epsilon, maxval=epsilon)
    return lax.fori_loop(0, steps, one_step, jnp.clip(images + start, 0, 1))


# Images, the learning rate, the optimizers, and the projections after a step.


def augment(how: str, images: Any, key: Any, epoch: Any, mirrored: Any) -> Any:
    """Return images that are moved and mirrored, as wca_tf.data.batches does."""
    padding, mode = (4, "constant") if how == "crop_flip" else (2, "reflect")
    count, size = images.shape[:2]
    offsets = jax.random.randint(jax.random.fold_in(key, 1), (count, 2), 0, 2 * padding + 1)
    padded = jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)), mode=mode)
    cropped = jax.vmap(lambda image, at: lax.dynamic_slice(image, (at[0], at[1], 0), (size, size, 3)))(padded, offsets)
    by_chance = jax.random.uniform(jax.random.fold_in(key, 2), (count,)) < 0.5
    flipped = by_chance if how == "crop_flip" else mirrored ^ (epoch % 2 == 1)
    return jnp.where(flipped[:, None, None, None], cropped[:, :, ::-1], cropped)


def learning_rate(config: Job, steps: int, number: Any) -> Any:
    """Return the rate of the cosine schedule of wca_tf.runs.optimizer at a step."""
    highest, warmup, at = config["learning_rate"], steps // 5, number.astype(jnp.float32)
    cosine = highest / 2 * (1 + jnp.cos(math.pi * jnp.clip((at - warmup) / (steps - warmup), 0, 1)))
    return jnp.where(at < warmup, highest / 10 + 0.9 * highest * at / warmup, cosine)


def descend(config: Job, w: Weights, g: Weights, m: Weights, v: Weights, number: Any, rate: Any) -> tuple[Weights, ...]:
    """Return new weights and averages: Keras's SGD with Nesterov's momentum, or Keras's Adam."""
    if config["optimizer"] == "nesterov":
        m = {k: 0.9 * m[k] - rate * g[k] for k in g}
        return {k: w[k] + 0.9 * m[k] - rate * g[k] for k in g}, m, v
    step = number.astype(jnp.float32) + 1
    rate = rate * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    m = {k: m[k] + (g[k] - m[k]) * 0.1 for k in g}
    v = {k: v[k] + (g[k] ** 2 - v[k]) * 0.001 for k in g}
    return {k: w[k] - m[k] * rate / (jnp.sqrt(v[k]) + 1e-7) for k in g}, m, v


def project(job: Job, w: Weights) -> Weights:
    """Return the weights after the constraints of CTRW, or of WCA (paper, appendix D)."""
    options = job["options"]
    if job["defence"] == "ConstrainedRandomWeights":
        least = options["min_deviation"]
        for name in [name for name in w if name.endswith("/deviation")]:
            w = {**w, name: jnp.where(w[name] < least, w[name] + least - w[name].min(), w[name])}
    if options.get("regularizer") != "constraint":
        return w
    kernel, factor = w["classifier/kernel"], scale_tril(job, w)
    norms = jnp.sqrt((kernel**2).sum(0))
    values, vectors = jnp.linalg.eigh(factor @ factor.T)
    factor = jnp.linalg.cholesky((vectors * jnp.clip(values, 1e-4, options["max_variance"])) @ vectors.T)
    diagonal = jnp.diagonal(factor)
    raw = factor - jnp.diag(diagonal) + jnp.diag(jnp.log(jnp.expm1(jnp.maximum(diagonal - MIN_SCALE, 1e-6))))
    rows, columns = np.nonzero(job["triangle"])
    vector = jnp.zeros_like(w["noise/scale_vector"]).at[job["triangle"][rows, columns] - 1].set(raw[rows, columns])
    kernel = kernel / jnp.maximum(1, norms / options["max_weight_norm"])
    return {**w, "classifier/kernel": kernel, "noise/scale_vector": vector}


# Training.


class Static:
    """A job as an argument of a compiled function: jobs that differ in seed and name alone share the function."""

    def __init__(self, job: Job) -> None:
        self.job = job
        alike = {k: v for k, v in job.items() if k not in ("name", "triangle", "pixel_mean", "pixel_std")}
        self.key = json.dumps({**alike, "config": {**job["config"], "seed": 0}}, sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.key == other.key


def train_step(job: Job, carry: Any, images: Any, labels: Any) -> tuple[Any, Weights]:
    """Attack a batch, if the job says so, and make a step of the optimizer on it."""
    config = job["config"]
    w, m, v, number, key = carry
    key, of_attack, of_layers, of_head = jax.random.split(key, 4)
    if config["adversarial"] != "none":
        attack = job["attack"]
        step_size, draws = attack["relative_step_size"], attack["eot_samples"]
        attacked = projected_gradient(job, w, images, labels, of_attack, attack["steps"], step_size, draws, probe=False)
        mixed = config["adversarial"] == "ct_at"
        images = jnp.concatenate([images, attacked]) if mixed else attacked
        labels = jnp.concatenate([labels, labels]) if mixed else labels

    def loss(trained: Weights) -> tuple[Any, Any]:
        full = {**w, **trained}
        draw = layer_draw(of_layers) if noise_inside(job) else None
        found, updates = features(job, full, images, True, draw)
        noisy = found
        if noise_in_head(job):
            noisy = found + jax.random.normal(of_head, found.shape) @ scale_tril(job, full).T
        logits = head(job, full, noisy)
        entropy = cross_entropy(logits, labels, config["label_smoothing"]).mean()
        more, terms = regulariser(job, full)
        metrics = {"ce": entropy, "accuracy": (logits.argmax(1) == labels).mean(), "loss": entropy + more, **terms}
        metrics |= noise_numbers(job, full, found, labels) if noise_in_head(job) else {}
        return entropy + more, (updates, metrics)

    trained = {name: w[name] for name, trainable in job["trainable"].items() if trainable}
    gradient, (updates, metrics) = jax.grad(loss, has_aux=True)(trained)
    rate = learning_rate(config, config["epochs"] * job["steps"], number)
    new, m, v = descend(config, trained, gradient, m, v, number, rate)
    return (project(job, {**w, **new, **updates}), m, v, number + 1, key), metrics


@functools.partial(jax.jit, static_argnums=(0,), donate_argnums=(1,))
def train_epoch(
    static: Static, carry: Any, images: Any, labels: Any, order: Any, mirrored: Any, epoch: Any
) -> tuple[Any, Weights]:
    """Train for an epoch, and return the means of its metrics."""
    job, how = static.job, static.job["config"]["augmentation"]
    size, steps = job["config"]["batch_size"], job["steps"]

    def body(carry: Any, rows: Any) -> tuple[Any, Weights]:
        batch = images[rows].astype(jnp.float32) / 255
        batch = augment(how, batch, jax.random.fold_in(carry[4], 7), epoch, mirrored[rows])
        return train_step(job, carry, batch, labels[rows])

    carry, metrics = lax.scan(body, carry, order[: steps * size].reshape(steps, size))
    return carry, {name: (each.sum() if name.endswith("_sum") else each.mean()) for name, each in metrics.items()}


@functools.partial(jax.jit, static_argnums=(0,))
def evaluate(static: Static, w: Weights, images: Any, labels: Any, key: Any) -> Weights:
    """Return means over a batch, and sums of the noise's numbers, under one draw."""
    job = static.job
    draw = layer_draw(key) if noise_inside(job) else None
    found, _ = features(job, w, images.astype(jnp.float32) / 255, False, draw)
    noisy = found
    if noise_in_head(job):
        noisy = found + jax.random.normal(key, found.shape) @ scale_tril(job, w).T
    logits = head(job, w, noisy)
    metrics = {"ce": cross_entropy(logits, labels).mean(), "accuracy": (logits.argmax(1) == labels).mean()}
    return metrics | (noise_numbers(job, w, found, labels) if noise_in_head(job) else {})


@functools.partial(jax.jit, static_argnums=(0, 4, 5))
def robust_accuracy(static: Static, w: Weights, images: Any, labels: Any, steps: int, step_size: float) -> Any:
    """Return the share of right answers over draws under PGD with EoT."""
    job, images = static.job, images.astype(jnp.float32) / 255
    draws = 4 if noise_in_head(job) or noise_inside(job) else 1
    attacked = projected_gradient(job, w, images, labels, jax.random.key(5), steps, step_size, draws, probe=True)
    if noise_inside(job):

        def of_draw(number: Any) -> Any:
            draw = layer_draw(jax.random.fold_in(jax.random.key(8), number))
            return head(job, w, features(job, w, attacked, False, draw)[0])

        logits = lax.map(of_draw, jnp.arange(JUDGING_DRAWS["inside"]))
    else:
        logits = head(job, w, features(job, w, attacked, False)[0])[None]
        if noise_in_head(job):
            scale = logit_scale(job, w)
            logits = logits + jax.random.normal(jax.random.key(6), (JUDGING_DRAWS["head"], 1, scale.shape[1])) @ scale.T
    return (logits.argmax(-1) == labels[None]).mean()


def initial_weights(job: Job, arrays: dict[str, np.ndarray]) -> Weights:
    """Return weights as Keras starts them: those in `arrays`, kernels of convolutions drawn here, and constants."""
    rng = np.random.default_rng(1000 + job["config"]["seed"])
    w: Weights = {"_mean": np.array(job["pixel_mean"]), "_std": np.array(job["pixel_std"])}
    for name, shape in job["shapes"].items():
        last = name.split("/")[-1]
        if name in arrays:
            w[name] = arrays[name]
        elif last != "kernel":
            w[name] = np.full(shape, 1.0 if last in ("gamma", "moving_variance") else 0.0)
        elif job["config"]["backbone"].startswith("airbench"):  # PartlyIdentity
            limit, same = 1 / math.sqrt(np.prod(shape[:-1])), min(shape[2:])
            w[name] = rng.uniform(-limit, limit, shape)
            w[name][..., :same] = 0
            w[name][1, 1, range(same), range(same)] = 1
        else:  # He's normal, truncated at two deviations
            normal = rng.standard_normal(shape)
            while (outside := np.abs(normal) > 2).any():
                normal[outside] = rng.standard_normal(outside.sum())
            w[name] = math.sqrt(2 / np.prod(shape[:-1])) / 0.87962566103423978 * normal
    return {name: jnp.array(each, jnp.float32) for name, each in w.items()}


def validate(static: Static, w: Weights, images: np.ndarray, labels: np.ndarray) -> Weights:
    """Return metrics of validation images, as bin/train names them."""
    parts = []
    for first in range(0, len(labels), 1000):
        some = slice(first, first + 1000)
        key = jax.random.fold_in(jax.random.key(3), first)
        parts.append(evaluate(static, w, jnp.array(images[some]), jnp.array(labels[some]), key))
    means = {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}
    return {f"val_{name}": value for name, value in _ratio(means).items()}


def _ratio(metrics: Weights) -> Weights:
    """Return the metrics with noise_to_margin in place of its two sums."""
    if "margin_sum" in metrics:
        metrics["noise_to_margin"] = metrics.pop("deviation_sum") / metrics.pop("margin_sum")
    return metrics


def overfitted(line: Weights, lines: list[Weights]) -> bool:
    """Return whether an epoch overfitted catastrophically, by the rule of wca_tf.runs.catastrophic_overfitting."""
    robust, own = line["robust_accuracy"], line["trained_attack_accuracy"]
    highest = max((each["robust_accuracy"] for each in lines), default=0.0)
    return not (robust >= highest - 0.2 and (robust >= own - 0.2 or robust >= own / 2))


def train(job: Job, arrays: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray, out: Path) -> None:
    """Train a net; write its best epoch's weights and a line of metrics for each epoch."""
    config, static, seed = job["config"], Static(job), job["config"]["seed"]
    order = np.random.default_rng(seed).permutation(NUM_IMAGES)  # as Examples.split_validation has it
    held = round(config["validation_split"] * NUM_IMAGES)
    training, rng = order[held:], np.random.default_rng(seed)
    w = initial_weights(job, arrays)
    zeros = [{name: jnp.zeros_like(w[name]) for name, trained in job["trainable"].items() if trained} for _ in range(2)]
    carry = (w, *zeros, jnp.array(0), jax.random.key(seed))
    pixels, classes = jnp.array(images[training]), jnp.array(labels[training])
    mirrored = jnp.array(rng.random(len(training)) < 0.5)
    fast = config["adversarial"] != "none" and job["attack"]["steps"] <= 2
    lines: list[Weights] = []
    best, highest = carry[0], -1.0
    for epoch in range(config["epochs"]):
        started, shuffled = time.time(), jnp.array(rng.permutation(len(training)))
        carry, metrics = train_epoch(static, carry, pixels, classes, shuffled, mirrored, jnp.array(epoch))
        line = {"epoch": epoch + 1, **_ratio({name: float(each) for name, each in metrics.items()})}
        if not all(map(math.isfinite, line.values())):
            raise SystemExit(f"{job['name']} diverged in epoch {epoch + 1}: {line}")
        if held:
            line |= validate(static, carry[0], images[order[:held]], labels[order[:held]])
        if fast:
            probed = carry[0], pixels[:256], classes[:256]
            line["robust_accuracy"] = float(robust_accuracy(static, *probed, 10, 0.25))
            attack = job["attack"]["steps"], job["attack"]["relative_step_size"]
            line["trained_attack_accuracy"] = float(robust_accuracy(static, *probed, *attack))
            if overfitted(line, lines):
                print(f"{job['name']}: catastrophic overfitting in epoch {epoch + 1}", flush=True)
                break
        lines.append({**line, "seconds": round(time.time() - started, 2)})
        score = line.get("robust_accuracy", line.get("val_accuracy", float(epoch)))
        if score > highest:
            best, highest = {name: np.array(each) for name, each in carry[0].items()}, score
        print(job["name"], lines[-1], flush=True)
    write(job, best, lines, out)


def write(job: Job, best: Weights, lines: list[Weights], out: Path) -> None:
    """Write weights in the order of job["shapes"]. Kernels that compute in bfloat16 are written in it."""
    lowered = {layer["name"] for layer in job["architecture"]["layers"] if layer["dtype"] == "bfloat16"}
    parts = []
    for name, shape in job["shapes"].items():
        low = len(shape) == 4 and name.split("/")[0] in lowered
        parts.append(np.asarray(jnp.array(best[name]).astype(jnp.bfloat16 if low else jnp.float32)).tobytes())
    (out / f"{job['name']}.bin").write_bytes(b"".join(parts))
    (out / f"{job['name']}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    data, jobs, out, *names = sys.argv[1:]
    with np.load(data) as stored:
        all_images, all_labels = stored["images"], stored["labels"].astype(np.int32)
    for name in names:
        job = json.loads((Path(jobs) / f"{name}.json").read_text())
        arrays = dict(np.load(Path(jobs) / f"{name}.npz"))
        job["triangle"] = arrays.pop("_triangle", None)
        train(job, arrays, all_images, all_labels, Path(out))
