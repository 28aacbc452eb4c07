"""One device, several devices and several workers compute the same: real processes on this machine."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from attack_nets import build_attack, zero_gradients_of
from PIL import Image
from replicated import descend, perturb
from sklearn.datasets import load_digits
from toy_models import convolution, make_model, toy_data

from wca_tf.core.errors import InputError
from wca_tf.distribution import strategy as strategy_module
from wca_tf.distribution.strategy import check_shares, make_strategy, synchronise_batch_normalisation
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.runner import evaluate
from wca_tf.gaussian import margins
from wca_tf.nets.adapter import adapt
from wca_tf.nets.model_files import load_model
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.epoch_recorder import EpochRecorder
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.optimizer import compile_model
from wca_tf.runs.training import train

STEPS = 20
# Adam divides a gradient by its own size: where that is near zero, rounding decides the sign of a change as large as
# the learning rate. 20 steps of 1e-5 in a wrong direction would be 20 times the tolerance; rounding stays below it.
TOLERANCE, LEARNING_RATE = 1e-5, 1e-5
SMALL = TrainConfig(
    max_train_examples=60 * STEPS // 2, batch_size=60, epochs=2, image_size=25, seed=3, learning_rate=LEARNING_RATE
)
VARIANTS = {
    "penalty": {},
    "constraint": {"defence": "wca:regularizer=constraint"},
    "official": {"defence": "reproduce.official:WCAOfficial:covariance=isotropic"},
    "crop_flip": {"augmentation": "crop_flip", "defence": "none", "learning_rate_schedule": "cosine"},
    "orthogonal": {
        **{"backbone": "orthogonal_net:width=8:blocks=1", "image_size": 8, "defence": "none", "margin_radius": 0.1},
        **{"optimizer": "orthogonal_muon", "learning_rate": 1e-3, "others_learning_rate": LEARNING_RATE},
    },
}
# Plain descent has no such trouble. ResNet-18 on so few positions is chaotic: on one device, a change of the weights by
# 1e-7 is one of 5e-3 after 3 steps of 0.01; so it gets small steps, which move its weights 200 times this tolerance.
DESCENT_TOLERANCE = 2e-6
ATTACKED_TOLERANCE = 1e-5  # the attack steps along signs, which rounding turns around where a gradient is near zero
LENET5 = {"learning_rate": 1e-3, "backbone": "lenet5"}
RESNET = {"backbone": "resnet18", "image_size": 8, "learning_rate": 1e-5, "defence": "wca:weight_decay=0.1"}
DESCENTS = {
    "lenet_plus_plus": {"learning_rate": 1e-3, "defence": "wca:weight_decay=0.1"},
    "lenet_plus_plus_constraint": {"learning_rate": 1e-3, "defence": "wca:regularizer=constraint"},
    "lenet_plus_plus_ct_at": {"learning_rate": 1e-3, "adversarial": "ct_at", "max_train_examples": 5 * 60},
    **{
        name: {**LENET5, "defence": name}
        for name in ("rse", "pni", "l2p", "adv_bnn", "se_snn", "smoothing", "ctrw", "rfd")
    },
    "pni_batch": {**LENET5, "defence": "pni:scope=batch"},
    "resnet18": RESNET,
    "resnet18_constraint": {**RESNET, "defence": "wca:weight_decay=0.1:regularizer=constraint"},
}
# 33 images in batches of 10 leave a last batch of 3, which two or three replicas cannot share evenly.
EVALUATION = EvaluateConfig(attacks="pgd:steps=3", epsilons="8/255", num_examples=33, batch_size=10, eot_samples=10)
EVERY_ATTACK = (
    "fgsm,bim:steps=2,pgd_restarts:restarts=2:steps=2,apgd_ce:steps=4,apgd_dlr:steps=4,auto_rand:steps=4,margin:steps=2,"
    "z_margin:steps=2,random_sampling:points=5,transfer:steps=2,cw:steps=5:searches=2,n_pixel:population=8:generations=2,"
    "square:queries=6,pgd:steps=2:targeted=true"
)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def cluster(workers):
    """TF_CONFIG of each worker."""
    hosts = [f"localhost:{port}" for port in free_ports(workers)]
    tasks = [{"type": "worker", "index": index} for index in range(workers)]
    return [json.dumps({"cluster": {"worker": hosts}, "task": task}) for task in tasks]


def start(root, arguments, tf_config=None):
    """A Python process, one worker where it has a TF_CONFIG."""
    path = os.pathsep.join([str(root), str(root / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, **({"TF_CONFIG": tf_config} if tf_config else {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *map(str, arguments)], env=environment, **pipes)


def finish(processes, seconds=1800):
    """[(exit status, stdout, stderr)], and no process left."""
    try:
        ended = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(processes, ended, strict=True)]


def run_jobs(root, strategy, jobs, devices=1, workers=0):
    """Every job, in one process with so many logical CPUs or in so many workers; the chief's stdout."""
    jobs = [
        [kind, {**dataclasses.asdict(config), "strategy": strategy}, *map(str, rest)] for kind, config, *rest in jobs
    ]
    arguments = [root / "tests" / "replicated.py", devices, json.dumps(jobs)]
    ended = finish([start(root, arguments, tf_config) for tf_config in (cluster(workers) if workers else [None])])
    assert all(code == 0 for code, _, _ in ended), [err[-3000:] for _, _, err in ended]
    for _, out, _ in ended[1:]:  # only the chief tells what it does, after the wait
        assert [line for line in out.splitlines() if not line.startswith("waiting for")] == ["replicas 1"]
    return ended[0][1]


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """one_device(VARIANT): the directory of a run on one device, trained once."""
    made = {}

    def directory(variant):
        if variant not in made:
            made[variant] = tmp_path_factory.mktemp("one_device") / variant
            (descend if variant in DESCENTS else train)(config_of(variant), made[variant])
        return made[variant]

    return directory


