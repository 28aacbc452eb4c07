"""The paper's rivals against their authors' own layers, with the same random numbers; and ARC, an attack.

AUTHORS_CODE_DIR names a folder with clones of the authors' repositories, under any names: BayesianDefense (RSE,
Adv-BNN), CVPR_2019_PNI, Learn2Perturb, A2SNN at commit 7251405 (SE-SNN), Constrained_Random_Adv (CTRW), and ARC.
"""

import contextlib
import importlib
import os
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from wca_tf.attacks import parse_attack
from wca_tf.core.seeds import make_seed
from wca_tf.defences import NetRequest, parse_defence
from wca_tf.defences.adv_bnn.layers import BayesianAffine, BayesianConvolution, BayesianDense
from wca_tf.defences.ctrw.net import RaisedToMinimum, RandomPixelWeights
from wca_tf.defences.l2p.net import LearnedActivationNoise
from wca_tf.defences.pni.layers import ProportionalConvolution, ProportionalDense
from wca_tf.nets.mixture_target import MixtureTarget
from wca_tf.nets.noise import ActivationNoise, Draws, drawing
from wca_tf.nets.targets import GaussianLogitsTarget

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("AUTHORS_CODE_DIR" not in os.environ, reason="AUTHORS_CODE_DIR does not name the authors' code"),
]

RNG = np.random.default_rng(0)
IMAGES = 3
DRAWS = Draws(tf.constant([[1, 2]]), tf.range(IMAGES, dtype=tf.int64))


@contextlib.contextmanager
def authors_module(torch, path):
    """The authors' module in the file whose path ends in `path`, imported from the folder above `path`."""
    found = [each for each in Path(os.environ["AUTHORS_CODE_DIR"]).rglob(Path(path).name) if str(each).endswith(path)]
    if not found:
        pytest.skip(f"AUTHORS_CODE_DIR has no {path}")
    parts, before = Path(path).with_suffix("").parts, set(sys.modules)
    top = str(found[0].parents[len(parts) - 1])
    sys.path.insert(0, top)
    try:
        yield importlib.import_module(".".join(parts))
    finally:
        sys.path.remove(top)
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(top):
                del sys.modules[name]


@pytest.fixture
def given(torch, monkeypatch):
    """Make PyTorch's next calls of normal_ give these standard normal numbers, in order; all are taken in the end."""
    left = []

    def normal_(self, mean=0, std=1):
        return self.copy_(mean + std * left.pop(0).reshape(self.shape))

    def give(*numbers):
        left.extend(torch.tensor(np.ascontiguousarray(each, np.float32)) for each in numbers)
        monkeypatch.setattr(torch.Tensor, "normal_", normal_)

    yield give
    assert not left


