import json
import os
import shutil
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from prediction_server import ServedModel
from session_client import meta_graph
from tensorflow.python.framework import op_def_registry
from toy_models import convolution, make_model

import wca_tf
from reproduce.official import WCAOfficialNet
from wca_tf.core import files
from wca_tf.core.errors import InputError
from wca_tf.gaussian.probability import probability_correct
from wca_tf.nets.backbones import build_backbone
from wca_tf.nets.model_files import load_model
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.serving.config import MANIFEST, ExportConfig
from wca_tf.serving.export import export_model_dir
from wca_tf.serving.signatures import Signatures
from wca_tf.serving.versions import new_version

TOY = {"image_shape": (8, 8, 1), "class_names": ("top", "middle", "bottom")}
SIGNATURES = {
    "serving_default": {"images": ("uint8", [-1, 25, 25, 1])},
    "averaged": {"images": ("uint8", [-1, 25, 25, 1]), "n_samples": ("int32", [])},
    "exact": {"images": ("uint8", [-1, 25, 25, 1])},
    "noise_free": {"images": ("uint8", [-1, 25, 25, 1])},
    "image_bytes": {"image_bytes": ("string", [-1])},
}
OUTPUTS = {
    "logits": ("float32", [-1, 10]),
    "probabilities": ("float32", [-1, 10]),
    "class_id": ("int64", [-1]),
    "class_name": ("string", [-1]),
}


def names_types_and_shapes(tensors):
    return {
        name: (tf.as_dtype(info.dtype).name, [dim.size for dim in info.tensor_shape.dim])
        for name, info in tensors.items()
    }


def toy_images(count, shape=(8, 8, 1)):
    return np.random.default_rng(0).integers(0, 256, (count, *shape)).astype(np.uint8)


def noise_free(model, images):
    """mu [n, C] of uint8 images, by the net itself."""
    return model.classifier(model.features(images.astype(np.float32) / 255)).numpy()


def test_the_five_signatures_have_their_names_types_and_shapes(exported):
    found = meta_graph(exported).signature_def
    assert {name for name in found if name[0] != "_"} == set(SIGNATURES)
    for name, inputs in SIGNATURES.items():
        assert names_types_and_shapes(found[name].inputs) == inputs
        assert names_types_and_shapes(found[name].outputs) == OUTPUTS
        assert found[name].method_name == "tensorflow/serving/predict"


def test_every_op_is_tensorflows_own_and_none_calls_python(exported):
    graph = meta_graph(exported).graph_def
    functions = {function.signature.name for function in graph.library.function}
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    ops = {node.op for node in nodes} - functions
    assert len(ops) > 30
    assert not [op for op in ops if "Py" in op or op_def_registry.get(op) is None]  # this process loads no custom op


def test_noise_comes_from_no_state_that_the_file_could_bring_back(exported):
    graph = meta_graph(exported).graph_def
    random = [
        node
        for function in graph.library.function
        for node in function.node_def
        if op_def_registry.get(node.op) and ("Random" in node.op or "Rng" in node.op)
    ]
    assert {node.op for node in random} == {"RandomStandardNormal"}
    assert all(node.attr["seed"].i == node.attr["seed2"].i == 0 for node in random)
    variables = [shape for _, shape in tf.train.list_variables(str(exported / "variables" / "variables"))]
    assert len(variables) > 10
    assert [2] not in variables  # random_state


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"shorter_side": 7}, "received 7 with images of 8 x 8"),
        ({"shorter_side": 9, "image_shape": (8, 7, 1)}, "received 9 with images of 8 x 7"),
        ({"shorter_side": 9, "max_image_pixels": 80}, "max_image_pixels of 81 or more .* received 80"),
    ],
    ids=str,
)
def test_a_shorter_side_that_does_not_fit_is_refused(options, told, tmp_path):
    with pytest.raises(InputError, match=told):
        wca_tf.export(make_model(), tmp_path, **{**TOY, **options})
    assert not list(tmp_path.iterdir())