def config_of(variant):
    return dataclasses.replace(SMALL, **{**VARIANTS, **DESCENTS}[variant])


def check_equal_runs(one, other):
    """Weights within the tolerance, equal random streams, and metrics that agree."""
    mine, theirs = (load_model(ModelDirectory(path).last) for path in (one, other))
    assert int(mine.optimizer.iterations) == int(theirs.optimizer.iterations)
    for weight, its in zip(mine.variables, theirs.variables, strict=True):
        np.testing.assert_allclose(weight, its, rtol=0, atol=TOLERANCE, err_msg=weight.path)
    for line, its in zip(*(ModelDirectory(path).read_metrics() for path in (one, other)), strict=True):
        assert line.keys() == its.keys()
        for name in line.keys() - {"seconds", "cpu_seconds"}:
            assert abs(line[name] - its[name]) < 1e-3 * max(1, abs(line[name])), name


def check_equal_descents(one, other):
    """Weights within the tolerance of plain descent, and moving statistics to 1e-4 of their size."""
    tolerance = ATTACKED_TOLERANCE if one.name.endswith("ct_at") else DESCENT_TOLERANCE
    mine, theirs = (load_model(ModelDirectory(path).last) for path in (one, other))
    for weight, its in zip(mine.trainable_variables, theirs.trainable_variables, strict=True):
        np.testing.assert_allclose(weight, its, rtol=0, atol=tolerance, err_msg=weight.path)
    for state, its in zip(mine.non_trainable_variables, theirs.non_trainable_variables, strict=True):
        size = np.abs(state.numpy()).max()
        np.testing.assert_allclose(state, its, rtol=0, atol=1e-4 * size, err_msg=state.path)


def check_equal_images(mine, theirs):
    """Clean images beside attacked ones, but for pixels whose gradient rounding turned around."""
    assert mine.shape == theirs.shape
    np.testing.assert_array_equal(mine[::2], theirs[::2])
    assert np.mean(np.abs(mine - theirs) > 1e-6) < 1e-3


