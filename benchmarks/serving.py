"""Latency of an export through TensorFlow's C runtime: a WCA-Net's beside the undefended net's.

    .venv/bin/python benchmarks/serving.py [--out FILE.json] [--smoke]
    .venv/bin/python benchmarks/serving.py --table FILE.json      # prints the table of an earlier run

Exports two LeNet++ nets for 28x28x1 images that differ in the noise alone, builds the C program of the tests
(tests/session_client.c), and has it make the same request again and again, on 2 threads, one request at a time, after
some that do not count; processes of the two nets take turns. Prints milliseconds a request (p50, p99) and images per
second for every signature and batch size, and the ratio of the medians of `serving_default` with its bound, met or
missed. Weights and images are random, which changes the cost of `exact` alone: where margins are small beside the
noise, as here, every class may win and it takes longest. `averaged` makes 100 draws. Minutes on 2 idle cores;
--smoke's figures mean nothing.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import session_client

import wca_tf
from benchmarks.suite.timing import machine_load
from wca_tf.core.files import write_json
from wca_tf.nets.bottleneck_net import BottleneckNet

THREADS = 2
BOUND = 1.1
IMAGE_SHAPE, NUM_CLASSES = (28, 28, 1), 10
DRAWS = 100  # of `averaged`
DEFENDED, UNDEFENDED = NETS = ("wca", "undefended")
SIGNATURES = ("serving_default", "noise_free", "averaged", "exact", "image_bytes")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much is measured: requests a process by batch size, and processes of each kind."""

    requests: dict[int, int] = dataclasses.field(default_factory=lambda: {1: 200, 32: 60, 256: 20})
    warm_up: int = 5
    rounds: int = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the measurement to this JSON file")
    parser.add_argument("--table", type=Path, help="only print the table of this JSON file")
    parser.add_argument("--smoke", action="store_true", help="2 requests each: shows only that it runs")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.table.read_text())))
        return
    settings = Settings()
    if arguments.smoke:
        settings = Settings(requests={1: 2, 32: 2}, warm_up=1, rounds=1)
        print("smoke: these figures mean nothing")
    load = machine_load()
    with tempfile.TemporaryDirectory() as directory:
        result = {"smoke": arguments.smoke, "load_at_start": load, **measure(settings, Path(directory))}
    print(table(result))
    for size, ratio in result["ratios"].items():
        verdict = "met" if ratio["met"] else "missed"
        print(f"serving_default, batch {size}: wca / undefended {ratio['value']:.3f}, bound {BOUND}: {verdict}")
    if arguments.out:
        write_json(arguments.out, result)


def measure(settings: Settings, directory: Path) -> dict[str, Any]:
    """Export, build, and time in rounds; returns what goes into the JSON file."""
    program = session_client.build(directory)
    versions = {name: export(name, directory) for name in NETS}
    rows = []
    for size, requests in settings.requests.items():
        for signature in SIGNATURES:
            milliseconds: dict[str, list[float]] = {name: [] for name in NETS}
            for number in range(settings.rounds):
                for name in NETS[:: 1 if number % 2 == 0 else -1]:
                    options = {"requests": requests, "warm_up": settings.warm_up, "quiet": True, "threads": THREADS}
                    served = session_client.serve(
                        program, versions[name], signature, inputs(signature, size), **options
                    )
                    milliseconds[name] += served.milliseconds
            rows.append(
                {"signature": signature, "batch_size": size, **{n: summary(milliseconds[n], size) for n in NETS}}
            )
    medians = {row["batch_size"]: [row[n]["p50_ms"] for n in NETS] for row in rows if row["signature"] == SIGNATURES[0]}
    ratios = {size: defended / undefended for size, (defended, undefended) in medians.items()}
    return {
        "settings": dataclasses.asdict(settings),
        "backbone": "lenet_plus_plus, random weights",
        "image_shape": list(IMAGE_SHAPE),
        "threads": THREADS,
        "averaged_draws": DRAWS,
        "versions": {package: metadata.version(package) for package in ("tensorflow", "keras", "numpy")},
        "latency": rows,
        "ratios": {size: {"value": ratio, "bound": BOUND, "met": ratio <= BOUND} for size, ratio in ratios.items()},
    }


def export(name: str, directory: Path) -> Path:
    """A version of one of the two nets; their backbones have the same weights."""
    keras.utils.set_random_seed(0)
    backbone = wca_tf.build_backbone("lenet_plus_plus", IMAGE_SHAPE)
    model = (BottleneckNet if name == UNDEFENDED else wca_tf.WCANet)(backbone, NUM_CLASSES)
    model.build((None, *IMAGE_SHAPE))
    return wca_tf.export(model, directory / name, image_shape=IMAGE_SHAPE, class_names="0123456789")


def inputs(signature: str, size: int) -> dict[str, Any]:
    images = np.random.default_rng(0).integers(0, 256, (size, *IMAGE_SHAPE), np.uint8)
    if signature == "image_bytes":
        return {"image_bytes": [tf.io.encode_png(images[0]).numpy()] * size}
    return {"images": images, **({"n_samples": np.int32(DRAWS)} if signature == "averaged" else {})}


def summary(milliseconds: list[float], size: int) -> dict[str, float]:
    p50, p99 = np.percentile(milliseconds, [50, 99]).tolist()
    return {"requests": len(milliseconds), "p50_ms": p50, "p99_ms": p99, "images_per_second": 1e3 * size / p50}


def table(result: dict[str, Any]) -> str:
    """The measurement in Markdown, for docs/serving.md."""
    lines = [
        "| signature | batch | WCA-Net: p50, ms | p99, ms | images/s | undefended: p50, ms | p99, ms | images/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["latency"]:
        cells = [f"{row[n]['p50_ms']:.2f} | {row[n]['p99_ms']:.2f} | {row[n]['images_per_second']:.0f}" for n in NETS]
        lines.append(f"| `{row['signature']}` | {row['batch_size']} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
