"""What is measured in a process of its own: memory at its peak, P(correct), the input pipeline. Prints JSON.

.venv/bin/python -m benchmarks.suite.alone '{"kind": "memory", "examples": 100, "draws": 50, "classes": 10}'
.venv/bin/python -m benchmarks.suite.alone '{"kind": "probability", "classes": 10, "examples": 100}'
"""

import json
import sys
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks.suite.process import peak_memory

NET, EPSILON = "lenet_plus_plus", 8 / 255
BATCH = 100
TRAINING_BATCH = 128
FEATURE_DIM = 32  # at least


def main() -> None:
    job = json.loads(sys.argv[1])
    print(json.dumps({"memory": memory, "probability": probability, "pipeline": pipeline}[job["kind"]](job)))


def memory(job: dict[str, Any]) -> dict[str, Any]:
    """Peak bytes of an evaluation of so many examples (FGSM), or of PGD on 100 with so many draws and classes."""
    from benchmarks.suite import nets

    random, classes, count = np.random.default_rng(0), job["classes"], job["examples"]
    model = nets.random_model(NET, classes, max(FEATURE_DIM, classes))
    images = random.integers(0, 256, (count, *nets.IMAGE_SHAPES[NET]), np.uint8)
    started = time.perf_counter()
    if job["evaluates"]:
        _evaluate(model, images, random.integers(0, classes, count), job["draws"])
    else:
        _attack(model, images, random.integers(0, classes, count), job["draws"])
    return {"peak_bytes": peak_memory(), "seconds": time.perf_counter() - started}


def _evaluate(model: Any, images: np.ndarray, labels: np.ndarray, draws: int) -> None:
    from wca_tf.evaluation.config import EvaluateConfig
    from wca_tf.evaluation.runner import evaluate_model

    config = EvaluateConfig(attacks="fgsm", epsilons="8/255", eot_samples=draws, num_examples=0, batch_size=BATCH)
    with tempfile.TemporaryDirectory() as directory:
        results = evaluate_model(model, images, labels, config, directory)
    if results["num_examples"] != len(images):
        raise RuntimeError(f"expected all {len(images)} images to be attacked, received {results['num_examples']}")


def _attack(model: Any, images: np.ndarray, labels: np.ndarray, draws: int) -> None:
    from wca_tf.attacks import parse_attack
    from wca_tf.nets.adapter import adapt

    attack = parse_attack("pgd:steps=2", eot_samples=draws)
    images = (images / 255).astype(np.float32)
    attack.run(adapt(model), images, labels, EPSILON, np.arange(len(labels)), 0)


def probability(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds an image of P(correct), for random logits under correlated noise; labels lead by 0 to 4 deviations."""
    from wca_tf.gaussian.probability import probability_correct

    classes, count = job["classes"], job["examples"]
    random = np.random.default_rng(classes)
    dimensions = max(FEATURE_DIM, classes)
    scale = random.normal(size=(classes, dimensions)) * np.geomspace(1, 0.01, dimensions)
    deviation = np.linalg.norm(scale, axis=1).mean()
    labels = random.integers(0, classes, count)
    mean = random.normal(size=(count, classes)) * deviation
    mean[np.arange(count), labels] = mean.max(axis=1) + random.uniform(0, 4, count) * deviation
    started = time.perf_counter()
    value, error = probability_correct(mean, labels, scale)
    seconds = time.perf_counter() - started
    found = {"mean": float(value.mean()), "largest_error": float(error.max())}
    return {"classes": classes, "examples": count, "seconds_per_image": seconds / count, **found}


def pipeline(job: dict[str, Any]) -> dict[str, Any]:
    """Images a second that the training's input pipeline makes when nothing takes them but a loop."""
    from benchmarks.suite.nets import IMAGE_SHAPES
    from wca_tf.data.batches import training_batches
    from wca_tf.data.examples import Examples

    random, count = np.random.default_rng(0), job["examples"]
    images = random.integers(0, 256, (count, *IMAGE_SHAPES[job["net"]]), np.uint8)
    examples = Examples(images, random.integers(0, 10, count), tuple("0123456789"))
    batches = iter(training_batches(examples, TRAINING_BATCH, 1, 0, 0, job["augmentation"]))
    next(batches)  # which starts it
    started = time.perf_counter()
    made = sum(len(images) for images, *_ in batches)
    seconds = time.perf_counter() - started
    return {"augmentation": job["augmentation"], "images": made, "images_per_second": made / seconds}


if __name__ == "__main__":
    main()