def test_the_manifest_says_what_is_there_and_where_it_comes_from(exported, trained):
    manifest = files.read_json(exported / "assets.extra" / "manifest.json")
    written = {str(path.relative_to(exported)) for path in exported.rglob("*") if path.is_file()}
    assert set(manifest["files"]) == written - {"assets.extra/manifest.json"}
    assert all(files.sha256(exported / name) == digest for name, digest in manifest["files"].items())
    stored = ModelDirectory(trained).read_config()
    assert manifest["config"] == stored["config"] and manifest["training_complete"] is True
    assert manifest["class_names"] == list("0123456789")
    assert manifest["image_shape"] == [25, 25, 1]
    assert manifest["model_sha256"] == files.sha256(trained / "model.keras")
    assert manifest["versions"]["tensorflow"] == tf.__version__
    assert "fresh draw for every image of every request" in manifest["noise"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"net_class": WCAOfficialNet}, id="official"),
        {"covariance": "isotropic", "num_classes": 2},
        pytest.param({"precision": "mixed_bfloat16"}, marks=pytest.mark.slow),
        pytest.param({"num_classes": 100, "feature_dim": 128}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_other_nets_serve_what_they_are(tmp_path, options):
    precision = options.pop("precision", "float32")
    model = make_model(backbone=convolution(precision), **options)
    names = [f"class {i}" for i in range(model.num_classes)]
    served = ServedModel(wca_tf.export(model, tmp_path, image_shape=(8, 8, 1), class_names=names))
    images = toy_images(1)
    mean = noise_free(model, images)
    free = served("noise_free", images=images)
    tolerance = 1e-4 if precision == "float32" else 0.05
    np.testing.assert_allclose(free["logits"], mean, rtol=tolerance, atol=tolerance)
    assert all(answer["logits"].dtype == np.float32 for answer in (free, served("serving_default", images=images)))
    exact = served("exact", images=images)
    expected, _ = probability_correct(exact["logits"], exact["class_id"], model.logit_scale.numpy())
    np.testing.assert_allclose(exact["probabilities"].max(axis=1), expected, atol=2e-3)
    averaged = served("averaged", images=images, n_samples=np.int32(10_000))
    np.testing.assert_allclose(averaged["probabilities"], exact["probabilities"], atol=0.5 * 6 / 10_000**0.5)
    first, second = served("serving_default", images=np.repeat(images, 2, axis=0))["logits"]
    assert (first != second).all()  # a draw for each image, whatever the net was trained with


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_a_resnet_is_served(tmp_path, precision):
    model = wca_tf.WCANet(build_backbone("resnet18", (32, 32, 3), precision), num_classes=3)
    model.build((None, 32, 32, 3))
    served = ServedModel(wca_tf.export(model, tmp_path, **{**TOY, "image_shape": (32, 32, 3)}))
    images = toy_images(2, (32, 32, 3))
    tolerance = 1e-3 if precision == "float32" else 0.1
    logits = served("noise_free", images=images)["logits"]
    np.testing.assert_allclose(logits, noise_free(model, images), rtol=tolerance, atol=tolerance)
    assert served("serving_default", images=images[:0])["logits"].shape == (0, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected shape"):
        served("serving_default", images=toy_images(2, (40, 40, 3)))  # the net itself would take them


def test_an_undefended_net_answers_with_certainty(tmp_path, trained_undefended):
    model = load_model(trained_undefended / "model.keras")
    version = wca_tf.export(model, tmp_path, image_shape=(25, 25, 1), class_names="0123456789")
    served = ServedModel(version)
    images = toy_images(4, (25, 25, 1))
    mean = noise_free(model, images)
    one_hot = np.eye(10, dtype=np.float32)[mean.argmax(axis=1)]
    for signature, inputs in {"exact": {}, "averaged": {"n_samples": np.int32(7)}}.items():
        np.testing.assert_array_equal(served(signature, images=images, **inputs)["probabilities"], one_hot)
    for signature in ("serving_default", "noise_free"):
        np.testing.assert_allclose(served(signature, images=images)["logits"], mean, rtol=1e-4, atol=1e-4)
    assert files.read_json(version / "assets.extra" / "manifest.json")["noise"] == "none"


def test_export_leaves_the_model_as_it_is(tmp_path):
    model = make_model()
    before = [variable.numpy() for variable in model.variables]
    wca_tf.export(model, tmp_path, **TOY)
    for old, new in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, new.numpy())


def test_a_version_is_never_replaced(tmp_path, contents):
    model = make_model()
    first = wca_tf.export(model, tmp_path, **TOY)
    before = contents(first)
    (tmp_path / "07").mkdir()  # TF Serving reads this as 7
    with pytest.raises(InputError, match="version 1, which stays: export --version=8"):
        wca_tf.export(model, tmp_path, **TOY)
    assert wca_tf.export(model, tmp_path, version=8, **TOY) == tmp_path / "8"
    assert contents(first) == before


def test_of_exports_at_the_same_time_one_wins_and_the_others_say_why(tmp_path):
    model, results = make_model(), []
    barrier = threading.Barrier(3)

    def export():
        barrier.wait()
        try:
            results.append(wca_tf.export(model, tmp_path, **TOY))
        except InputError as error:
            results.append(str(error))

    threads = [threading.Thread(target=export) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count(tmp_path / "1") == 1
    losers = [result for result in results if isinstance(result, str)]
    assert len(losers) == 2
    assert all("in use by another process" in text or "version 1, which stays" in text for text in losers)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "1"]


def test_tf_serving_sees_a_version_only_when_it_is_complete(tmp_path):
    leftover = tmp_path / f"{files.TEMPORARY_PREFIX}3"  # of a process that was killed
    leftover.mkdir()
    (leftover / "half").touch()
    with pytest.raises(RuntimeError), new_version(tmp_path, 3) as directory:
        assert directory == leftover and not directory.exists()
        directory.mkdir()
        (directory / "saved_model.pb").touch()
        assert not [path for path in tmp_path.iterdir() if path.name.isdigit()]
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"class_names": ("one", "two")}, "expected 3 class names"),
        ({"class_names": (1, 2, 3)}, "expected 3 class names"),
        ({"config": {"epsilon": float("nan")}}, "JSON values"),
        ({"config": {"attack": object()}}, "JSON values"),
        ({"image_shape": (8, 8)}, "height, width, channels"),
        ({"image_shape": (8, 8, 0)}, "height, width, channels"),
        ({"image_shape": (8, 8, 4)}, "1 or 3 channels, received 4"),
        ({"image_shape": (9, 8, 1)}, r"images \[9, 8, 1\]"),
        ({"version": 0}, "version of 1 or more, received 0"),
        ({"version": "1"}, "version of 1 or more, received '1'"),
    ],
)
def test_arguments_out_of_range_are_refused(tmp_path, changed, message):
    with pytest.raises(InputError, match=message):
        wca_tf.export(make_model(), tmp_path / "served", **{**TOY, **changed})
    assert not (tmp_path / "served").exists()


