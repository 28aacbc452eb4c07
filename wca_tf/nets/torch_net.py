"""TorchNet: a PyTorch module as functions of NumPy arrays. The module's owner has imported PyTorch."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from wca_tf.core.errors import InputError, one_line
from wca_tf.core.files import sha256_of_arrays
from wca_tf.core.lazily import np
from wca_tf.nets.function_net import FunctionNet

KEPT = 2  # graphs of calls: the bounded margin asks for the first images between a call and its gradient
_lock = threading.RLock()  # PyTorch's generators belong to the process


def is_torch(model: Any) -> bool:
    """Return whether a model is a module of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


class TorchNet(FunctionNet):
    """A PyTorch module of images [B, channels, H, W], as functions of images [B, H, W, channels].

    The net is that of `module.eval()`. A module that is in that mode already is asked as it is, with the layers on that
    its owner has set to `train()` (Monte Carlo dropout). Noise is that of PyTorch's generators, which are seeded for
    each call; their states, and the modes of the module's layers, are afterwards as before. The graphs of the last two
    calls are kept for their gradients.

    Args:
        module: the module; it stays on its device.
        image_shape: (H, W, channels).
        training: True sets all layers to `train()` in each call, False all to `eval()`.

    Raises:
        InputError: the module takes no such images; it returns no tensor, or one through which no gradient passes; a
            call changes its buffers, as batch normalisation in the mode `train()` does.
    """

    framework = "PyTorch"
    by_framework = True

    def __init__(self, module: Any, image_shape: tuple[int, ...], training: bool | None = None) -> None:
        self.module, self._torch, self._image_shape = module, sys.modules["torch"], image_shape
        self._mode = False if training is None and module.training else training
        self._kept: dict[int, tuple[Any, Any]] = {}
        self._calls = 0
        if len(image_shape) == 3 and image_shape[0] < min(image_shape[1:]):
            raise InputError(
                f"expected images [B, H, W, channels], received images of shape {image_shape}: give "
                "np.moveaxis(images, 1, -1); the module gets them with channels first"
            )
        self._name_random_layers()
        super().__init__(self._logits, self._pullback, self._num_classes(image_shape))
        self.lock = _lock

    @property
    def name(self) -> str:
        """The name of the module's class."""
        return type(self.module).__name__

    def digest(self) -> str:
        """Return the SHA-256 of the module's description and of its weights and buffers."""
        state = self.module.state_dict()
        own = f"{self.module} {self._mode} {self.independent_noise} {list(state)}"
        described = np.frombuffer(own.encode(), np.uint8)
        tensors = (each for each in state.values() if isinstance(each, self._torch.Tensor))
        return sha256_of_arrays(described, *(self._as_array(each) for each in tensors))

    def without_noise(self) -> FunctionNet | None:
        return TorchNet(self.module, self._image_shape, training=False) if self.random_on else None

    def forward(self, images: np.ndarray, seed: int) -> tuple[Any, int]:
        if len(self._kept) == KEPT:  # before the next is made: each may take gigabytes
            del self._kept[min(self._kept)]
        self._calls += 1
        self._kept[self._calls] = _, outputs = self._graph(images, seed)
        return self._as_array(outputs), self._calls

    def backward(self, images: np.ndarray, seed: int, upstream: np.ndarray, call: int) -> Any:
        pixels, outputs = self._kept.pop(call) if call in self._kept else self._graph(images, seed)
        given = self._torch.tensor(upstream).to(outputs)
        [gradient] = self._torch.autograd.grad(outputs, pixels, given, allow_unused=True)
        return np.zeros_like(images) if gradient is None else self._as_array(gradient.permute(0, 2, 3, 1))

    def _logits(self, images: np.ndarray, seed: int) -> Any:
        """Return the outputs [B, C], and keep no graph."""
        with self._torch.no_grad():
            return self._as_array(self._answer(self._as_pixels(images), seed))

    def _pullback(self, images: np.ndarray, seed: int, upstream: np.ndarray) -> Any:
        return self.backward(images, seed, upstream, self.forward(images, seed)[1])

    def _graph(self, images: np.ndarray, seed: int) -> tuple[Any, Any]:
        """Return the images as the module gets them, and its outputs with the graph for a gradient."""
        with self._torch.enable_grad():
            pixels = self._as_pixels(images).requires_grad_()
            outputs = self._answer(pixels, seed)
        if not outputs.requires_grad:
            raise InputError(
                "expected logits through which a gradient passes, received a tensor without one: is forward under "
                "torch.no_grad()? wca_tf.FunctionNet(logits, None, classes) meets attacks without gradients"
            )
        return pixels, outputs

    def _answer(self, pixels: Any, seed: int) -> Any:
        with _lock, self._seeded(seed), self._in_mode():
            outputs = self.module(pixels)
        if not isinstance(outputs, self._torch.Tensor):
            received = type(outputs).__name__
            raise InputError(f"expected a module that returns logits [B, C] in one tensor, received {received}")
        return outputs

    def _as_pixels(self, images: np.ndarray) -> Any:
        """Return images as the module gets them, channels first, where and in what its weights are."""
        return self._torch.tensor(images).permute(0, 3, 1, 2).contiguous().to(**self._placement())

    def _placement(self) -> dict[str, Any]:
        """Return the device and the float type of the module's weights."""
        tensors = [*self.module.parameters(), *self.module.buffers()]
        floats = [each for each in tensors if each.is_floating_point()]
        return {"device": floats[0].device, "dtype": floats[0].dtype} if floats else {"dtype": self._torch.float32}

    @contextlib.contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Seed PyTorch's generators, and restore their states at the end."""
        cuda = self._torch.cuda
        devices = list(range(cuda.device_count())) if cuda.is_initialized() else []
        with self._torch.random.fork_rng(devices):
            self._torch.manual_seed(seed)
            yield

    @contextlib.contextmanager
    def _in_mode(self) -> Iterator[None]:
        """Set the mode of all layers, where it is not theirs, and restore the mode of each at the end."""
        modes = [(layer, layer.training) for layer in self.module.modules()]
        if self._mode is not None:
            self.module.train(self._mode)
        try:
            yield
        finally:
            for layer, mode in modes:
                layer.training = mode

    def _name_random_layers(self) -> None:
        dropout = [
            (f"{name} ({type(layer).__name__})", layer)
            for name, layer in self.module.named_modules()
            if "Dropout" in type(layer).__name__ and getattr(layer, "p", 1) != 0
        ]
        with self._in_mode():
            self.random_on = tuple(name for name, layer in dropout if layer.training)
        self.random_off = tuple(name for name, _ in dropout if name not in self.random_on)

    def _num_classes(self, image_shape: tuple[int, ...]) -> int:
        """Return C, from the outputs of a first call; raise InputError as the class does."""
        before = [(buffer, buffer.detach().clone()) for buffer in self.module.buffers()]
        try:
            _, outputs = self._graph(np.zeros((2, *image_shape), np.float32), 0)
        except InputError:
            raise
        except Exception as error:  # a user's module may raise anything
            raise InputError(
                f"expected a module of images {(2, image_shape[-1], *image_shape[:-1])}, channels first; it raised "
                f"{type(error).__name__}: {one_line(error)}"
            ) from error
        changed = [(buffer, old) for buffer, old in before if not self._torch.equal(buffer, old)]
        for buffer, old in changed:
            buffer.copy_(old)
        if changed:
            raise InputError(
                "expected a net that does not learn from the images it answers, received one whose calls change its "
                "buffers: is batch normalisation in the mode train()?"
            )
        if outputs.ndim != 2:
            raise InputError(f"expected a module that returns logits [B, C], received shape {tuple(outputs.shape)}")
        return int(outputs.shape[1])

    def _as_array(self, tensor: Any) -> np.ndarray:
        tensor = tensor.detach()
        return np.ascontiguousarray((tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy())
