"""The same net in PyTorch, in JAX, as two functions of NumPy arrays and in Keras: one judgement for all."""

import gc
import importlib.util
import re
import resource
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from evaluation_nets import arrays, assert_same_arrays, read_strictly, without_seconds
from framework_nets import FRAMEWORKS, PEERS, imported, keras_cnn, made, torch_cnn, weights
from kinds_of_nets import SHAPE, some_images
from scipy import stats

import wca_tf
from wca_tf.attacks.radii import Radius
from wca_tf.core.errors import InputError
from wca_tf.evaluation.outcomes import load_outcome
from wca_tf.nets.adapter import adapt
from wca_tf.nets.judge import judge

RADIUS = 0.05


def needs(*frameworks):
    """Frameworks as parameters; slow tests where only .peers may have them."""
    absent = [name for name in frameworks if importlib.util.find_spec(name) is None]
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in absent)) for name in frameworks]


def memory_in_use():
    """Bytes; the most that was ever in use may be of another test."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


with_torch = pytest.mark.parametrize("framework", needs("torch"))


def judged(target, images, labels, seed=0):
    return judge(target, tf.constant(images), labels, np.arange(len(images)), seed)


def gradient_of_loss(target, images, labels):
    pixels = tf.constant(images)
    with tf.GradientTape() as tape:
        tape.watch(pixels)
        logits = target.features(pixels)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return logits.numpy(), tape.gradient(loss, pixels).numpy()


@pytest.mark.parametrize("framework", needs(*FRAMEWORKS))
def test_logits_gradients_and_steps_are_those_of_keras(framework):
    images, labels = some_images()
    expected, gradient = gradient_of_loss(adapt(keras_cnn()), images, labels)
    logits, own = gradient_of_loss(adapt(made(framework), SHAPE), images, labels)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    np.testing.assert_allclose(own, gradient, atol=1e-5)
    fgsm = wca_tf.parse_attack("fgsm")
    mine, theirs = (fgsm(net, images, labels, RADIUS).images for net in (made(framework), keras_cnn()))
    clear = np.abs(gradient) > 1e-5
    np.testing.assert_allclose(mine[clear], theirs[clear], atol=1e-4)


ATTACKS = ("fgsm", "pgd", "apgd_ce:steps=10", "bounded:steps=5:restarts=2:class_steps=3", "square:queries=50")


@pytest.mark.slow
@pytest.mark.parametrize("framework", needs(*FRAMEWORKS))
def test_whole_attacks_are_within_an_image_of_keras(framework):
    images, labels = some_images()
    target = adapt(made(framework), SHAPE)
    for text in ATTACKS:
        attack = wca_tf.parse_attack(text)
        own, keras = (attack(net, images, labels, RADIUS).probability_correct for net in (target, keras_cnn()))
        assert abs(own.sum() - keras.sum()) <= 1, text


@pytest.mark.parametrize("framework", needs(*FRAMEWORKS))
def test_each_draw_of_a_random_net_is_another_and_follows_its_seed(framework):
    """The seeds of an image's draws have one half in common: PyTorch's generator takes 32 bits."""
    images, labels = some_images()
    target = adapt(made(framework, noise=True), SHAPE)
    logits = target.logits(tf.constant(images[:2]), tf.constant([0, 0]), 20).numpy()
    assert len(np.unique(logits[:, 0, 0])) == 20
    one, again, other = (judged(target, images, labels, seed).hits for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    # 200 draws of 200 images each, of the same noise in other numbers
    keras = adapt(lambda x: keras_cnn()(x + 0.3 * tf.random.normal(tf.shape(x))), SHAPE)
    assert abs(one.mean() - judged(keras, images, labels).hits.mean()) < 0.012


@pytest.mark.slow
@pytest.mark.parametrize("framework", needs("torch", "jax"))
def test_draws_of_independent_noise_are_one_batch_of_the_same_law(framework):
    images, labels = some_images()
    net = made(framework, noise=True)
    one_by_one, at_once = adapt(net, SHAPE), adapt(net, SHAPE, independent_noise=True)
    assert (one_by_one.draws_per_pass, at_once.draws_per_pass) == (1, 8)
    single, several = (judged(target, images, labels) for target in (one_by_one, at_once))
    left, right = (each.probability_correct for each in (single, several))
    error = np.sqrt((left * (1 - left) + right * (1 - right)) / 200)
    standardised = ((left - right) / np.maximum(error, 1 / 200))[error > 0]
    assert abs(standardised.mean()) < 4 / np.sqrt(len(standardised)), "the same P(correct) on average"
    assert 0.8 < standardised.std() < 1.2, "and for each image"
    logits = at_once.logits(tf.constant(images[:1]), tf.constant([0, 0]), 4000).numpy()[:, 0]
    expected = one_by_one.logits(tf.constant(images[:1]), tf.constant([0, 1]), 1000).numpy()[:, 0]
    for own, other in zip(logits.T, expected.T, strict=True):
        assert stats.ks_2samp(own, other).pvalue > 1e-5
    several = [np.corrcoef(logits[:-lag, 0], logits[lag:, 0])[0, 1] for lag in range(1, 9)]
    assert np.abs(several).max() < 5 / np.sqrt(4000), "independent within a batch and beyond"


@with_torch
def test_a_gradient_over_independent_draws_is_one_pass(framework):
    net, (images, labels) = torch_cnn(noise=True), some_images()
    target, sizes = adapt(net, SHAPE, independent_noise=True), []
    net.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    attack = wca_tf.parse_attack("pgd:steps=2:eot_samples=20")
    made = attack.run(target, tf.constant(images[:5]), labels[:5], RADIUS, np.arange(5), 0)
    assert sum(sizes) == 200 and max(sizes) == 40 and made.passes == (40, 40)


@with_torch
def test_noise_that_images_share_is_not_independent(framework):
    torch = imported(framework)

    class Net(torch.nn.Module):
        def forward(self, images):
            return (images + torch.randn_like(images[:1])).flatten(1)

    with pytest.raises(InputError, match="noise that images share"):
        adapt(Net(), SHAPE, independent_noise=True)
    with pytest.raises(InputError, match="noise that images share"):
        wca_tf.evaluate(Net(), *some_images(), attacks="fgsm", independent_noise=True)
    with pytest.raises(InputError, match="a net of PyTorch or JAX, received Sequential"):
        adapt(keras_cnn(), independent_noise=True)


@pytest.mark.parametrize("framework", needs("torch", "jax"))
def test_a_report_names_the_framework_and_continues(framework, tmp_path):
    images, labels = some_images()
    asked = {"epsilons": RADIUS, "eot_samples": 2, "report_dir": tmp_path / "report", "name": "mine"}
    wca_tf.evaluate(made(framework, noise=True), images[:40], labels[:40], attacks="fgsm", **asked)
    report = wca_tf.evaluate(made(framework, noise=True), images[:40], labels[:40], attacks="fgsm,pgd:steps=2", **asked)
    assert [each["name"] for each in report["attacks"]] == ["fgsm", "pgd:steps=2"]
    net = read_strictly(tmp_path / "report" / "results.json")["net"]
    assert net["framework"] == {"torch": "PyTorch", "jax": "JAX"}[framework]
    assert report["attacks"][1]["passes"] == {"forward": 4.0, "backward": 4.0}
    assert net["random_layers"]["on"] == ["some, in its own call"]


@pytest.mark.slow
@pytest.mark.parametrize("framework", needs(*FRAMEWORKS))
def test_memory_is_flat_over_many_calls(framework):
    images, labels = some_images()
    target, attack = adapt(made(framework, noise=True), SHAPE), wca_tf.parse_attack("pgd:steps=5:eot_samples=2")
    resident = []
    for seed in range(500):
        attack.run(target, tf.constant(images[:50]), labels[:50], RADIUS, np.arange(50), seed)
        if seed % 25 == 0:
            judged(target, images[:10], labels[:10], seed)
        if seed + 1 in (100, 500):
            gc.collect()
            resident.append(memory_in_use())
    assert resident[1] - resident[0] < 20 * 2**20, resident


@pytest.mark.slow
@pytest.mark.parametrize("framework", needs("torch"))
def test_a_batch_without_a_gradient_keeps_no_graph(framework):
    """Memory of the check of the pixels' range is that of the net alone, which frees each layer's input."""
    torch = imported(framework)
    layers = [torch.nn.Conv2d(3, 32, 3, padding=1), *(torch.nn.Conv2d(32, 32, 3, padding=1) for _ in range(20))]
    net = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10))
    target = adapt(net, (64, 64, 3)).net.net
    images = np.zeros((64, 64, 64, 3), np.float32)
    before, kept = memory_in_use(), set(target._kept)
    target.outputs(images)
    assert memory_in_use() - before < 200 * 2**20 and set(target._kept) == kept
    target.forward(images, 0)
    assert memory_in_use() - before > 500 * 2**20, "21 inputs of 34 MB, for the gradient"


@pytest.mark.parametrize("framework", needs(*FRAMEWORKS))
def test_a_net_is_freed_with_its_target(framework):
    images, labels = some_images()
    net = made(framework)
    alive = weakref.ref(net)
    wca_tf.parse_attack("pgd:steps=2")(net, images, labels, RADIUS)
    del net
    gc.collect()
    assert alive() is None


# PyTorch


@with_torch
def test_the_state_of_torch_is_afterwards_as_before(framework):
    torch = imported(framework)
    net, (images, labels) = torch_cnn(noise=True), some_images()
    net.last.eval()
    modes = {name: layer.training for name, layer in net.named_modules()}
    torch.manual_seed(7)
    expected = torch.rand(5)
    torch.manual_seed(7)
    weights_before = {name: value.clone() for name, value in net.state_dict().items()}
    wca_tf.parse_attack("pgd:steps=2:eot_samples=2")(net, images, labels, RADIUS)
    assert torch.equal(torch.rand(5), expected)
    assert {name: layer.training for name, layer in net.named_modules()} == modes
    assert all(torch.equal(value, weights_before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters()) and torch.is_grad_enabled()


@with_torch
def test_dropout_is_on_where_its_owner_has_set_it_so(framework):
    torch, net, (images, labels) = imported(framework), torch_cnn(), some_images()
    assert adapt(net, SHAPE).net.describe()["random_layers"] == {"on": [], "off": ["dropout (Dropout)"]}
    net.eval()
    assert adapt(net, SHAPE).has_noise is False
    net.dropout.train()
    target = adapt(net, SHAPE)
    assert target.net.describe()["random_layers"] == {"on": ["dropout (Dropout)"], "off": []}
    channels_first = torch.tensor(images).permute(0, 3, 1, 2)
    with torch.no_grad():
        owners = np.array([(net(channels_first).argmax(1).numpy() == labels).mean() for _ in range(200)])
    found = judged(target, images, labels)
    assert abs(found.hits.mean() - owners.mean()) < 5 * owners.std() * np.sqrt(2 / 200)
    np.testing.assert_allclose(target.noise_free_logits(images), keras_cnn()(images), atol=1e-5)
    assert adapt(net, SHAPE, training=False).has_noise is False
    assert adapt(net.train(), SHAPE, training=True).net.describe()["random_layers"]["on"] == ["dropout (Dropout)"]


@with_torch
def test_what_torch_nets_get_wrong_is_one_line(framework):
    torch, (images, labels) = imported(framework), some_images()
    kernel = torch.tensor(weights()[2][:64])

    class Net(torch.nn.Module):
        def __init__(self, forward):
            super().__init__()
            self.norm, self.own = torch.nn.BatchNorm2d(1), forward

        def forward(self, images):
            return self.own(self, images)

    def flat(net, images):
        return images.flatten(1) @ kernel

    learning = Net(lambda net, images: flat(net, net.norm(images))).eval()
    learning.norm.train()
    refused = {
        "batch normalisation in the mode train": learning,
        "one tensor, received tuple": Net(lambda net, images: (flat(net, images), 1)),
        r"torch\.no_grad\(\)": Net(lambda net, images: flat(net, images.detach())),
        r"returns logits \[B, C\], received shape \(2, 1, 8, 8\)": Net(lambda net, images: 2 * images),
        r"module of images \(2, 1, 8, 8\), channels first; it raised RuntimeError": torch.nn.Conv2d(3, 4, 3),
        "noise that ignores the seed": Net(lambda net, images: flat(net, images) + float(np.random.normal())),
    }
    for message, net in refused.items():
        with pytest.raises(InputError, match=message) as raised:
            adapt(net, SHAPE)
        assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match=r"np.moveaxis\(images, 1, -1\)"):
        wca_tf.parse_attack("fgsm")(Net(flat), np.moveaxis(images, -1, 1), labels, RADIUS)
    assert np.array_equal(learning.norm.running_mean.numpy(), [0])


@with_torch
def test_other_weights_are_another_net_for_a_report(framework, tmp_path):
    torch, net, (images, labels) = imported(framework), torch_cnn(), some_images()
    asked = {"attacks": "fgsm", "epsilons": RADIUS, "report_dir": tmp_path / "report", "name": "mine"}
    wca_tf.evaluate(net, images, labels, **asked)
    with torch.no_grad():
        net.last.bias.add_(0.1)
    with pytest.raises(InputError, match="is of another model"):
        wca_tf.evaluate(net, images, labels, **asked)


@with_torch
def test_a_forward_graph_is_kept_for_its_gradient(framework):
    net, (images, labels) = torch_cnn(noise=True), some_images()
    target, calls = adapt(net, SHAPE), []
    net.register_forward_hook(lambda *_: calls.append(1))
    attack = wca_tf.parse_attack("pgd:steps=5:eot_samples=3")
    attack.run(target, tf.constant(images), labels, RADIUS, np.arange(len(images)), 0)
    assert len(calls) == 15, "one pass forward for each draw of each step"


@pytest.mark.slow
@with_torch
def test_the_page_about_pytorch_nets_runs_from_top_to_bottom(framework, root, tmp_path, monkeypatch):
    imported(framework)
    monkeypatch.chdir(tmp_path)
    page, names = root / "docs" / "howto" / "judge_a_torch_net.md", {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, page, "exec"), names)
    assert names["report"]["net"]["framework"] == "functions of NumPy arrays"


# JAX


@pytest.mark.parametrize("framework", needs("jax"))
def test_a_jax_net_has_the_weights_that_it_has_when_it_is_adapted(framework):
    jax, (images, _) = imported(framework), some_images()
    parameters = {"kernel": jax.numpy.asarray(weights()[2][:64])}

    def net(images):
        return images.reshape(len(images), -1) @ parameters["kernel"]

    before = adapt(net, SHAPE).features(images).numpy()
    parameters["kernel"] = 2 * parameters["kernel"]
    np.testing.assert_allclose(adapt(net, SHAPE).features(images), 2 * before, rtol=1e-5)
    jitted = jax.jit(lambda images: net(images))
    np.testing.assert_allclose(adapt(jitted, SHAPE).features(images), 2 * before, rtol=1e-5)


@pytest.mark.parametrize("framework", needs("jax"))
def test_what_jax_nets_get_wrong_is_one_line(framework):
    jax = imported(framework)
    with pytest.raises(InputError, match="expected a JAX function of images") as raised:
        adapt(jax.jit(lambda images: images @ np.zeros((3, 4))), SHAPE)
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match=r"in one array, received shape \(2, 8, 8, 1\)"):
        adapt(jax.jit(lambda images: images), SHAPE)
    net = keras_cnn()
    assert adapt(lambda images: net(images), SHAPE).net.describe()["framework"] == "TensorFlow"


# Commands, and imports


CODE = {
    "torch": "import torch\nnet = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n",
    "jax": "import jax\nkernel = jax.random.normal(jax.random.key(0), (64, 10))\n"
    "def net(images): return images.reshape(-1, 64) @ kernel\n",
}


@pytest.mark.parametrize("framework", needs(*CODE))
def test_a_command_takes_a_net_of_a_module(framework, command, command_environment, tmp_path):
    imported(framework)
    (tmp_path / "mine.py").write_text(f"import sys\nsys.path.append({str(PEERS)!r})\n{CODE[framework]}")
    flags = ("--dataset=digits", "--image_size=8", "--attacks=fgsm", "--epsilons=0.05", "--num_examples=40")
    done = command("evaluate", "--model=mine:net", *flags, "--report_dir=r", "--pixel_range=0,1", cwd=tmp_path)
    assert done.code == 0, done.err
    assert read_strictly(tmp_path / "r" / "results.json")["net"]["framework"] in ("PyTorch", "JAX")


@pytest.mark.slow
def test_other_frameworks_are_not_imported_for_a_net_of_keras():
    code = (
        "import sys, keras, wca_tf\n"
        "net = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])\n"
        "wca_tf.adapt(net), wca_tf.adapt(lambda images: net(images), (8, 8, 1))\n"
        "assert not {'torch', 'jax'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)


RANDOM = {
    "torch": "import torch\ntorch.manual_seed(0)\nlast = torch.nn.Linear(64, 10)\nclass Net(torch.nn.Module):\n"
    "    def forward(self, images): return last((images + 0.1 * torch.randn_like(images)).flatten(1))\nnet = Net()\n",
    "jax": "import jax\nkernel = jax.random.normal(jax.random.key(0), (64, 10))\n"
    "def net(images, key):\n"
    "    return (images + 0.1 * jax.random.normal(key, images.shape)).reshape(-1, 64) @ kernel\n",
}
EVALUATE = """
import sys
from wca_tf.evaluation import trials
trials.SAVE_EVERY = 0.0
from wca_tf.cli.evaluate import console
sys.argv[0] = "bin/evaluate"
console()
"""


@pytest.mark.slow
@pytest.mark.parametrize("framework", needs(*RANDOM))
def test_a_command_killed_within_an_attack_goes_on_to_the_same_results(framework, command_environment, root, tmp_path):
    imported(framework)
    (tmp_path / "mine.py").write_text(f"import sys\nsys.path.append({str(PEERS)!r})\n{RANDOM[framework]}")
    attack, count = "pgd:steps=60", 24
    flags = ["--dataset=digits", "--image_size=8", f"--attacks=fgsm,{attack}", "--epsilons=0.05", "--eot_samples=2"]
    flags += ["--model=mine:net", "--pixel_range=0,1", f"--num_examples={count}", "--batch_size=4"]

    def start(report):
        return subprocess.Popen(
            [sys.executable, "-c", EVALUATE, *flags, f"--report_dir={report}"],
            env={**command_environment, "PYTHONPATH": str(root)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def recorded(report):
        outcome = load_outcome(tmp_path / report / "records", attack, Radius(0.05, "linf"))
        return len(outcome) if outcome else 0

    process, deadline = start("killed"), time.monotonic() + 240
    try:
        while not recorded("killed"):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.kill()
        process.communicate()
    assert 0 < recorded("killed") < count, "it was not killed within the attack"
    for report in ("killed", "whole"):
        again = start(report)
        try:
            _, err = again.communicate(timeout=600)
        finally:
            again.kill()
        assert again.returncode == 0, err
    one, other = (tmp_path / report for report in ("killed", "whole"))
    results = [without_seconds(read_strictly(report / "results.json")) for report in (one, other)]
    assert results[0] == results[1] and 0 < results[0]["attacks"][1]["expected_accuracy"]["value"] < 1
    assert_same_arrays(arrays(one), arrays(other))