def check_equal_evaluations(one, other):
    """Two report directories agree but for rounding, by which an image at a boundary may turn over."""
    mine, theirs = (json.loads((path / "results.json").read_text()) for path in (one, other))
    assert mine.keys() == theirs.keys()
    for attack, its in zip([mine["clean"], *mine["attacks"]], [theirs["clean"], *theirs["attacks"]], strict=True):
        assert attack.get("config") == its.get("config")
        assert attack.get("passes", {}) == pytest.approx(its.get("passes", {}), rel=0.05)
        for name in ("accuracy", "noise_free_accuracy", "expected_accuracy"):
            assert abs(attack[name]["value"] - its[name]["value"]) < 1.5 / mine["num_examples"], name
    with np.load(one / "examples.npz") as mine, np.load(other / "examples.npz") as theirs:
        np.testing.assert_array_equal(mine["index"], theirs["index"])
        np.testing.assert_array_equal(mine["label"], theirs["label"])
        difference = np.abs(mine["probability_correct"] - theirs["probability_correct"])
        assert np.quantile(difference, 0.95) < 1e-3, np.sort(difference.ravel())[-20:]


def compare(root, tmp_path, one_device, variants, evaluation, strategy, **processes):
    """The nets of the variants, and an evaluation of that with the penalty, under a strategy and on one device.

    Of more than two variants: with every attack.
    """
    trained = one_device("penalty")
    jobs = [("descend" if v in DESCENTS else "train", config_of(v), tmp_path / v) for v in variants]
    if len(variants) > 2:
        jobs.append(("perturb", config_of("lenet_plus_plus_ct_at"), tmp_path / "perturbed.npy"))
        evaluation = dataclasses.replace(evaluation, attacks=f"{EVERY_ATTACK},transfer:steps=2:source={trained}")
    run_jobs(root, strategy, [*jobs, ("evaluate", evaluation, trained, tmp_path / "shared")], **processes)
    for variant in variants:
        (check_equal_descents if variant in DESCENTS else check_equal_runs)(one_device(variant), tmp_path / variant)
    if len(variants) > 2:
        perturb(config_of("lenet_plus_plus_ct_at"), tmp_path / "alone.npy")
        check_equal_images(np.load(tmp_path / "alone.npy"), np.load(tmp_path / "perturbed.npy"))
    evaluate(evaluation, trained, tmp_path / "alone")
    check_equal_evaluations(tmp_path / "alone", tmp_path / "shared")


@pytest.mark.slow
def test_two_workers_with_images_on_disk_descend_as_two_with_images_in_memory(root, tmp_path):
    digits = load_digits()
    for number in range(300):
        folder = tmp_path / "digits" / str(digits.target[number])
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.kron(digits.images[number] * 15, np.ones((4, 4))).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
    config = dataclasses.replace(config_of("lenet_plus_plus"), dataset=f"folder:{tmp_path / 'digits'}")
    for in_memory in ("true", "false"):
        placed = dataclasses.replace(config, in_memory=in_memory)
        run_jobs(root, "multi_worker", [("descend", placed, tmp_path / in_memory)], workers=2)
    mine, theirs = (load_model(ModelDirectory(tmp_path / each).last) for each in ("true", "false"))
    for weight, its in zip(mine.variables, theirs.variables, strict=True):
        np.testing.assert_array_equal(weight, its, err_msg=weight.path)


@pytest.mark.slow
def test_two_mirrored_devices_equal_one(root, tmp_path, one_device):
    compare(root, tmp_path, one_device, ["penalty", "constraint"], EVALUATION, "mirrored", devices=2)


@pytest.mark.slow
def test_orthogonal_steps_on_two_devices_are_those_of_one(root, tmp_path, one_device):
    run_jobs(root, "mirrored", [("train", config_of("orthogonal"), tmp_path / "shared")], devices=2)
    check_equal_runs(one_device("orthogonal"), tmp_path / "shared")


def test_two_workers_descend_as_one_device_does(root, tmp_path, one_device):
    run_jobs(root, "multi_worker", [("descend", config_of("lenet_plus_plus"), tmp_path / "shared")], workers=2)
    check_equal_descents(one_device("lenet_plus_plus"), tmp_path / "shared")


