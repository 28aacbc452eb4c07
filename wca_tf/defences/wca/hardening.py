"""harden(model): a Keras classifier with its last layer replaced by a WCA-Net's bottleneck, noise and classifier."""

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from wca_tf.defences.wca.net import WCANet
from wca_tf.errors import InputError, one_line
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.seeds import keras_seed


def harden(
    model: keras.Model,
    num_classes: int | None = None,
    feature_dim: int = 32,
    covariance: str = "anisotropic",
    pixel_mean: tuple[float, ...] = (0.0,),
    pixel_std: tuple[float, ...] = (1.0,),
    weight_decay: float = 1e-4,
    seed: int = 0,
) -> BottleneckNet:
    """A WCANet on a copy of a Keras classifier's layers, weights included; `model` stays as it is.

    Everything before the last layer with classes (a Dense, or a 1×1 Conv2D on a single position, as in MobileNet)
    becomes the backbone; a softmax behind it goes. With as many classes as before, the net starts where the classifier
    is: without noise the logits are the same, and the noise adds an independent N(0, 1) to each. (A `feature_dim` of 2
    with more classes than that starts from a projection of them.)

    Args:
        model: functional or sequential, built, trained or not: float images [B, H, W, channels] -> [B, C] logits or
            softmax, or [B, 1] for two classes, the second of which has the logit.
        num_classes: None for those of `model`; another number starts with a new classifier.
        covariance: as for WCANet; or "none", for a net without noise to compare with.
        feature_dim, weight_decay, seed: as for WCANet; the new weights depend on the seed alone.
        pixel_mean, pixel_std: what turns images in [0, 1] into those that `model` takes, (images − mean) / std, per
            channel: (0.0,) and (1 / 255,) for a net that takes 0 to 255.

    Returns:
        A built net, to be compiled with a loss from logits and fine-tuned.

    Raises:
        InputError: no such classifier; layers that a `.keras` file does not keep; an argument that WCANet refuses.
    """
    features, head = _split(model)
    _check_images(features.inputs[0])
    kernel, bias = _class_weights(model, head)
    with keras_seed(seed):
        classes, backbone = len(bias) if num_classes is None else num_classes, _copy(features)
        options: dict[str, Any] = {
            "pixel_mean": pixel_mean,
            "pixel_std": pixel_std,
            "weight_decay": weight_decay,
            "seed": seed,
        }
        if covariance == "none":
            net: BottleneckNet = BottleneckNet(backbone, classes, feature_dim, **options)
        else:
            net = WCANet(backbone, classes, feature_dim, covariance, **options)
        net.build((None, *features.input_shape[1:]))
    if net.num_classes == len(bias):
        _keep_logits(net, kernel, bias)
    return net


def _split(model: Any) -> tuple[keras.Model, keras.layers.Layer]:
    """The model up to the input of its head, and the head; both share the layers of `model`."""
    if not isinstance(model, keras.Model):
        raise InputError(f"expected a Keras model, received {type(model).__name__}")
    inputs, outputs = getattr(model, "inputs", None), getattr(model, "outputs", None)
    if not inputs or not outputs:
        raise InputError(
            "expected a functional model, or a sequential one that begins with keras.Input((H, W, channels)), "
            f"received {model.name!r}, {type(model).__name__}, which has no graph of layers"
        )
    if len(inputs) != 1 or len(outputs) != 1:
        raise InputError(f"expected one input and one output, received {len(inputs)} and {len(outputs)}")
    tensor = outputs[0]
    while True:  # along the graph: `layer.input` fails for layers called twice, as `pop` and `add` call them
        layer, index, _ = tensor._keras_history
        node = layer._inbound_nodes[index]
        if not _is_ending(layer, model):
            break
        tensor = node.input_tensors[0]
    if isinstance(layer, keras.Model):
        inner, head = _split(layer)
        features = inner(node.input_tensors[0])
    else:
        _check_head(layer, node.input_tensors, model)
        features, head = node.input_tensors[0], layer
    return keras.Model(inputs[0], features, name=model.name), head


