"""The nets of nets.py in torch, from the weights that it exported, images [B, channels, H, W]; for the peers alone."""

from typing import Any

import numpy as np
import torch
from torch import nn

Arrays = dict[str, np.ndarray]


class TorchNet(nn.Module):
    """A WCA-Net; where it is `noisy`, with a draw for each image.

    Attributes:
        forward_images: how many images went through it, for an account of the work done.
    """

    def __init__(self, name: str, arrays: Arrays, noisy: bool = False) -> None:
        super().__init__()
        for key in ("pixel_mean", "pixel_std"):
            self.register_buffer(key, torch.tensor(arrays[key], dtype=torch.float32).reshape(1, -1, 1, 1))
        self.register_buffer("scale_tril", torch.tensor(arrays["scale_tril"]))
        self.backbone = {"lenet_plus_plus": lenet_plus_plus, "resnet18": resnet18}[name]()
        self.bottleneck = nn.Sequential(
            nn.Linear(*arrays["dense/0"].shape), nn.ReLU() if arrays["rectified"] else nn.Identity()
        )
        self.classifier = nn.Linear(*arrays["dense/2"].shape)
        load_layers(self, arrays)
        self.noisy = noisy
        self.forward_images = 0

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return self.bottleneck(self.backbone((images - self.pixel_mean) / self.pixel_std))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.features(images)
        if self.noisy:
            features = features + torch.randn_like(features) @ self.scale_tril.T
        self.forward_images += len(images)
        return self.classifier(features)


def lenet_plus_plus() -> nn.Sequential:
    """Make six 5×5 convolutions, each with a PReLU per channel."""
    layers: list[nn.Module] = []
    channels = 1
    for filters in (32, 32, 64, 64, 128, 128):
        layers += [nn.Conv2d(channels, filters, 5), nn.PReLU(filters)]
        channels = filters
    return nn.Sequential(*layers, nn.Flatten())


def resnet18() -> nn.Sequential:
    """Make a 3×3 stem, then four stages of two basic blocks, then the mean over positions."""
    layers: list[nn.Module] = [convolution(3, 64, 1), nn.ReLU()]
    channels = 64
    for filters in (64, 128, 256, 512):
        layers += [BasicBlock(channels, filters, 1 if filters == 64 else 2), BasicBlock(filters, filters, 1)]
        channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def convolution(channels: int, filters: int, strides: int, size: int = 3) -> nn.Sequential:
    """Make a convolution and batch normalisation, padded as Keras's "same": with a stride, at the end alone."""
    pad = nn.ZeroPad2d((0, 1, 0, 1)) if strides > 1 and size > 1 else nn.Identity()
    layer = nn.Conv2d(channels, filters, size, strides, size // 2 if strides == 1 else 0, bias=False)
    return nn.Sequential(pad, layer, nn.BatchNorm2d(filters, eps=1e-5, momentum=0.1))


class BasicBlock(nn.Module):
    """Two convolutions beside the input, or beside its 1×1 convolution; layers are made in the Keras net's order."""

    def __init__(self, channels: int, filters: int, strides: int) -> None:
        super().__init__()
        self.shortcut = nn.Identity() if channels == filters else convolution(channels, filters, strides, size=1)
        self.inner = nn.Sequential(convolution(channels, filters, strides), nn.ReLU(), convolution(filters, filters, 1))
        self.relu = nn.ReLU()

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        return self.relu(self.inner(maps) + self.shortcut(maps))


def load_layers(net: nn.Module, arrays: Arrays) -> None:
    """Give every layer its weights, by the number it has among its kind."""
    kinds = {"convolution": nn.Conv2d, "prelu": nn.PReLU, "norm": nn.BatchNorm2d, "dense": nn.Linear}
    for name, kind in kinds.items():
        layers = [layer for layer in net.modules() if isinstance(layer, kind)]
        tensors = [
            getattr(each, key, None) for each in layers for key in ("weight", "bias", "running_mean", "running_var")
        ]
        for number, tensor in enumerate(tensor for tensor in tensors if tensor is not None):
            values = arrays[f"{name}/{number}"]
            values = values.transpose(3, 2, 0, 1) if values.ndim == 4 else values.T
            tensor.data.copy_(torch.tensor(values.reshape(tensor.shape)))


def to_torch(images: np.ndarray) -> torch.Tensor:
    return torch.tensor(images).permute(0, 3, 1, 2).contiguous()


def to_keras(images: torch.Tensor) -> np.ndarray:
    return images.detach().permute(0, 2, 3, 1).numpy()


def differences(name: str, arrays: Arrays) -> dict[str, float]:
    """Compare the net with the Keras net: largest differences of logits and gradients, over the largest."""
    net = TorchNet(name, arrays).eval()
    images = to_torch(arrays["images"][: len(arrays["logits"])]).requires_grad_(True)
    features = net.features(images)
    logits = net.classifier(features)
    margins = logits[:, arrays["labels"][0]] - logits[:, 0]
    received: dict[str, Any] = {
        "logits": logits.detach().numpy(),
        "noisy_logits": net.classifier(features + net.scale_tril @ torch.tensor(arrays["draw"])).detach().numpy(),
        "gradient": to_keras(torch.autograd.grad(margins.sum(), images)[0]),
    }
    return {key: float(np.abs(each - arrays[key]).max() / np.abs(arrays[key]).max()) for key, each in received.items()}