@pytest.mark.slow
def test_two_workers_evaluate_and_count_passes_as_one_device_does(root, tmp_path, one_device):
    compare(root, tmp_path, one_device, [], EVALUATION, "multi_worker", workers=2)


@pytest.mark.slow
def test_every_variant_and_attack_on_three_mirrored_devices_equals_one(root, tmp_path, one_device):
    compare(root, tmp_path, one_device, [*VARIANTS, *DESCENTS], EVALUATION, "mirrored", devices=3)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_every_variant_and_attack_on_several_workers_equals_one_device(root, tmp_path, one_device, workers):
    compare(root, tmp_path, one_device, [*VARIANTS, *DESCENTS], EVALUATION, "multi_worker", workers=workers)


def flags_of(config):
    return [f"--{name}={value}" for name, value in dataclasses.asdict(config).items()]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_worker_ends_the_others_and_all_go_on_from_the_backup(root, tmp_path, lost):
    """Killed within an epoch; started again one after the other, at the same addresses."""
    config = dataclasses.replace(SMALL, epochs=8)
    train(config, tmp_path / "whole")
    directory = ModelDirectory(tmp_path / "killed")
    arguments = [root / "bin" / "train", *flags_of(dataclasses.replace(config, strategy="multi_worker"))]
    arguments.append(f"--model_dir={directory.path}")
    workers = cluster(2)
    processes = [start(root, arguments, tf_config) for tf_config in workers]
    deadline = time.monotonic() + 120
    while len(directory.read_metrics()) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)  # into the next epoch
    processes[lost].kill()
    ended = finish(processes)
    code, out, err = ended[1 - lost]
    last = err.splitlines()[-1]
    assert code == 75 and last.startswith("error: another worker was lost"), (code, err[-3000:])
    assert "Graph execution error" not in last
    lines = len(directory.read_metrics())
    assert 2 <= lines < config.epochs and not directory.last.exists()
    epoch = int(load_model(directory.backup).optimizer.iterations.numpy()) // (STEPS // 2)
    assert epoch in (lines - 1, lines)  # an epoch's line is written before its backup, and the kill can come between

    again = []
    for tf_config in reversed(workers):
        again.append(start(root, arguments, tf_config))
        time.sleep(3)
    (other_code, other_out, _), (code, out, err) = finish(again)
    assert (other_code, code) == (0, 0), err[-3000:]
    said = [line for line in other_out.splitlines() if not line.startswith("waiting for all 2 workers")]
    assert f"resuming after epoch {epoch} of 8" in out and not said  # on a busy machine both wait
    whole, resumed = (load_model(path) for path in (ModelDirectory(tmp_path / "whole").last, directory.last))
    for one, other in zip(whole.variables, resumed.variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=4 * TOLERANCE, err_msg=one.path)
    assert [line["epoch"] for line in directory.read_metrics()] == list(range(1, 9))


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"learning_rate": 0.5}, {"seed": 4}, {"max_train_examples": 240}])
def test_workers_that_were_told_different_things_all_refuse(root, tmp_path, change):
    told = [SMALL, dataclasses.replace(SMALL, **change)]
    processes = [
        start(root, [root / "bin" / "train", *flags_of(config), f"--model_dir={tmp_path / 'model'}"], tf_config)
        for config, tf_config in zip(told, cluster(2), strict=True)
    ]
    for code, _, err in finish(processes):
        assert code == 2 and "expected the same flags, data and model on every worker" in err, err[-3000:]
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_a_worker_whose_peer_refuses_does_not_wait_for_it(root, tmp_path):
    arguments = [root / "bin" / "train", f"--model_dir={tmp_path / 'model'}", *flags_of(SMALL)]
    first, second = cluster(2)
    # The dataset of the second is not there, which it sees after the two have met.
    (tmp_path / "empty").mkdir()
    processes = [
        start(root, arguments, first),
        start(root, [*arguments, f"--dataset=folder:{tmp_path / 'empty'}"], second),
    ]
    (code, _, err), (other_code, _, other_err) = finish(processes)
    assert other_code == 2 and "folder" in other_err, other_err[-3000:]
    assert code == 75 and "another worker was lost" in err, err[-3000:]


