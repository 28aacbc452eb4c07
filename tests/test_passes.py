"""Passes: counts against closed forms, on every kind of net, and the bar that moves while a graph runs."""

import dataclasses
import json
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from attack_nets import At, perturbed_by, random_images, seeded_net, tanh_target
from evaluation_nets import assert_same_outcomes, dense_net, digits

from wca_tf.attacks import BallAttack, parse_attack
from wca_tf.evaluation import pass_progress, trials
from wca_tf.evaluation.outcomes import load_outcome, record_path
from wca_tf.nets import passes
from wca_tf.nets.adapter import adapt
from wca_tf.nets.sampled_target import SampledTarget

DRAWS = 20
IMAGES = 3


def random_net(**options):
    """A net whose draws are passes, 8 at a time; three parts of 20 draws are not of one size."""
    return SampledTarget(seeded_net, noise_free_logits=lambda images: seeded_net(images, [0, 0]), **options)


def in_one_pass(images, seeds, numbers):
    return tf.map_fn(lambda seed: seeded_net(images, seed), seeds, fn_output_signature=tf.float32)


NETS = {
    "gaussian": tanh_target(classes=3, scale=0.3),
    "anywhere": random_net(),
    "several draws a pass": random_net(logits_of_draws=in_one_pass, per_image_noise=True),
}
# Attack -> (forward, backward) for noise in the head, and for noise anywhere, where a draw is a pass.
CLOSED_FORMS = {
    "fgsm": ((1, 1), (DRAWS, DRAWS)),
    "pgd:steps=5": ((5, 5), (5 * DRAWS, 5 * DRAWS)),
    "apgd_ce:steps=5": ((6, 6), (2 * 6 * DRAWS, 6 * DRAWS)),
    "square:queries=4:stop_at=0.0": ((6, 0), (6 * DRAWS, 0)),  # two for the units of the bounded margin
    "n_pixel:objective=margin:population=5:generations=3": ((5 * 4 + 1, 0), (21 * DRAWS, 0)),
    "random_sampling:points=7": ((8, 0), (8 * DRAWS, 0)),
    "transfer:steps=4": ((4, 4), (4, 4)),
    "single_draw:steps=3": ((3, 3), (3, 3)),
    # Three runs of two steps, each judged by draws, as the image itself is.
    "pgd_restarts:steps=2:restarts=3:stop_at=0.0": ((3 * 3 + 1, 6), (6 * DRAWS + 4 * 200, 6 * DRAWS)),
}


def labels_of(target, images):
    """Labels that the net gives, so that no image is lost at once."""
    logits = target.logits(target.features(images), tf.constant([0, 0]), 200)
    return np.argmax(np.mean(logits, axis=0), axis=1)


def passes_of(text, target, images=None, **arguments):
    images = random_images(IMAGES) if images is None else images
    attack = parse_attack(text, eot_samples=DRAWS) if isinstance(text, str) else text
    return perturbed_by(At(attack, 1e-3), target, images, labels_of(target, images), **arguments).passes


ONE_GRADIENT_NO_GRADIENT = ("pgd:steps=5", "square:queries=4:stop_at=0.0")  # where several draws are a pass


@pytest.mark.parametrize(
    ("net", "text"),
    [
        *((net, text) for net in ("gaussian", "anywhere") for text in CLOSED_FORMS),
        *(("several draws a pass", text) for text in ONE_GRADIENT_NO_GRADIENT),
    ],
)
def test_passes_are_those_of_the_closed_form(net, text):
    assert passes_of(text, NETS[net]) == CLOSED_FORMS[text][net != "gaussian"]


def test_the_second_run_of_a_graph_counts_the_same():
    assert passes_of("pgd:steps=5", NETS["anywhere"]) == passes_of("pgd:steps=5", NETS["anywhere"])


def test_a_cascade_counts_its_members_and_what_it_judges_by():
    """Auto-PGD twice, a pass to judge each, and one for the image; none is spent on images that are lost."""
    assert passes_of("auto_rand:steps=4:eot_samples=20:stop_at=0.0", NETS["gaussian"]) == (2 * 6 + 1, 2 * 5)
    target, images = NETS["gaussian"], random_images(4)
    labels = labels_of(target, images)
    right = perturbed_by(At(parse_attack("pgd_restarts:restarts=2"), 0.0), target, images, labels).passes
    wrong = np.where(np.arange(4) < 2, (labels + 1) % 3, labels)
    sure = tanh_target(classes=3)  # without noise an image is lost at once, or never
    half = perturbed_by(At(parse_attack("pgd_restarts:restarts=2"), 0.0), sure, images, wrong).passes
    whole = perturbed_by(At(parse_attack("pgd_restarts:restarts=2"), 0.0), sure, images, labels_of(sure, images)).passes
    assert right.forward >= whole.forward / 2
    assert whole == (2 * 11 + 1, 20) and half.backward < 20


