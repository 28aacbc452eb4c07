"""`wca_tf.evaluate`: a net attacked from Python, and any Keras classifier from its file."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from evaluation_nets import dense_net, digits, read_strictly

import wca_tf
from wca_tf.attacks.balls import BALLS
from wca_tf.core.errors import InputError
from wca_tf.evaluation.derive import DERIVED, report_again
from wca_tf.evaluation.keras_file import load_classifier

CHEAP = {"attacks": ["fgsm", "pgd:steps=3"], "epsilons": [0.1], "eot_samples": 2}


@dataclasses.dataclass(frozen=True)
class TowardsGrey(wca_tf.BallAttack):
    """Towards grey, as far as the ball allows."""

    share: float = wca_tf.option(1.0, "of the way", maximum=1)

    @property
    def passes(self):
        return 1

    def perturb(self, target, batch, epsilon, seed):
        change = BALLS[self.norm].project(self.share * (0.5 - batch.images), epsilon)
        return tf.clip_by_value(batch.images + change, 0.0, 1.0)


@pytest.fixture(scope="module")
def net():
    return dense_net(4)


@pytest.fixture(scope="module")
def images():
    test = digits(4)[1]
    return test.images[:30], test.labels[:30]


@pytest.fixture(scope="module")
def report(net, images):
    return wca_tf.evaluate(net, *images, **CHEAP)


def test_nothing_is_written_unless_a_directory_is_named(net, images, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    wca_tf.evaluate(net, *images, **CHEAP)
    assert list(tmp_path.iterdir()) == [] and "written" not in capsys.readouterr().out


def test_a_named_directory_gets_what_the_command_writes_and_is_gone_on_with(net, images, report, tmp_path, capsys):
    written = wca_tf.evaluate(net, *images, report_dir=tmp_path / "report", **CHEAP)
    assert read_strictly(tmp_path / "report" / "results.json") == dict(written)
    assert written["attacks"][0]["expected_accuracy"] == report["attacks"][0]["expected_accuracy"]
    more = wca_tf.evaluate(net, *images, report_dir=tmp_path / "report", **{**CHEAP, "attacks": ["bim:steps=2"]})
    assert [row["name"] for row in more["attacks"]] == ["fgsm", "pgd:steps=3", "bim:steps=2"]


def test_a_report_shows_itself_as_a_table(report):
    text, page = repr(report), report._repr_html_().replace("<wbr>", "")  # where a browser may break a name
    worst = f"{100 * report['worst_case'][0]['expected_accuracy']['value']:.1f}"
    for shown in (text, page):
        assert "pgd:steps=3" in shown and "worst case" in shown and worst in shown and "30 images" in shown
    assert page.startswith("<table>") and page.count("<tr") == 6  # heads, clean, radius, two attacks, worst case


def test_a_report_is_json_and_a_mapping(report, tmp_path):
    assert json.loads(report.to_json(tmp_path / "numbers.json")) == dict(report)
    assert read_strictly(tmp_path / "numbers.json") == dict(report)
    assert set(report) >= {"clean", "attacks", "worst_case"} and len(report) == len(list(report))


def test_hostile_names_do_not_reach_the_notebook(net, images):
    report = wca_tf.evaluate(net, *images, **CHEAP, name="<script>alert(1)</script>")
    assert "<script>" not in report._repr_html_()


def test_attacks_may_be_objects_of_ones_own(net, images, tmp_path):
    own = TowardsGrey(share=0.5)
    asked = {**CHEAP, "attacks": [own, "fgsm"], "report_dir": tmp_path / "report"}
    report = wca_tf.evaluate(net, *images, **asked)
    first = report["attacks"][0]
    assert first["name"].endswith("TowardsGrey:share=0.5") and first["config"]["kind"] == "own"
    assert first["distortion"]["linf"]["mean"] <= 0.1 + 1e-6
    again = wca_tf.evaluate(net, *images, **asked)
    assert dict(again) == dict(report)


def test_radii_may_be_numbers_and_texts_of_two_norms(net, images):
    asked = {**CHEAP, "attacks": ["fgsm", "fgsm:norm=l2"], "epsilons": [8 / 255, "l2:0.5"]}
    report = wca_tf.evaluate(net, *images, **asked)
    assert [(worst["norm"], worst["epsilon"]) for worst in report["worst_case"]] == [
        ("linf", 8 / 255),
        ("l2", 8 / 255),
        ("l2", 0.5),
    ]


@pytest.mark.parametrize("epsilons", [np.array(0.1), np.array([0.1]), tf.constant([0.1])])
def test_radii_may_be_arrays_and_tensors(net, images, epsilons):
    [entry] = wca_tf.evaluate(net, *images, attacks="fgsm", epsilons=epsilons)["attacks"]
    assert entry["epsilon"] == pytest.approx(0.1)


def test_a_single_radius_and_attacks_as_text_are_what_the_command_takes(net, images, report):
    told = wca_tf.evaluate(net, *images, **{**CHEAP, "attacks": "fgsm,pgd:steps=3", "epsilons": 0.1})
    for row, own in zip(report["attacks"], told["attacks"], strict=True):
        assert {**row, "seconds": 0} == {**own, "seconds": 0}
    [row] = wca_tf.evaluate(net, *images, **{**CHEAP, "attacks": TowardsGrey(share=0.5)})["attacks"]
    assert row["config"]["share"] == 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attacks": []}, "attacks"),
        ({"attacks": ["fgsm", "fgsm"]}, "once"),
        ({"attacks": ["nothing"]}, "nothing"),
        ({"epsilons": []}, "epsilons"),
        ({"epsilons": [-0.1]}, "epsilons"),
        ({"epsilons": [float("nan")]}, "epsilons"),
        ({"eot_samples": 0}, "eot_samples"),
        ({"epsilons": [[0.1]]}, "single items in --epsilons"),
        ({"attacks": [["fgsm"]]}, "single items in --attacks"),
        ({"report_dir": ""}, "directory as report_dir"),
        ({"report_dir": 5}, "directory as report_dir"),
    ],
)
def test_wrong_arguments_are_an_input_error(net, images, changes, message):
    with pytest.raises(InputError, match=message):
        wca_tf.evaluate(net, *images, **{**CHEAP, **changes})


def test_wrong_paths_and_splits_are_an_input_error(tmp_path):
    for wrong in (
        lambda: wca_tf.evaluate_model_dir(wca_tf.EvaluateConfig(), tmp_path / "absent"),
        lambda: wca_tf.load_model(str(tmp_path / "absent.keras")),
        lambda: wca_tf.compare_evaluations(str(tmp_path)),
        lambda: wca_tf.compare_evaluations([]),
        lambda: wca_tf.load_examples(wca_tf.DataConfig(), "tset"),
        lambda: wca_tf.load_examples(wca_tf.DataConfig(), "test", -5),
    ):
        with pytest.raises(InputError, match="expected"):
            wrong()


def test_files_of_something_else_are_not_replaced(net, images, tmp_path):
    for name in ("model_card.md", ".lock"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match="model_card.md is of something else"):
        wca_tf.evaluate(net, *images, **CHEAP, report_dir=tmp_path)
    (tmp_path / "model_card.md").rename(tmp_path / "other.md")
    wca_tf.evaluate(net, *images, **CHEAP, report_dir=tmp_path)
    assert (tmp_path / "other.md").read_text() == (tmp_path / ".lock").read_text() == "mine"


def test_files_that_are_made_from_records_are_never_read_and_made_again_when_asked_for(net, images, tmp_path):
    wca_tf.evaluate(net, *images, **CHEAP, report_dir=tmp_path)
    written = {name: (tmp_path / name).read_bytes() for name in DERIVED}
    for name in DERIVED:
        (tmp_path / name).write_bytes(b"broken")
    assert wca_tf.evaluate(net, *images, **CHEAP, report_dir=tmp_path) == report_again(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in DERIVED} == written
    for name in DERIVED:
        (tmp_path / name).unlink()
        wca_tf.evaluate(net, *images, **CHEAP, report_dir=tmp_path)
        assert (tmp_path / name).read_bytes() == written[name]


def test_what_bin_train_left_is_evaluated_in_python_too(trained, tmp_path):
    config = wca_tf.EvaluateConfig("fgsm", "0.1", num_examples=20)
    report = wca_tf.evaluate_model_dir(config, trained, tmp_path / "report")
    assert dict(report) == read_strictly(tmp_path / "report" / "results.json")


# From a file


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "net.keras"
    test = digits()[1]
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, "softmax")]
    net = keras.Sequential(layers)
    net.compile("adam", "sparse_categorical_crossentropy")
    net.fit(test.images / np.float32(255), test.labels, epochs=20, verbose=0)
    net.save(path)
    return path


def test_a_keras_file_is_evaluated_by_its_logits(file, command, tmp_path):
    shared = ("--dataset=digits", "--image_size=8", "--attacks=fgsm", "--epsilons=0.1", "--num_examples=30")
    done = command("evaluate", f"--model={file}", *shared, "--report_dir=report", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "the logits before the softmax" in done.out and "fgsm" in done.out
    results = read_strictly(tmp_path / "report" / "results.json")
    assert results["model"]["name"] == "net.keras" and results["training"] is None
    assert results["clean"]["accuracy"]["value"] > 0.5 > results["worst_case"][0]["expected_accuracy"]["value"]


@pytest.mark.parametrize("suffix", ["keras", "h5"])
@pytest.mark.parametrize("last", [keras.layers.Softmax, lambda: keras.layers.Activation("sigmoid")])
def test_a_softmax_or_sigmoid_at_the_end_of_a_file_is_left_out(tmp_path, last, suffix):
    logits = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(4)])
    path = tmp_path / f"net.{suffix}"
    keras.Sequential([keras.Input((8, 8, 1)), *logits.layers, last()]).save(path)
    images = tf.random.stateless_uniform([3, 8, 8, 1], [0, 0])
    np.testing.assert_allclose(wca_tf.adapt(load_classifier(path)).features(images), logits(images), atol=1e-6)


def test_a_net_of_this_package_is_evaluated_from_its_file_too(trained, command, tmp_path):
    shared = ("--dataset=digits", "--image_size=25", "--attacks=fgsm", "--epsilons=0.1", "--num_examples=10")
    done = command("evaluate", f"--model={trained / 'model.keras'}", *shared, "--report_dir=report", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "fgsm" in done.out and read_strictly(tmp_path / "report" / "results.json")["training"] is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--model=absent.keras", "--dataset=digits", "--report_dir=r"), "absent.keras"),
        (("--model=net.keras", "--dataset=digits"), "--report_dir"),
        (("--model=net.keras", "--report_dir=r"), "--dataset"),
        (("--model=net.keras", "--dataset=digits", "--report_dir=r", "--model_dir=m"), "both"),
        (("--model=net.keras", "--dataset=no_such_set", "--report_dir=r", "--tfds_data_dir=."), "no_such_set"),
    ],
)
def test_a_wrong_command_for_a_file_is_one_line_at_once(command, tmp_path, arguments, told):
    (tmp_path / "net.keras").write_text("no net")
    done = command("evaluate", *arguments, cwd=tmp_path)
    assert done.code == 2 and told in done.err and len(done.err.splitlines()) == 1
    assert not (tmp_path / "r").exists()


def test_a_file_that_is_no_net_of_these_images_is_one_line(file, command, tmp_path):
    (tmp_path / "broken.keras").write_text("no net")
    shared = ("--dataset=digits", "--report_dir=r", "--attacks=fgsm", "--num_examples=5")
    for model, told in ((tmp_path / "broken.keras", "broken.keras"), (file, "received one that takes (8, 8, 1)")):
        done = command("evaluate", f"--model={model}", *shared, "--image_size=9", cwd=tmp_path)
        assert done.code == 2 and len(done.err.strip().splitlines()) == 1, done.err
        assert told in done.err
    assert not (tmp_path / "r").exists()