def random(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def ready(layer, *shape):
    """A layer of ours that is built, and numbered as in a net."""
    layer.number = 0
    layer.build((None, *shape))
    return layer


def output(layer, inputs):
    with drawing(DRAWS):
        return layer(tf.constant(inputs)).numpy()


def vary(torch, theirs, ours, axes):
    """Give a weight of theirs and ours the same random values; `axes` bring ours into the order of theirs."""
    values = random(*ours.shape)
    ours.assign(values)
    with torch.no_grad():
        theirs.copy_(torch.tensor(np.ascontiguousarray(values.transpose(axes))))


def channels_first(torch, inputs):
    return torch.tensor(np.ascontiguousarray(np.moveaxis(inputs, -1, 1)))


def channels_last(outputs):
    return np.moveaxis(outputs.detach().numpy(), 1, -1)


def kernel_noise(kernel, more=0):
    """The standard normal numbers of our layer's kernel, and `more` for its bias."""
    numbers = DRAWS.for_each_draw(0, (kernel.size + more,))[0].numpy()
    return numbers[: kernel.size].reshape(kernel.shape), numbers[kernel.size :]


@pytest.mark.parametrize(("shared_by", "theirs"), [("layer", "layerwise"), ("channel", "channelwise")])
def test_the_convolution_of_pni_is_the_authors(torch, given, shared_by, theirs):
    with authors_module(torch, "models/noise_layer.py") as module:
        layer = module.noise_Conv2d(2, 4, 3, pni=sys.intern(theirs))
        ours = ready(ProportionalConvolution(4, 3, amplitude=0.25, shared_by=shared_by), 6, 6, 2)
        alpha = random(*ours.alpha.shape)
        ours.alpha.assign(alpha)
        with torch.no_grad():
            layer.alpha_w.copy_(torch.tensor(alpha.reshape(tuple(layer.alpha_w.shape))))
        ours.kernel.assign(layer.weight.detach().numpy().transpose(2, 3, 1, 0))
        ours.bias.assign(layer.bias.detach().numpy())
        inputs = random(IMAGES, 6, 6, 2)
        noise, _ = kernel_noise(ours.kernel.numpy())
        given(noise.transpose(3, 2, 0, 1))
        expected = channels_last(layer(channels_first(torch, inputs)))
        np.testing.assert_allclose(output(ours, inputs), expected, atol=1e-5)


def test_the_dense_layer_of_pni_is_the_authors(torch, given):
    with authors_module(torch, "models/noise_layer.py") as module:
        layer = module.noise_Linear(5, 4)
        ours = ready(ProportionalDense(4, amplitude=0.25), 5)
        ours.kernel.assign(layer.weight.detach().numpy().T)
        ours.bias.assign(layer.bias.detach().numpy())
        inputs = random(IMAGES, 5)
        given(kernel_noise(ours.kernel.numpy())[0].T)
        np.testing.assert_allclose(output(ours, inputs), layer(torch.tensor(inputs)).detach().numpy(), atol=1e-5)


def test_the_convolution_of_adv_bnn_is_the_authors_with_its_divergence(torch, given):
    with authors_module(torch, "models/layers/conv2d.py") as module:
        layer = module.RandConv2d(0.05, 100, -2.0, 2, 4, 3)
        ours = ready(BayesianConvolution(4, 3, log_deviation=-2.0), 6, 6, 2)
        ours.kernel.assign(layer.mu_weight.detach().numpy().transpose(2, 3, 1, 0))
        ours.bias.assign(layer.mu_bias.detach().numpy())
        vary(torch, layer.sigma_weight, ours.kernel_log_deviation, (3, 2, 0, 1))
        vary(torch, layer.sigma_bias, ours.bias_log_deviation, (0,))
        inputs = random(IMAGES, 6, 6, 2)
        kernel, bias = kernel_noise(ours.kernel.numpy(), 4)
        given(kernel.transpose(3, 2, 0, 1), bias)
        outputs, divergence = layer(channels_first(torch, inputs))
        np.testing.assert_allclose(output(ours, inputs), channels_last(outputs), atol=1e-5)
        assert float(ours.kl_divergence(0.05)) == pytest.approx(divergence.item(), rel=1e-5)


def test_the_dense_layer_of_adv_bnn_is_the_authors_with_its_divergence(torch, given):
    with authors_module(torch, "models/layers/linear.py") as module:
        layer = module.RandLinear(0.05, 100, -2.0, 5, 4)
        ours = ready(BayesianDense(4, log_deviation=-2.0), 5)
        ours.kernel.assign(layer.mu_weight.detach().numpy().T)
        ours.bias.assign(layer.mu_bias.detach().numpy())
        vary(torch, layer.sigma_weight, ours.kernel_log_deviation, (1, 0))
        vary(torch, layer.sigma_bias, ours.bias_log_deviation, (0,))
        inputs = random(IMAGES, 5)
        kernel, bias = kernel_noise(ours.kernel.numpy(), 4)
        given(kernel.T, bias)
        outputs, divergence = layer(torch.tensor(inputs))
        np.testing.assert_allclose(output(ours, inputs), outputs.detach().numpy(), atol=1e-5)
        assert float(ours.kl_divergence(0.05)) == pytest.approx(divergence.item(), rel=1e-5)


def test_the_normalisation_of_adv_bnn_is_the_authors_with_its_divergence(torch, given):
    """With running statistics of mean 0 and variance 1 − 1e-5, their normalisation is ours: γ ∘ x + β."""
    with authors_module(torch, "models/layers/batchnorm2d.py") as module:
        layer = module.RandBatchNorm2d(0.05, 100, -2.0, 4).eval()
        layer.running_var.fill_(1 - layer.eps)
        ours = ready(BayesianAffine(log_deviation=-2.0), 6, 6, 4)
        ours.gamma.assign(layer.mu_weight.detach().numpy())
        vary(torch, layer.sigma_weight, ours.gamma_log_deviation, (0,))
        vary(torch, layer.sigma_bias, ours.beta_log_deviation, (0,))
        inputs = random(IMAGES, 6, 6, 4)
        numbers = DRAWS.for_each_draw(0, (8,))[0].numpy()
        given(numbers[:4], numbers[4:])
        outputs, divergence = layer(channels_first(torch, inputs))
        np.testing.assert_allclose(output(ours, inputs), channels_last(outputs), atol=1e-5)
        assert float(ours.kl_divergence(0.05)) == pytest.approx(divergence.item(), rel=1e-5)


def test_the_noise_of_rse_is_the_authors(torch, given):
    with authors_module(torch, "models/layers/feat_noise.py") as module:
        layer = module.Noise(0.2)
        ours = ready(ActivationNoise(0.2), 6, 6, 2)
        inputs = random(IMAGES, 6, 6, 2)
        layer.buffer = torch.empty(IMAGES, 2, 6, 6)  # else they put one on a GPU
        given(np.moveaxis(DRAWS.for_each_image(0, (6, 6, 2)).numpy(), -1, 1))
        np.testing.assert_allclose(output(ours, inputs), channels_last(layer(channels_first(torch, inputs))), atol=1e-5)


def test_the_noise_of_learn2perturb_is_the_authors(torch, given):
    """Their block with a last convolution of zeros is ReLU(x + σ ∘ z)."""
    with authors_module(torch, "resnet_v1.py") as module:
        block = module.L2P_Basicblock_V1(16, 16).eval()
        block.put_noise()
        sigma = np.abs(random(32, 32, 16))
        with torch.no_grad():
            block.conv_b.weight.zero_()
            block.sigma_map.copy_(channels_first(torch, sigma[np.newaxis])[0])
        ours = ready(LearnedActivationNoise(0.25, 0.01, scope="batch"), 32, 32, 16)
        ours.sigma.assign(sigma)
        inputs = random(IMAGES, 32, 32, 16)
        given(np.moveaxis(DRAWS.for_each_draw(0, (32, 32, 16))[0].numpy(), -1, 0))
        expected = channels_last(block(channels_first(torch, inputs)))
        np.testing.assert_allclose(np.maximum(output(ours, inputs), 0), expected, atol=1e-5)


def test_the_random_weights_of_ctrw_are_the_authors_with_their_bound(torch, monkeypatch):
    """What their net's first convolution receives, and S after their bound."""
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch, "device", lambda *_: cpu)  # their defaults name a GPU
    with authors_module(torch, "first_rand_resnet_lower_bound.py") as module:
        net = module.ResNet18().eval()
        deviation, mean = np.abs(random(32, 32, 3)), random(32, 32, 3)
        with torch.no_grad():
            net.SD_.copy_(channels_first(torch, deviation[np.newaxis]))
            net.Mu_.copy_(channels_first(torch, mean[np.newaxis]))
        net.set_rands()
        bounded = np.asarray(RaisedToMinimum(2 / 3)(deviation))
        np.testing.assert_allclose(channels_last(net.SD_)[0], bounded, atol=1e-6)
        ours = ready(RandomPixelWeights(2 / 3, scope="batch"), 32, 32, 3)
        ours.mean.assign(mean)
        ours.deviation.assign(bounded)
        net.rand_weight = channels_first(torch, DRAWS.for_each_draw(0, (32, 32, 3)).numpy())
        inputs, seen = random(IMAGES, 32, 32, 3), []
        net.conv1.register_forward_pre_hook(lambda _, received: seen.append(received[0]))
        net(channels_first(torch, inputs))
        np.testing.assert_allclose(output(ours, inputs), channels_last(seen[0]), atol=1e-5)


