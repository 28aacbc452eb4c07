"""harden(model): a Keras classifier with its last layer replaced by a WCA-Net's bottleneck, noise and classifier."""

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from wca_tf.core.errors import InputError, one_line
from wca_tf.core.keras_graph import call_behind, check_called_without_training, without_activation
from wca_tf.core.seeds import keras_seed
from wca_tf.defences.wca.net import WCANet
from wca_tf.defences.wca.noise import NOISE_LAYERS
from wca_tf.nets.answers import probe_images
from wca_tf.nets.bottleneck_net import BottleneckNet

DEFAULT_DIM = 32  # of the bottleneck, in the paper
MAX_DIFFERENCE = 0.1  # of the largest output: of a head that quantises what it gets too


def harden(
    model: keras.Model,
    num_classes: int | None = None,
    feature_dim: int | None = None,
    covariance: str = "anisotropic",
    pixel_mean: tuple[float, ...] = (0.0,),
    pixel_std: tuple[float, ...] = (1.0,),
    weight_decay: float = 1e-4,
    seed: int = 0,
) -> BottleneckNet:
    """Return a WCANet on a copy of a Keras classifier's layers, with their weights; `model` does not change.

    The last layer with classes is a Dense, or a 1×1 Conv2D on a single position, as in MobileNet. All layers before it
    become the backbone; a softmax after it is left out. With as many classes as before, the net starts from the
    classifier: without noise its logits are the same, and the noise adds an independent N(0, 1) to each logit. (With a
    `feature_dim` of 2 and more than 2 classes, the net starts from a projection of the logits.)

    Args:
        model: functional or sequential, built, trained or not. It maps float images [B, H, W, channels] to logits or
            softmax [B, C]; or to [B, 1] for two classes, where the output is the logit of the second class.
        num_classes: `None` for the classes of `model`; with another number, the classifier is new.
        covariance: as for WCANet; or "none", for a net without noise to compare with.
        feature_dim: D, the width of the bottleneck; `None` for 32, or for the number of classes where that is larger.
        weight_decay, seed: as for WCANet; the new weights depend on the seed alone.
        pixel_mean, pixel_std: per channel; (images − mean) / std turns images in [0, 1] into the images that `model`
            takes. For a net that takes 0 to 255 they are (0.0,) and (1 / 255,).

    Returns:
        A built net that ends in a `WCAHead`, its `wca_head`. Compile it with a loss from logits, and fine-tune it.

    Raises:
        InputError: `model` is not such a classifier; a `.keras` file does not keep its layers; WCANet refuses an
            argument.
    """
    features, head = _split(model)
    check_called_without_training(model)
    _check_images(features.inputs[0])
    kernel, bias = _class_weights(model, head)
    if covariance not in (known := ("none", *NOISE_LAYERS)):
        raise InputError(f"expected covariance among {', '.join(known)}; received {covariance!r}")
    with keras_seed(seed):
        classes, backbone = len(bias) if num_classes is None else num_classes, _copy(features)
        if feature_dim is None:
            feature_dim = max(DEFAULT_DIM, classes) if isinstance(classes, int) else DEFAULT_DIM
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
        if net.feature_dim >= net.num_classes:
            _check_same_logits(net, model)
    return net


def _split(model: Any) -> tuple[keras.Model, keras.layers.Layer]:
    """Return the model up to the input of its head, and the head; both share the layers of `model`."""
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
        layer, tensors = call_behind(tensor)
        if not _is_ending(layer, model):
            break
        tensor = tensors[0]
    if isinstance(layer, keras.Model):
        inner, head = _split(layer)
        features = inner(tensors[0])
    else:
        _check_head(layer, tensors, model)
        features, head = tensors[0], layer
    return keras.Model(inputs[0], features, name=model.name), head