@pytest.mark.parametrize("net", ["several draws a pass"])
def test_a_lost_image_costs_nothing_more_where_each_draws_for_itself(net):
    """All images are lost: one judgement by 200 draws is all that they cost."""
    target, images = NETS[net], random_images(4)
    attack = parse_attack("pgd_restarts:restarts=2:stop_at=1.0", eot_samples=DRAWS)
    assert perturbed_by(At(attack, 0.1), target, images, labels_of(target, images)).passes == (200, 0)


def test_nets_made_of_a_net_count_its_passes_alone():
    for target, draws in ((NETS["gaussian"], 1), (NETS["anywhere"], 4 * DRAWS)):
        assert passes_of("fgsm", target.averaged(4)) == (draws, draws)
    for net in NETS.values():
        assert passes_of("fgsm:eot_samples=1", net.with_fixed_draw(tf.constant([1, 2]))) == (1, 1)
    assert passes_of("fgsm", NETS["gaussian"].without_noise()) == (1, 1)


def test_a_source_counts_where_images_are_made():
    attack = dataclasses.replace(parse_attack("transfer:steps=3", eot_samples=DRAWS), source=NETS["anywhere"])
    assert passes_of(attack, NETS["gaussian"]) == (3 * DRAWS, 3 * DRAWS)


@dataclasses.dataclass(frozen=True)
class OwnAttack(BallAttack):
    """A user's: two gradients of its own, and a look at the features."""

    passes = 3

    def perturb(self, target, batch, epsilon, seed):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(batch.images)
            logits = target.logits(target.features(batch.images), seed, 1, batch.indices)
            first, second = logits[0, :, 0], logits[0, :, 1]
        step = tape.gradient(first, batch.images) - tape.gradient(second, batch.images)
        moved = tf.clip_by_value(batch.images + epsilon * tf.sign(step), 0.0, 1.0)
        target.logits(target.features(moved), seed, 1, batch.indices)
        return moved


@pytest.mark.parametrize("net", NETS)
def test_an_attack_of_a_users_own_is_counted(net):
    assert passes_of(OwnAttack(), NETS[net]) == (2, 2)


def test_judging_and_checks_are_not_the_attacks():
    before = passes.passes_so_far()
    result = parse_attack("fgsm")(NETS["gaussian"], random_images(IMAGES), np.zeros(IMAGES, np.int64))
    assert passes.passes_so_far().since(before) == (2 * IMAGES, IMAGES)  # one pass judges
    assert isinstance(result.images, np.ndarray)


def test_a_graph_outside_attacks_counts_nothing():
    before = passes.passes_so_far()
    tf.function(lambda images: NETS["anywhere"].logits(images, tf.constant([0, 0]), 2))(random_images(2))
    assert passes.passes_so_far() == before


REPLICATED = """
import json, sys
import numpy as np, tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from wca_tf.distribution.strategy import make_strategy
strategy = make_strategy("mirrored")
assert strategy.num_replicas_in_sync == 2
from test_passes import NETS, passes_of
from attack_nets import random_images
cases = [("gaussian", "pgd:steps=5"), ("anywhere", "fgsm"), ("several draws a pass", "square:queries=4:stop_at=0.0")]
with strategy.scope():
    print(json.dumps([[net, text, passes_of(text, NETS[net], random_images(5))] for net, text in cases]))
"""


