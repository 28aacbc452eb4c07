"""An evaluation in one file: `Evaluation.save`, and `Evaluation.read` of it."""

import json
import zipfile

import numpy as np
import pytest

import wca_tf
from wca_tf import Evaluation, InputError


@pytest.fixture(scope="module")
def evaluation(trained, tmp_path_factory):
    config = wca_tf.EvaluateConfig(attacks="fgsm,margin:steps=2", epsilons="0.1", num_examples=12, known_draws=True)
    return wca_tf.evaluate_model_dir(config, trained, tmp_path_factory.mktemp("packing") / "report")


@pytest.fixture(scope="module")
def packed(evaluation, tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "net.zip"
    evaluation.save(path)
    return path


def test_a_packed_evaluation_has_the_same_numbers_of_each_image(evaluation, packed):
    again = Evaluation.read(packed)
    assert again.directory == packed
    of_the_machine = dict.fromkeys(("model_dir", "modules", "training"))
    assert {**again.results, **of_the_machine} == {**evaluation.results, **of_the_machine}
    for name in ("fgsm", "margin:steps=2"):
        one, other = (each.attack(name, 0.1) for each in (evaluation, again))
        np.testing.assert_array_equal(one.judgement.probability_correct, other.judgement.probability_correct)
        np.testing.assert_array_equal(one.linf, other.linf)
    assert again.less(evaluation)["value"] == 0


def test_a_packed_evaluation_has_no_images_and_no_path_of_this_machine(evaluation, packed, tmp_path):
    with zipfile.ZipFile(packed) as archive:
        text = archive.read("evaluation.json").decode()
    assert str(evaluation.directory.parent) not in text and '"tfds_data_dir": ""' in text
    assert all(len(each.images) == 0 for each in Evaluation.read(packed).attacks)


def test_equal_evaluations_are_equal_files(evaluation, packed, tmp_path):
    Evaluation.read(evaluation.directory).save(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()


@pytest.mark.parametrize("broken", [{"net": [1]}, {"model": {}}, {"training": {}}, {"has_noise": None}])
def test_an_archive_with_broken_contents_is_refused_in_one_line(packed, tmp_path, broken):
    path = tmp_path / "net.zip"
    with zipfile.ZipFile(packed) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            new.writestr(name, json.dumps({**json.loads(text), **broken}) if name == "evaluation.json" else text)
    with pytest.raises(InputError, match="expected an evaluation in one file, .*net.zip"):
        Evaluation.read(path)


def test_an_evaluation_is_saved_into_a_file_alone(evaluation, tmp_path):
    for path in ("/dev/null", tmp_path, tmp_path / "absent" / "net.zip"):
        with pytest.raises(InputError, match="expected a file in a folder that there is"):
            evaluation.save(path)


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_file_that_is_no_evaluation_is_refused_in_one_line(packed, tmp_path, content):
    path = tmp_path / "net.zip"
    path.write_bytes(packed.read_bytes()[:-40] if content is None else content)
    with pytest.raises(InputError, match="expected an evaluation in one file") as raised:
        Evaluation.read(path)
    assert "\n" not in str(raised.value)