def _is_ending(layer: Any, model: keras.Model) -> bool:
    """Return whether a layer after the head keeps the order of the classes."""
    reshaping = isinstance(layer, (keras.layers.Softmax, keras.layers.Flatten, keras.layers.Reshape))
    return reshaping or (isinstance(layer, keras.layers.Activation) and _is_softmax(layer, model))


def _check_same_logits(net: BottleneckNet, model: keras.Model) -> None:
    """Raise InputError where the new net's logits without noise are not those of the model, on a probe."""
    images = probe_images(net.backbone.input_shape[1:])
    old, again = (np.asarray(model(net.normalised(images), training=False), np.float32) for _ in range(2))
    new = np.asarray(net.noise_free_logits(images))
    if not np.array_equal(old, again):
        return  # its answers are random, and no two calls can be compared
    if old.shape[1] == 1:  # one logit, or its sigmoid
        new = new[:, 1:] - new[:, :1]
    forms = [new, np.asarray(keras.ops.softmax(new) if new.shape[1] > 1 else keras.ops.sigmoid(new))]
    worst = min(np.abs(form - old).max() / max(np.abs(old).max(), 1e-6) for form in forms)
    if not worst <= MAX_DIFFERENCE:
        raise InputError(
            "expected a last layer whose weights give its logits, received one whose logits differ from those of the "
            f"new net by {100 * worst:.3g} % of the largest"
        )


def _is_softmax(layer: Any, model: keras.Model) -> bool:
    """Return whether a layer's activation is linear or a softmax; for a single logit, a sigmoid counts as a softmax."""
    names = ("linear", "softmax", "sigmoid") if model.output_shape[1:] == (1,) else ("linear", "softmax")
    return layer.activation in [None, *(keras.activations.get(name) for name in names)]


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
    """Return the head as W [F, C] and b [C], float64; one logit for two classes becomes two, the first of them 0."""
    kernel = _dequantised(head) if head.quantization_mode else keras.ops.convert_to_numpy(head.kernel)
    kernel = kernel.astype(np.float64).reshape(-1, kernel.shape[-1])
    classes = kernel.shape[1]
    bias = keras.ops.convert_to_numpy(head.bias).astype(np.float64) if head.use_bias else np.zeros(classes)
    if model.output_shape[1:] != (classes,):
        raise InputError(f"expected a net that returns [B, {classes}], received {list(model.output_shape)}")
    if classes == 1:
        kernel, bias = np.pad(kernel, [(0, 0), (1, 0)]), np.pad(bias, (1, 0))
    return kernel, bias


def _dequantised(head: keras.layers.Layer) -> np.ndarray:
    """Return the kernel of a quantised layer as it acts: its outputs for each feature alone, less those for none."""
    features = head.input_spec.axes[-1]
    positions = (1, 1) if isinstance(head, keras.layers.Conv2D) else ()
    alone = np.eye(features, dtype=np.float32).reshape(features, *positions, features)
    with without_activation(head):
        outputs = head(np.concatenate([alone, np.zeros_like(alone[:1])]))
    outputs = keras.ops.convert_to_numpy(outputs).reshape(features + 1, -1)
    return outputs[:-1] - outputs[-1:]


def _copy(model: keras.Model) -> keras.Model:
    """Return the model as a `.keras` file gives it back: with state that `clone_model` and `set_weights` miss."""
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
    """Make the logits without noise equal to features @ kernel + bias.

    The classifier K [D, C] becomes orthonormal, KᵀK = I, so that noise N(0, I) on features is N(0, I) on logits too. Of
    all bottlenecks that fit, the nearest one to the initial B is taken: B + (W − BK)Kᵀ, with W the `kernel`.
    """
    classifier = np.asarray(keras.initializers.Orthogonal(seed=net.seed)((net.feature_dim, net.num_classes)))
    bottleneck, zeros = net.bottleneck.get_weights()
    bottleneck += (kernel - bottleneck @ classifier) @ classifier.T
    net.bottleneck.set_weights([bottleneck, zeros])
    net.classifier.set_weights([classifier, bias])