def _is_ending(layer: Any, model: keras.Model) -> bool:
    """Whether a layer behind the head leaves the order of the classes as it is."""
    reshaping = isinstance(layer, (keras.layers.Softmax, keras.layers.Flatten, keras.layers.Reshape))
    return reshaping or (isinstance(layer, keras.layers.Activation) and _is_softmax(layer, model))


def _is_softmax(layer: Any, model: keras.Model) -> bool:
    """Whether a layer's activation gives what the softmax of its inputs would, or its inputs."""
    names = ("linear", "softmax", "sigmoid") if model.output_shape[1:] == (1,) else ("linear", "softmax")
    return layer.activation in [keras.activations.get(name) for name in names]


def _check_head(layer: Any, tensors: list[Any], model: keras.Model) -> None:
    """Raise InputError unless the last layer is linear in features of one position."""
    convolution = isinstance(layer, keras.layers.Conv2D) and layer.kernel_size == (1, 1) and layer.groups == 1
    linear = (isinstance(layer, keras.layers.Dense) or convolution) and _is_softmax(layer, model)
    if not linear or any(size != 1 for size in tensors[0].shape[1:-1]):
        raise InputError(
            "expected a classifier that ends in a Dense layer (or a 1×1 Conv2D on one position), with a softmax or "
            f"without, received one that ends in {layer.name!r}, {type(layer).__name__}; a net without a classifier "
            "is a backbone: wca_tf.WCANet(net, num_classes)"
        )


def _check_images(images: Any) -> None:
    if len(images.shape) != 4 or not keras.backend.is_float_dtype(images.dtype):
        raise InputError(
            f"expected a net that takes float images [B, H, W, channels], received one that takes {images.dtype} "
            f"{list(images.shape)}"
        )


def _class_weights(model: keras.Model, head: keras.layers.Layer) -> tuple[np.ndarray, np.ndarray]:
    """The head as W [F, C] and b [C], float64; one logit for two classes becomes two, the first of them 0."""
    kernel = keras.ops.convert_to_numpy(head.kernel).astype(np.float64)
    kernel = kernel.reshape(-1, kernel.shape[-1])
    classes = kernel.shape[1]
    bias = keras.ops.convert_to_numpy(head.bias).astype(np.float64) if head.use_bias else np.zeros(classes)
    if model.output_shape[1:] != (classes,):
        raise InputError(f"expected a net that returns [B, {classes}], received {list(model.output_shape)}")
    if classes == 1:
        kernel, bias = np.pad(kernel, [(0, 0), (1, 0)]), np.pad(bias, (1, 0))
    return kernel, bias


def _copy(model: keras.Model) -> keras.Model:
    """The model as a `.keras` file gives it back: with state that `clone_model` and `set_weights` miss."""
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "backbone.keras"
            model.save(path)
            return keras.saving.load_model(path, compile=False)
    except Exception as error:  # whatever a layer raises
        raise InputError(
            "expected layers that a .keras file keeps, Keras's or registered with keras.saving, and no Lambda: "
            + one_line(error)
        ) from None


def _keep_logits(net: BottleneckNet, kernel: np.ndarray, bias: np.ndarray) -> None:
    """Make the logits without noise features @ kernel + bias.

    The classifier K [D, C] becomes orthonormal, KᵀK = I: noise N(0, I) on features is N(0, I) on logits, too. The
    bottleneck becomes the one next to its initial B that fits, B + (W − BK)Kᵀ.
    """
    classifier = np.asarray(keras.initializers.Orthogonal(seed=net.seed)((net.feature_dim, net.num_classes)))
    bottleneck, zeros = net.bottleneck.get_weights()
    bottleneck += (kernel - bottleneck @ classifier) @ classifier.T
    net.bottleneck.set_weights([bottleneck, zeros])
    net.classifier.set_weights([classifier, bias])
