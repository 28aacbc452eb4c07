"""Broken and hostile input, made up by hypothesis: one clear line, nothing lost, and no code run from a file."""

import contextlib
import copy
import dataclasses
import io
import json
import math
import os
import shutil
import subprocess
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wca_tf.attacks import parse_attack
from wca_tf.attacks.radii import Radius, parse_radii
from wca_tf.core.errors import InputError
from wca_tf.data.config import DataConfig
from wca_tf.data.preflight import check_dataset_present
from wca_tf.data.sources import load_examples
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.identity import read_described
from wca_tf.evaluation.measures.measure import read_measured
from wca_tf.evaluation.outcomes import load_outcome, record_path
from wca_tf.evaluation.record import Evaluation
from wca_tf.evaluation.runner import evaluate
from wca_tf.nets.model_files import load_model, target_in
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.preflight import check_source_present, check_sources_present
from wca_tf.serving.config import ExportConfig
from wca_tf.serving.export import export_model_dir

# The same examples in every run: a failure of CI is one that can be repeated.
FUZZ = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FEW = settings(FUZZ, max_examples=12)
HOSTILE = [
    "",
    " ",
    "\n",
    "\x00",
    "../../etc/passwd",
    "~nobody_here/x",
    "$(touch x)",
    "'; rm -rf x",
    "\udcff",
    "é/ü",
    "a" * 5000,
]
TEXT = st.sampled_from(HOSTILE) | st.text(max_size=20)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from([0, 1, -1, 2**31, math.nan, math.inf])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
EVALUATION = EvaluateConfig(attacks="fgsm", epsilons="0.1", num_examples=4, eot_samples=2)


@contextlib.contextmanager
def clear():
    """What may be raised inside: an InputError whose text is no stack of other libraries' lines."""
    try:
        yield
    except InputError as error:
        assert str(error) and "Traceback" not in str(error)


def values_of(field):
    """Values of a field's own type, as a flag's parser gives them."""
    kind = type(field.default)
    return {
        bool: st.booleans(),
        int: st.integers(-(2**70), 2**70),
        float: st.floats(),
        str: TEXT | st.sampled_from(field.metadata["bounds"].choices or HOSTILE),
    }[kind]


@pytest.mark.parametrize("config_class", [TrainConfig, EvaluateConfig, ExportConfig])
@FUZZ
@given(data=st.data())
def test_a_configuration_is_made_or_refused(config_class, data):
    fields = data.draw(st.lists(st.sampled_from(dataclasses.fields(config_class)), max_size=4, unique=True))
    with clear():
        config = config_class(**{field.name: data.draw(values_of(field), label=field.name) for field in fields})
        if config_class is TrainConfig:
            check_source_present(config)
            check_dataset_present(dataclasses.replace(config, download=False))
        if config_class is EvaluateConfig:
            check_sources_present(config.parsed_attacks)


@FUZZ
@given(text=TEXT | st.lists(st.sampled_from([*"0123456789./,-e", "inf", "nan", "/0"]), max_size=8).map("".join))
def test_radii_are_numbers_or_refused(text):
    with clear():
        assert all(radius.epsilon >= 0 for radius in parse_radii(text))


PARTS = [
    "pgd",
    "cw",
    "square",
    "n_pixel",
    "transfer",
    ":",
    "=",
    "steps",
    "norm",
    "source",
    "stop_at",
    "1",
    "-1",
    "1e9",
    "nan",
    "l2",
]


@FUZZ
@given(text=st.lists(st.sampled_from(PARTS), max_size=8).map("".join) | TEXT)
def test_an_attack_is_parsed_or_refused(text):
    with clear():
        assert parse_attack(text).eot_samples >= 1


