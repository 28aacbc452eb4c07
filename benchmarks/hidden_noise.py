"""EoT over a net with noise before each convolution (RSE), beside torchattacks' EOTPGD on an equal net.

    benchmarks/run --smoke --only training --out /tmp/smoke.json     # makes .benchmarks, once
    .venv/bin/python benchmarks/hidden_noise.py [--out FILE.json] [--smoke]

Such noise leaves no pass to share: both libraries pass the net once for each draw and step. First it is checked that
the nets are equal: their logits without noise, and the standard deviation of their noisy logits. Contenders take turns,
in processes of which one computes at a time. Needs 2 idle cores.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.suite.plan import COMPARED, FEATURE_DIM, NUM_CLASSES, PEERS
from benchmarks.suite.process import Job, Worker, serve
from benchmarks.suite.timing import Contender, machine_load, median_ratio, time_in_turns

NET, OURS, THEIRS = "lenet_plus_plus", "wca_tf", "torchattacks EOTPGD"
CELLS = ((1, 10), (1, 50), (32, 10))  # images at a time, draws
STEPS, ROUNDS = 2, 5
# Standard deviations of the noise: of the images, from 0 to 1, and before the other convolutions.
IMAGE_NOISE, HIDDEN_NOISE = 0.2, 0.1
PASSES = 500
MAX_DIFFERENCE = 0.1  # of the noisy logits' deviation over the passes of 8 images, over the larger
MAX_LOGITS = 1e-4  # difference of logits without noise, over the largest


def main() -> None:
    from benchmarks.suite.main import started_workers
    from wca_tf.core import files

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="of every library")
    parser.add_argument("--out", type=Path, help="write the measurement to this JSON file")
    parser.add_argument("--smoke", action="store_true", help="2 draws of 2 images: shows only that it runs")
    arguments = parser.parse_args()
    if not (PEERS / "bin" / "python").exists():
        sys.exit(f"error: expected torch and torchattacks in {PEERS}, which is absent: benchmarks/run makes it")
    load = machine_load()
    with started_workers(arguments.threads, {name: [__file__, name] for name in SERVED}) as workers:
        found: dict[str, Any] = {"load": load, "threads": arguments.threads, "agreement": agree(workers)}
        cells = ((2, 2),) if arguments.smoke else CELLS
        found["cells"] = {f"{images} images, EoT {draws}": cell(workers, images, draws) for images, draws in cells}
    print(json.dumps(found, indent=1))
    if arguments.out:
        files.write_json(arguments.out, found)


def agree(workers: dict[str, Worker]) -> dict[str, float]:
    """Return how far the nets differ; end the run where they are not equal."""
    ours, theirs = (workers[name].ask("prepare", "once", {"kind": "agreement"})["told"] for name in SERVED)
    spread = [ours["deviation"], theirs["deviation"]]
    logits = theirs["logits"] + ours["logits"]  # of the exported net from torch's, and from the one that is timed
    found = {"logits": logits, "deviation": abs(spread[0] - spread[1]) / max(spread)}
    if found["logits"] > MAX_LOGITS or found["deviation"] > MAX_DIFFERENCE:
        sys.exit(f"error: the torch net is not the Keras one: {found}")
    return found


def cell(workers: dict[str, Worker], images: int, draws: int) -> dict[str, Any]:
    """Return each contender's seconds of an image, step and draw, and the median of the rounds' ratios."""
    job = {"kind": "attack", "attack": "pgd", "library": "torchattacks"}
    job |= {"images": images, "units": STEPS, "draws": draws}
    names = {OURS: "ours", THEIRS: "peers"}
    contenders = [Contender(name, worker, job, images * STEPS * draws) for name, worker in names.items()]
    measured = time_in_turns(contenders, workers, ROUNDS)
    if errors := {name: result["error"] for name, result in measured.items() if "error" in result}:
        sys.exit(f"error: {errors}; see {PEERS}/*.log")
    ratio = median_ratio(measured[OURS]["seconds"], measured[THEIRS]["seconds"])
    return {"contenders": measured, "ratio": ratio}


def serve_ours() -> None:
    """Be the worker of wca_tf; its `logits` are the difference from the net that is exported."""
    import keras
    import tensorflow as tf

    from benchmarks.suite import nets, ours
    from wca_tf import NoisyNet, build_backbone
    from wca_tf.defences.rse.net import NoiseBeforeConvolutions

    net = nets.net_of(NET)
    model, shape = net.model, net.images.shape[1:]
    first = [IMAGE_NOISE / std for std in model.pixel_std]
    inner = build_backbone(NET, shape, layers=lambda p: NoiseBeforeConvolutions(p, first, HIDDEN_NOISE))
    bottleneck = keras.layers.Dense(FEATURE_DIM, model.bottleneck_activation)
    noisy = NoisyNet(keras.Model(inner.input, bottleneck(inner.output)), NUM_CLASSES, model.pixel_mean, model.pixel_std)
    noisy.build((None, *shape))
    pairs = ((inner, model.backbone), (bottleneck, model.bottleneck), (noisy.classifier, model.classifier))
    for layer, source in pairs:
        layer.set_weights(source.get_weights())

    def prepare(job: dict[str, Any]) -> Job:
        if job["kind"] == "attack":
            return ours.attack_on(noisy.target(), net, job)
        nets.export_net(NET)
        images = tf.constant(net.images[:COMPARED])
        expected = model.noise_free_logits(images).numpy()
        difference = np.abs(noisy.noise_free_logits(images) - expected).max() / np.abs(expected).max()
        logits = tf.function(noisy.logits, jit_compile=False)
        several = [logits(images, tf.constant([number, 0])).numpy() for number in range(PASSES)]
        return Job(told={"deviation": float(np.std(several, axis=0).mean()), "logits": float(difference)})

    serve(prepare, ours.pool)


def serve_peers() -> None:
    """Be the worker of torchattacks; its `logits` are the difference from the exported net."""
    import torch
    from torch import nn

    from benchmarks.suite import peers
    from benchmarks.suite.torch_nets import TorchNet, differences, to_torch

    class Noise(nn.Module):
        """Gaussian noise of each image, [B, channels, H, W]."""

        def __init__(self, scale: Any) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, maps: torch.Tensor) -> torch.Tensor:
            return maps + self.scale * torch.randn_like(maps)

    def prepare(job: dict[str, Any]) -> Job:
        arrays = peers.arrays_of(NET)
        net = TorchNet(NET, arrays).eval().requires_grad_(False)
        scales = [IMAGE_NOISE / net.pixel_std, *[HIDDEN_NOISE] * 5]
        pairs = [(Noise(scales.pop(0)), layer) if isinstance(layer, nn.Conv2d) else (layer,) for layer in net.backbone]
        net.backbone = nn.Sequential(*(layer for pair in pairs for layer in pair))
        if job["kind"] == "attack":
            return peers.attack_on(net, arrays, job)
        with torch.no_grad():
            passes = torch.stack([net(to_torch(arrays["images"][:COMPARED])) for _ in range(PASSES)])
        return Job(told={"deviation": passes.std(dim=0).mean().item(), "logits": differences(NET, arrays)["logits"]})

    peers.start(prepare)


SERVED = {"ours": serve_ours, "peers": serve_peers}

if __name__ == "__main__":
    SERVED[sys.argv[1]]() if sys.argv[1:2] and sys.argv[1] in SERVED else main()