def test_two_replicas_count_the_whole(root):
    done = subprocess.run(
        [sys.executable, "-c", REPLICATED],
        cwd=root,
        env={"PYTHONPATH": f"{root}:{root / 'tests'}", "TF_CPP_MIN_LOG_LEVEL": "3", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counted = json.loads(done.stdout.splitlines()[-1])
    assert len(counted) == 3
    for net, text, found in counted:
        assert tuple(found) == CLOSED_FORMS[text][net != "gaussian"], (net, text)


# Records and results


def evaluated(records, count=7, text="pgd:steps=3", target=None, epsilon=0.1):
    _, test = digits(4)
    target = target or adapt(dense_net(4))
    work = [trials.CLEAN_TRIAL, trials.trial_of(parse_attack(text), epsilon)]
    return trials.run_attacks(target, work, test.take(slice(0, count)), trials.Settings(batch_size=4), records)


def test_records_have_the_passes_of_each_image_and_padding_does_not_count(tmp_path):
    clean, attacked = evaluated(tmp_path)
    assert (clean.forward_passes.tolist(), clean.backward_passes.tolist()) == ([0] * 7, [0] * 7)
    assert (attacked.forward_passes.tolist(), attacked.backward_passes.tolist()) == ([3] * 7, [3] * 7)
    assert_same_outcomes(evaluated(tmp_path), [clean, attacked])
    assert attacked.numbers()["passes"] == {"forward": 3.0, "backward": 3.0}


@pytest.mark.parametrize(("form", "lacks"), [(None, "_passes"), (2, "useless_gradients")])
def test_a_record_of_an_older_form_is_made_again(form, lacks, tmp_path):
    _, whole = evaluated(tmp_path)
    path = record_path(tmp_path, whole.name, whole.radius)
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files if not name.endswith(lacks)}
    described = json.loads(str(arrays.pop("described")))
    described["config"]["record"] = form
    np.savez(path, described=np.array(json.dumps(described)), **arrays)
    algorithms = trials.trial_of(parse_attack("pgd:steps=3"), 0.1).versions
    assert load_outcome(tmp_path, whole.name, whole.radius, algorithms) is None
    assert_same_outcomes(evaluated(tmp_path)[1:], [whole])


# The bar


class Bar:
    """A bar that notes what it shows."""

    disable = False

    def __init__(self, total, unit):
        self.total, self.unit, self.n, self.desc, self.shown, self.closed = total, unit, 0, "", [], False

    def update(self, more):
        self.n += more
        self.shown.append((self.n, self.total, self.desc))

    def set_description(self, text):
        self.desc = f"{text}: "

    def set_description_str(self, text, refresh):
        self.desc = text

    def close(self):
        self.closed = True


@pytest.fixture
def bars(monkeypatch):
    made = []
    monkeypatch.setattr(pass_progress, "progress_bar", lambda total, unit: made.append(Bar(total, unit)) or made[-1])
    monkeypatch.setattr(pass_progress, "INTERVAL", 0.002)
    return made


def slow_target(bars):
    """A net of 4 classes that waits at each call until the bar has shown something, at most for a second."""
    net = adapt(dense_net(4))

    def wait():
        before, end = len(bars[-1].shown), time.monotonic() + 1
        while len(bars[-1].shown) == before and time.monotonic() < end:
            time.sleep(0.001)
        return np.float32(0)

    def logits(images):
        with tf.control_dependencies([tf.numpy_function(wait, [], tf.float32)]):
            return net.features(tf.identity(images))

    return type(net)(logits, tf.identity, tf.zeros([4, 1]))


def test_the_bar_moves_inside_a_cascade_and_names_its_members_and_images(bars, tmp_path):
    text = "adaptive:steps=5:apgd_steps=5:class_steps=1:classes=2:queries=10"
    evaluated(tmp_path, count=4, text=text, target=slow_target(bars), epsilon=0.001)  # so that Square has images left
    [bar] = bars
    assert bar.unit == "passes" and bar.closed and bar.n == bar.total
    inside = [(made, shown) for made, _, shown in bar.shown if " of 4 images" in shown]
    assert len({made for made, _ in inside}) >= 10  # all of them within one batch
    named = {shown.split(": ")[1].split(",")[0] for _, shown in inside}
    assert {"pgd on z_margin", "apgd on dlr", "square"} <= named
    assert all(shown.startswith(f"{text} 0.001: ") for _, shown in inside)
    building = [made for made, _, shown in bar.shown if shown == f"{text} 0.001: building the graph: "]
    assert building and len(set(building)) == 1 and building[0] < min(made for made, _ in inside)
    assert all(made <= total for made, total, _ in bar.shown)
    assert [made for made, _, _ in bar.shown] == sorted(made for made, _, _ in bar.shown)


def test_the_thread_ends_with_its_bar_also_after_an_error(bars, tmp_path, monkeypatch):
    import threading

    for error in (None, KeyboardInterrupt, RuntimeError):
        if error:
            monkeypatch.setattr(trials, "_attack_batch", lambda *_, error=error: (_ for _ in ()).throw(error()))
            with pytest.raises(error):
                evaluated(tmp_path / error.__name__)
        else:
            evaluated(tmp_path / "whole")
        assert bars[-1].closed and not any(thread.name == "progress" for thread in threading.enumerate())


def test_the_estimate_is_the_count_where_no_image_is_lost(bars, tmp_path):
    """Of clean images, and of an attack whose passes do not depend on them, with its check and its judge."""
    evaluated(tmp_path)
    [bar] = bars
    first = bar.shown[0][1]
    assert first == bar.n == 8 * (1 + 2 * 3 + 2 + 1)