@pytest.mark.slow
def test_a_cluster_of_one_worker_trains(root, tmp_path):
    run_jobs(root, "multi_worker", [("train", SMALL, tmp_path / "model")], workers=1)
    assert ModelDirectory(tmp_path / "model").last.exists()


def with_gpus(monkeypatch, count):
    """Let TensorFlow say that this machine has so many GPUs, whatever it has."""
    listed, gpus = tf.config.list_physical_devices, [types.SimpleNamespace(name=f"GPU:{i}") for i in range(count)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: gpus if kind == "GPU" else listed(kind))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: None)


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_one_device_is_tensorflows_default_and_auto_takes_all_gpus(monkeypatch, gpus):
    with_gpus(monkeypatch, gpus)
    mirrored = object()
    monkeypatch.setattr(strategy_module, "_mirrored", lambda: mirrored)
    one = tf.distribute.get_strategy()
    assert make_strategy("one_device") is one
    assert make_strategy("auto") is (mirrored if gpus > 1 else one)


def test_xla_is_for_one_gpu(monkeypatch):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"], cross_device_ops=tf.distribute.ReductionToOneDevice())
    check_shares(strategy, 7, jit_compile=False)
    with_gpus(monkeypatch, 0)
    with pytest.raises(InputError, match="one GPU"):
        check_shares(strategy, 7, jit_compile=True)
    with_gpus(monkeypatch, 1)
    check_shares(strategy, 7, jit_compile=True)


@pytest.mark.slow
def test_a_training_run_on_three_devices_refuses_batches_of_four(root, tmp_path):
    config = dataclasses.asdict(dataclasses.replace(SMALL, batch_size=4, strategy="mirrored"))
    job = json.dumps([["train", config, str(tmp_path / "model")]])
    [(code, _, err)] = finish([start(root, [root / "tests" / "replicated.py", 3, job])])
    assert code != 0 and "multiple of the 3 devices, received 4" in err
    assert not (tmp_path / "model").exists()


def test_batch_normalisation_is_synchronised_under_several_replicas_only():
    model = make_model(backbone=convolution())
    [layer] = [each for each in model.backbone.layers if isinstance(each, keras.layers.BatchNormalization)]
    for replicas in (2, 1):
        strategy = types.SimpleNamespace(num_replicas_in_sync=replicas)
        synchronise_batch_normalisation(model, strategy)
        assert layer.synchronized == (replicas > 1)


def test_loss_scaling_changes_no_step():
    """In float32 a factor of 1024 is exact, so that gradients are scaled back to what they were."""
    images, labels = toy_data(32)
    scaled, plain = make_model(), make_model()
    scaled.optimizer.loss_scale_factor = 1024.0
    for model in (scaled, plain):
        model.fit(images, labels, batch_size=16, epochs=2, shuffle=False, verbose=0)
    for one, other in zip(scaled.variables, plain.variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7, err_msg=one.path)


def test_mixed_float16_scales_its_loss_and_trains_as_float32_does():
    images, labels = toy_data(64)
    losses = {}
    for precision, scale in {"float32": 1, "mixed_float16": 1024}.items():
        model = make_model("isotropic", convolution(precision))
        compile_model(model, 0.01, 20, precision=precision)
        assert model.optimizer.scale_loss(1.0) == scale
        losses[precision] = model.fit(images, labels, batch_size=32, epochs=10, verbose=0).history["loss"]
        assert {layer.compute_dtype for layer in model.backbone.layers} == {precision.removeprefix("mixed_")}
    np.testing.assert_allclose(losses["mixed_float16"], losses["float32"], atol=0.1)  # 0.04 seen
    assert losses["float32"][0] - losses["float32"][-1] > 1  # the tolerance is small against what was learned