def test_the_name_of_a_folder_that_is_no_utf8_is_served_with_a_question_mark():
    names = Signatures(make_model(), (8, 8, 1), ("a", os.fsdecode(b"b\xff"), "c")).class_names
    assert names.numpy().tolist() == [b"a", b"b?", b"c"]


@pytest.mark.parametrize("part", ["noise", "classifier", "backbone"])
def test_a_net_of_weights_that_are_not_finite_is_refused(tmp_path, part):
    model = make_model(backbone=convolution())
    getattr(model, part).variables[0].assign(np.full(getattr(model, part).variables[0].shape, np.nan))
    with pytest.raises(InputError, match="finite weights"):
        wca_tf.export(model, tmp_path / "served", **TOY)
    assert not (tmp_path / "served").exists()


def test_what_is_no_trained_net_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected a Keras model, received function"):
        wca_tf.export(lambda images: images, tmp_path, **TOY)
    plain = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(4)])
    with pytest.raises(InputError, match="expected 4 class names"):
        wca_tf.export(plain, tmp_path, **TOY)
    unbuilt = wca_tf.WCANet(convolution(), 3, 4)
    with pytest.raises(InputError, match="not been built"):
        wca_tf.export(unbuilt, tmp_path, **TOY)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model_dir=m", "--export_dir"),
        ("--export_dir=e", "--model_dir"),
        ("--model_dir=m --export_dir=e", "config.json"),
        ("--model_dir=m --export_dir=e --version=0", "--version"),
        ("--model_dir=m --export_dir=e --version=one", "version"),
        ("--model_dir=m --export_dir=e --versoin=1", "versoin"),
        ("--model_dir=m --export_dir=e stray", "stray"),
    ],
)
def test_a_wrong_export_command_ends_at_once_with_one_line(fails_in_one_line, tmp_path, arguments, message):
    assert message in fails_in_one_line(tmp_path, "export", *arguments.split())


def test_the_command_exports_and_the_second_time_names_the_next_version(
    command, command_without_tensorflow, tmp_path, trained, contents
):
    arguments = (f"--model_dir={trained}", "--export_dir=served")
    done = command("export", *arguments, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "served/1" in done.out and "image_bytes" in done.out and "docker run" in done.out
    manifest = json.loads((tmp_path / "served" / "1" / "assets.extra" / "manifest.json").read_text())
    assert manifest["model_sha256"] == files.sha256(trained / "model.keras")
    before = contents(tmp_path)
    again = command_without_tensorflow("export", *arguments, cwd=tmp_path)
    assert again.code == 2
    assert "--version=2" in again.err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("broken", ["config.json", "model.keras"])
def test_a_broken_model_directory_is_refused(tmp_path, trained, broken):
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    for name in ("config.json", "model.keras"):
        contents = (trained / name).read_bytes()
        (model_dir / name).write_bytes(contents[:400] if name == broken else contents)
    with pytest.raises(InputError, match=broken):
        export_model_dir(ExportConfig(model_dir=str(model_dir), export_dir=str(tmp_path / "served")))
    assert not (tmp_path / "served").exists()


def test_a_configuration_that_does_not_say_what_the_images_are_is_refused(tmp_path, trained):
    stored = files.read_json(trained / "config.json")
    files.write_json(tmp_path / "config.json", {**stored, "dataset": {}})
    with pytest.raises(InputError, match="image_shape and class_names"):
        export_model_dir(ExportConfig(model_dir=str(tmp_path), export_dir=str(tmp_path / "served")))


def test_help_lists_every_flag(command):
    done = command("export", "--help")
    assert done.code in (0, 1) and done.err == ""
    assert all(f"--{name}" in done.out for name in ("model_dir", "export_dir", "version"))


def test_the_net_of_an_unfinished_training_is_exported_and_said_to_be_so(trained, tmp_path, capsys):
    directory = shutil.copytree(trained, tmp_path / "run")
    (directory / "last.keras").unlink()
    exported = export_model_dir(ExportConfig(model_dir=str(directory), export_dir=str(tmp_path / "served")))
    assert "UNFINISHED" in capsys.readouterr().out
    assert json.loads((exported / MANIFEST).read_text())["training_complete"] is False