@pytest.mark.parametrize("command", ["train", "evaluate", "export", "reproduce"])
@settings(FUZZ, max_examples=5)
@given(data=st.data())
def test_a_command_line_that_cannot_be_used_is_one_line(root, command_environment, tmp_path, command, data):
    names = [
        "--epochs",
        "--attacks",
        "--flagfile",
        "--seed",
        "--strict",
        "--no-such",
        "-x",
        "positional",
        "--model_dir",
    ]
    flags = st.tuples(st.sampled_from(names), TEXT.filter(lambda text: "\x00" not in text)).map("=".join)
    arguments = [
        os.fsencode(flag.encode("utf-8", "replace")) for flag in data.draw(st.lists(flags, min_size=1, max_size=3))
    ]
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        [sys.executable, root / "bin" / command, *arguments],
        cwd=tmp_path,
        env=command_environment,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 2, done
    assert done.stderr.startswith(b"error: ") and done.stderr.count(b"\n") == 1, done.stderr
    assert sorted(tmp_path.rglob("*")) == before


# Files


@pytest.fixture
def model_dir(trained, tmp_path):
    """A copy of a finished run, that a test may break."""
    return shutil.copytree(trained, tmp_path / "model")


@pytest.fixture(scope="module")
def evaluated(trained, tmp_path_factory):
    """(directory of a finished run, its report directory)."""
    report = tmp_path_factory.mktemp("fuzz") / "report"
    evaluate(EVALUATION, trained, report)
    return trained, report


def broken(data, contents: bytes) -> bytes:
    """The bytes cut short, with some of them changed, or others."""
    cut = st.integers(0, len(contents) - 1).map(lambda end: contents[:end])
    place = st.tuples(st.integers(0, len(contents) - 1), st.binary(min_size=1, max_size=8))
    changed = place.map(lambda at: contents[: at[0]] + at[1] + contents[at[0] + len(at[1]) :])
    return data.draw(
        cut | changed | st.binary(max_size=50) | st.sampled_from([b"[" * 100_000, b"NaN", b"{}", b"\xff\xfe"])
    )


def mutated(data, value):
    """A JSON value with something in it replaced or removed."""
    value = copy.deepcopy(value)
    inside = value
    for _ in range(data.draw(st.integers(0, 3))):
        keys = (
            list(inside) if isinstance(inside, dict) else list(range(len(inside))) if isinstance(inside, list) else []
        )
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if not isinstance(inside[key], dict | list) or data.draw(st.booleans()):
            if isinstance(inside, dict) and data.draw(st.booleans()):
                del inside[key]
            else:
                inside[key] = data.draw(JSON)
            return value
        inside = inside[key]
    return data.draw(JSON)


@pytest.mark.parametrize("how", [broken, mutated])
@FUZZ
@given(data=st.data())
def test_a_config_json_is_read_or_refused(model_dir, trained, how, data):
    original = (trained / "config.json").read_bytes()
    contents = how(data, original) if how is broken else json.dumps(how(data, json.loads(original))).encode()
    directory = ModelDirectory(model_dir)
    directory.config.write_bytes(contents)
    examples = load_examples(DataConfig(image_size=25), "test")
    with clear():
        config = directory.train_config()
        directory.check_same_config(config)
        directory.check_same_dataset(examples)


@pytest.mark.parametrize("how", [broken, mutated])
@FUZZ
@given(data=st.data())
def test_a_metrics_jsonl_is_read_or_refused(model_dir, trained, how, data):
    original = (trained / "metrics.jsonl").read_bytes()
    first = json.loads(original.splitlines()[0])
    contents = how(data, original) if how is broken else json.dumps(how(data, first)).encode()
    directory = ModelDirectory(model_dir)
    directory.metrics.write_bytes(contents)
    with clear():
        assert isinstance(directory.best_epoch()["epoch"], int | float)


@pytest.mark.parametrize("how", [broken, mutated])
@settings(FUZZ, max_examples=6)
@given(data=st.data())
def test_an_evaluation_json_is_read_or_refused_and_stays(evaluated, tmp_path, how, data):
    """Another attack is asked for, so that what is stored is read, merged and written again."""
    trained, report = evaluated
    copied = tmp_path / "report"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(report, copied)
    original = (report / "evaluation.json").read_bytes()
    contents = how(data, original) if how is broken else json.dumps(how(data, json.loads(original))).encode()
    (copied / "evaluation.json").write_bytes(contents)
    try:
        evaluate(dataclasses.replace(EVALUATION, attacks="fgsm,bim:steps=1"), trained, copied)
    except InputError as error:
        assert str(error)
        assert (copied / "evaluation.json").read_bytes() == contents