@pytest.mark.slow
def test_a_step_compiled_by_xla_learns_and_a_loss_of_nan_is_an_error_there_too(tmp_path):
    """XLA draws other numbers from the same seed, and drops the graph's own check of the loss."""
    images, labels = toy_data(64)
    model = make_model(backbone=convolution())
    compile_model(model, 0.01, 40, jit_compile=True)
    losses = model.fit(images, labels, batch_size=32, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    recorder = EpochRecorder(ModelDirectory(tmp_path), 0)
    with pytest.raises(InputError, match="training diverged"):
        model.fit(images * np.nan, labels, batch_size=32, verbose=0, callbacks=[recorder])
    assert not list(tmp_path.iterdir())


def seconds_to_end(processes, number):
    """(the exit status of each process, seconds) after all got a signal."""
    sent = time.monotonic()
    for process in processes:
        process.send_signal(number)
    return [process.wait(timeout=20) for process in processes], time.monotonic() - sent


@pytest.fixture
def started(root, command_environment, tmp_path):
    """started(flags, TF_CONFIG) is a process of bin/train; those that still run are killed at the end."""
    running = []

    def start_training(*options, tf_config=None):
        environment = command_environment | ({"TF_CONFIG": tf_config} if tf_config else {})
        command = [sys.executable, str(root / "bin" / "train"), "--dataset=digits", "--backbone=lenet5", *options]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        running.append(subprocess.Popen(command, env=environment, cwd=tmp_path, text=True, **output))
        return running[-1]

    yield start_training
    for process in running:
        process.kill()
        process.wait()


def seen(process, text):
    """Whether a line with the text comes before the process's output ends."""
    return any(text in line for line in iter(process.stdout.readline, ""))


@pytest.mark.parametrize(
    ("number", "status"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_a_worker_that_waits_for_another_says_so_and_ends_by_a_signal(started, number, status):
    waiting = started("--model_dir=m", tf_config=cluster(2)[1])
    assert seen(waiting, "waiting for all 2 workers")
    time.sleep(1)
    statuses, seconds = seconds_to_end([waiting], number)
    assert statuses == [status] and seconds < 2


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_ends_every_process_that_trains(started, workers):
    """On one device by the signal itself."""
    configs = cluster(2) if workers == 2 else [None]
    processes = [started("--model_dir=m", "--epochs=500", tf_config=each) for each in configs]
    assert seen(processes[0], "steps an epoch")
    time.sleep(10)
    statuses, seconds = seconds_to_end(processes, signal.SIGTERM)
    assert statuses == ([143, 143] if workers == 2 else [-signal.SIGTERM]) and seconds < 2


@pytest.mark.slow
def test_workers_whose_parents_are_killed_end_too(started, tmp_path):
    waiting = started("--model_dir=m", tf_config=cluster(2)[1])
    assert seen(waiting, "waiting for all 2 workers")
    [child] = map(int, Path(f"/proc/{waiting.pid}/task/{waiting.pid}/children").read_text().split())
    waiting.kill()
    waiting.wait()
    end = time.monotonic() + 5
    while (alive := Path(f"/proc/{child}/stat").exists()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive


@pytest.mark.parametrize("noise", ["none", "before the features"])
def test_a_float16_backbone_loses_no_gradient_of_an_attack(noise):
    """Confident nets have small gradients, which would underflow to a zero that looks like robustness."""
    images, labels = toy_data(64)
    shares = {}
    for precision in ("float32", "mixed_float16"):
        model = make_model("none", convolution(precision))
        model.classifier.kernel.assign(160 * model.classifier.kernel)
        target = adapt(model)
        if noise == "before the features":
            target = SampledTarget(model.logits, noise_free_logits=model.noise_free_logits)
        predicted = np.argmax(target.noise_free_logits(target.features(images)), axis=1)
        zero = zero_gradients_of(build_attack("pgd", 8 / 255), target, images, predicted)
        shares[precision] = zero.mean()
    distances = margins.margin(target.noise_free_logits(target.features(images)), tf.constant(predicted))
    assert 10 < np.median(distances) < 30
    assert abs(shares["mixed_float16"] - shares["float32"]) < 0.05, shares