def test_the_head_of_se_snn_is_the_authors(torch, monkeypatch):
    """Their class after its convolutions: the same μ, σ and classifier, on the same features."""
    keras.utils.set_random_seed(0)
    ours = parse_defence("se_snn:feature_dim=8").build(NetRequest((12, 12, 1), 4, (0.4,), (0.3,), "lenet5"))
    ours.build((None, 12, 12, 1))
    images = np.random.default_rng(1).random((IMAGES, 12, 12, 1)).astype(np.float32)
    pooled = ours.pooled(ours.normalised(images)).numpy()
    with authors_module(torch, "models.py") as module:
        theirs = module.ClassicSESNN(8, 4)
        layers = {"mu": ours.bottleneck, "sigma": ours.deviation, "proto": ours.classifier}
        for name, dense in layers.items():
            kernel, *bias = dense.get_weights()
            linear = torch.nn.Linear(*kernel.shape)
            with torch.no_grad():
                linear.weight.copy_(torch.tensor(kernel.T))
                linear.bias.copy_(torch.tensor(bias[0] if bias else np.zeros(kernel.shape[1], np.float32)))
            setattr(theirs, name, linear)
        theirs.gen = torch.nn.Identity()
        seed = make_seed(3)
        numbers = tf.random.stateless_normal([IMAGES, 8], seed).numpy()
        normal = importlib.import_module("torch.distributions.normal")
        monkeypatch.setattr(normal, "_standard_normal", lambda *_, **__: torch.tensor(numbers))
        expected = theirs(torch.tensor(pooled)).detach().numpy()
    logits, deviation = ours.forward(tf.constant(images), seed)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    np.testing.assert_allclose(deviation, theirs.dist.scale.detach().numpy(), atol=1e-6)