@FUZZ
@given(data=st.data())
def test_an_evaluation_is_read_or_refused(evaluated, tmp_path, data):
    """As the test before, by the parts that read it alone."""
    copied = tmp_path / "report"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(evaluated[1], copied)
    described = mutated(data, json.loads((copied / "evaluation.json").read_text()))
    (copied / "evaluation.json").write_text(json.dumps(described))
    with clear():
        read_described(copied)
        Evaluation.read(copied)


@FUZZ
@given(data=st.data())
def test_a_record_of_a_measure_is_read_or_made_again(tmp_path, data):
    record = mutated(data, {"version": 1, "key": {"radius": "0.1"}, "value": [{"passed": True}]})
    (tmp_path / "measures").mkdir(exist_ok=True)
    (tmp_path / "measures" / "checklist.json").write_text(json.dumps(record))
    with clear():
        read_measured(tmp_path)


@FUZZ
@given(data=st.data())
def test_a_record_is_read_or_made_again(evaluated, tmp_path, data):
    path = record_path(evaluated[1] / "records", "fgsm", Radius(0.1, "linf"))
    copied = tmp_path / path.name
    copied.write_bytes(broken(data, path.read_bytes()))
    load_outcome(tmp_path, "fgsm", Radius(0.1, "linf"))


@FEW
@given(data=st.data())
def test_a_model_keras_is_read_or_refused(model_dir, trained, data):
    path = model_dir / "model.keras"
    path.write_bytes(broken(data, (trained / "model.keras").read_bytes()))
    with clear():
        load_model(path)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "results.json", "records", "../model"])
def test_files_that_were_swapped_are_refused(evaluated, trained, tmp_path, name):
    """Each in the place of model.keras."""
    trained, report = evaluated
    source = {"config.json": trained / name, "metrics.jsonl": trained / name, "results.json": report / name}.get(
        name, record_path(report / "records", "fgsm", Radius(0.1, "linf")) if name == "records" else trained
    )
    path = tmp_path / "model.keras"
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, path)
    with pytest.raises(InputError, match="model.keras"):
        load_model(path)


# Code in a .keras file


def with_config(trained, path, change):
    """A copy of a net whose architecture is changed."""
    with zipfile.ZipFile(trained / "model.keras") as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            contents = source.read(name)
            if name == "config.json":
                described = json.loads(contents)
                change(described)
                contents = json.dumps(described).encode()
            target.writestr(name, contents)


def as_lambda(described):
    layer = keras.layers.Lambda(lambda x: (open("ran", "w"), x)[1])
    described["config"]["backbone"]["config"]["layers"][0] = keras.saving.serialize_keras_object(layer)


def as_call(module, name, arguments):
    def change(described):
        called = {"module": module, "class_name": name, "config": arguments, "registered_name": name}
        described["config"]["backbone"] = called

    return change


def as_import(described):
    described["config"]["backbone"] = {
        "module": "evil",
        "class_name": "Evil",
        "config": {},
        "registered_name": "x>Evil",
    }


def as_function(described):
    layer = described["config"]["backbone"]["config"]["layers"][1]
    layer["config"]["activation"] = {
        "module": "os",
        "class_name": "function",
        "config": "system",
        "registered_name": "function",
    }


HOSTILE_NETS = {
    "lambda": as_lambda,
    "os.system": as_call("os", "system", {"command": "touch ran"}),
    "subprocess": as_call("subprocess", "Popen", {"args": ["touch", "ran"]}),
    "eval": as_call("builtins", "eval", {"source": "open('ran', 'w')"}),
    "import": as_import,
    "function": as_function,
}


@pytest.mark.parametrize("name", HOSTILE_NETS)
def test_no_code_runs_from_a_file(trained, tmp_path, monkeypatch, name):
    (tmp_path / "evil.py").write_text("open('ran', 'w')\nclass Evil: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model_dir = shutil.copytree(trained, tmp_path / "model")
    (model_dir / "model.keras").unlink()
    with_config(trained, model_dir / "model.keras", HOSTILE_NETS[name])
    (tmp_path / "ran").unlink(missing_ok=True)
    for use in (lambda: load_model(model_dir / "model.keras"), lambda: target_in(model_dir)):
        with pytest.raises(InputError, match="model.keras"):
            use()
    assert not (tmp_path / "ran").exists()


def test_arrays_are_read_without_pickle(tmp_path):
    class Runs:
        def __reduce__(self):
            return os.system, ("touch ran",)

    path = record_path(tmp_path, "fgsm", Radius(0.1, "linf"))
    np.savez(path, described=np.array([Runs()], dtype=object))
    assert load_outcome(tmp_path, "fgsm", Radius(0.1, "linf")) is None
    assert not os.path.exists("ran")


def test_weights_that_point_to_another_file_are_refused(trained, tmp_path):
    """HDF5 can name another file to read from."""
    secret = tmp_path / "secret.h5"
    with zipfile.ZipFile(trained / "model.keras") as source:
        contents = {name: source.read(name) for name in source.namelist()}
    stored = io.BytesIO(contents["model.weights.h5"])
    datasets = []
    with h5py.File(stored, "r+") as file:
        file.visititems(lambda key, item: datasets.append(key) if isinstance(item, h5py.Dataset) else None)
        with h5py.File(secret, "w") as other:
            other["weights"] = np.ones_like(file[datasets[0]])
        del file[datasets[0]]
        file[datasets[0]] = h5py.ExternalLink(str(secret), "weights")
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w") as target:
        for name, data in contents.items():
            target.writestr(name, stored.getvalue() if name == "model.weights.h5" else data)
    with pytest.raises(InputError, match="model.keras"):
        load_model(path)


# Images


@pytest.fixture(scope="module")
def png():
    return tf.io.encode_png(np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)).numpy()


IMAGE_FILES = pytest.mark.parametrize("suffix", [".png", ".jpg", ".gif", ".bmp"])


@IMAGE_FILES
@FEW
@given(data=st.data())
def test_a_broken_image_is_read_or_refused(tmp_path, png, suffix, data):
    load_a_broken_image(tmp_path / "images", png, suffix, data)


@pytest.mark.slow
@IMAGE_FILES
@FUZZ
@given(data=st.data())
def test_images_broken_in_many_ways_are_read_or_refused(tmp_path, png, suffix, data):
    load_a_broken_image(tmp_path / "images", png, suffix, data)


def load_a_broken_image(root, png, suffix, data):
    shutil.rmtree(root, ignore_errors=True)
    for label in "ab":
        (root / label).mkdir(parents=True)
        for number in range(5):
            (root / label / f"{number}.png").write_bytes(png)
    (root / "a" / f"9{suffix}").write_bytes(broken(data, png))
    with clear():
        load_examples(DataConfig(dataset=f"folder:{root}", image_size=8), "train")


def test_hostile_names_of_classes_and_files_are_names(tmp_path, png):
    names = ["-rf", "a b", "é", "$(touch ran)", "<script>", "a,b", "x" * 200]
    for label in names:
        (tmp_path / label).mkdir()
        for number in range(5):
            (tmp_path / label / f"{number} ;&.png").write_bytes(png)
    examples = load_examples(DataConfig(dataset=f"folder:{tmp_path}"), "train")
    assert sorted(examples.class_names) == sorted(names)


@FEW
@given(data=st.data())
def test_an_export_of_a_broken_directory_leaves_nothing(model_dir, trained, tmp_path, data):
    name = data.draw(st.sampled_from(["config.json", "model.keras"]))
    (model_dir / name).write_bytes(broken(data, (trained / name).read_bytes()))
    try:
        export_model_dir(ExportConfig(model_dir=str(model_dir), export_dir=str(tmp_path / "served")))
        shutil.rmtree(tmp_path / "served")  # what was changed said nothing
    except InputError:
        assert list((tmp_path / "served").glob("*")) == []  # there or not
    shutil.copyfile(trained / name, model_dir / name)


@pytest.mark.parametrize("name", ["evaluation.json", "results.json"])
def test_results_of_another_version_are_refused(evaluated, tmp_path, name):
    (tmp_path / name).write_text(json.dumps({**json.loads((evaluated[1] / name).read_text()), "schema": 2}))
    with pytest.raises(InputError, match="schema 3"):
        Evaluation.read(tmp_path)