# ARC


def random_nets(classes):
    """Three nets of tanh on images [3, 3, 3], as (inner [27, 12], bias [12], outer [12, C])."""
    made = [np.random.default_rng(seed) for seed in range(3)]
    return [
        (1.5 * each.standard_normal((27, 12)), 0.3 * each.standard_normal(12), each.standard_normal((12, classes)))
        for each in made
    ]


def as_target(inner, bias, outer):
    inner, bias, outer = (tf.constant(values, tf.float32) for values in (inner, bias, outer))
    flat = [-1, inner.shape[0]]
    return GaussianLogitsTarget(
        lambda images: tf.tanh((tf.reshape(images, flat) - 0.5) @ inner + bias) @ outer,
        tf.identity,
        tf.zeros([outer.shape[1], 1]),
    )


def as_torch(torch, inner, bias, outer):
    inner, bias, outer = (torch.tensor(values, dtype=torch.float32) for values in (inner, bias, outer))
    return lambda images: torch.tanh((images.permute(0, 2, 3, 1).flatten(1) - 0.5) @ inner + bias) @ outer


@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize(("norm", "theirs", "epsilon"), [("linf", "l_inf", 0.1), ("l2", "l_2", 0.4)])
def test_arc_makes_the_images_of_its_authors_code(torch, monkeypatch, norm, theirs, epsilon, classes, share):
    """Their repository ARC, without its random start. Weights that differ: equal ones have no order."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(np, "infty", np.inf, raising=False)  # of NumPy 1
    nets, weights = random_nets(classes), [0.4, 0.35, 0.25]
    images = np.random.default_rng(9).random((100, 3, 3, 3), np.float32)
    target = MixtureTarget([as_target(*net) for net in nets], weights)
    labels = np.argmax(sum(net.features(images) for net in target.members), axis=1)
    attack = parse_attack(f"arc:norm={norm}:relative_step_size={share}")
    mine = attack.run(target, tf.constant(images), labels, epsilon, np.arange(100), 0).images.numpy()
    with authors_module(torch, "ARC/attack.py") as code:
        change = code.attack_arc(
            [as_torch(torch, *net) for net in nets],
            torch.tensor(images).permute(0, 3, 1, 2).contiguous(),
            torch.tensor(labels),
            epsilon,
            np.array(weights),
            attack.steps,
            share * epsilon,
            theirs,
            classes,
            normalize=lambda pixels: pixels,
            rand_init=False,
        )
    differ = np.abs(images + change.permute(0, 2, 3, 1).numpy() - mine).max(axis=(1, 2, 3)) > 1e-4
    assert differ.sum() <= 1, "of 100: a move that leaves as many right within rounding"
