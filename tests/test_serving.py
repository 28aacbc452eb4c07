"""Exports in the runtimes that serve them: TensorFlow's C API, saved_model_cli, gRPC and REST, several threads."""

import contextlib
import io
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent import futures
from pathlib import Path

import grpc
import keras
import numpy as np
import PIL.Image
import pytest
import session_client
import tensorflow as tf
from prediction_server import Addresses, ServedModel, served
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2, prediction_service_pb2_grpc

import wca_tf
from wca_tf.core.files import read_json
from wca_tf.data.config import DataConfig
from wca_tf.data.sources import load_examples, open_examples
from wca_tf.gaussian.probability import probability_correct
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.model_files import load_model
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.serving.config import MANIFEST, ExportConfig
from wca_tf.serving.export import export_model_dir
from wca_tf.serving.signatures import MAX_SAMPLES

NAME = "digits"
REQUESTS, THREADS, BATCH = 500, 8, 4


@pytest.fixture(scope="module")
def examples(tiny_config):
    return load_examples(tiny_config, "test")


@pytest.fixture(scope="module")
def images(examples):
    return examples.images[:BATCH]


@pytest.fixture(scope="module")
def model(trained):
    return load_model(trained / "model.keras")


@pytest.fixture(scope="module")
def session(exported):
    return ServedModel(exported)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return session_client.build(tmp_path_factory.mktemp("session_client"))


@pytest.fixture(scope="module")
def mean_and_covariance(model, examples):
    """(mu [N, C] of all test images, K [C, C]), by the net itself."""
    scale = model.logit_scale.numpy().astype(np.float64)
    features = model.features(examples.images.astype(np.float32) / 255)
    return model.classifier(features).numpy(), scale @ scale.T


def test_a_c_program_serves_every_signature(program, exported, session, images):
    png = tf.io.encode_png(images[0]).numpy()
    requests = {
        "serving_default": {"images": images},
        "averaged": {"images": images, "n_samples": np.int32(3)},
        "exact": {"images": images},
        "noise_free": {"images": images},
        "image_bytes": {"image_bytes": [png] * BATCH},
    }
    for signature, inputs in requests.items():
        result = session_client.serve(program, exported, signature, inputs, requests=3)
        assert len(result.milliseconds) == 3 and min(result.milliseconds) > 0
        logits = [answer["logits"].reshape(BATCH, 10) for answer in result.answers]
        noisy = signature not in ("exact", "noise_free")
        assert len(np.unique(np.concatenate(logits), axis=0)) == (3 * BATCH if noisy else BATCH)
        for answer in result.answers:
            np.testing.assert_allclose(answer["probabilities"].reshape(BATCH, 10).sum(axis=1), 1, atol=5e-3)
            assert answer["class_name"].tolist() == [str(i) for i in answer["class_id"]]
        if not noisy:
            np.testing.assert_allclose(logits[0], session(signature, **inputs)["logits"], rtol=1e-4, atol=1e-4)


def test_processes_started_at_once_draw_different_noise(program, exported, images):
    arguments = (program, exported, "serving_default", {"images": images})
    processes = [session_client.start(*arguments, requests=5, threads=1) for _ in range(2)]
    drawn = [answer["logits"].reshape(BATCH, 10) for p in processes for answer in session_client.finish(p).answers]
    assert len(np.unique(np.concatenate(drawn), axis=0)) == 2 * 5 * BATCH


def test_a_c_program_is_told_what_is_wrong(program, exported, images):
    for wrong in (images[:, :24], images[..., 0]):
        with pytest.raises(RuntimeError, match=r"not compatible with expected shape \[\?,25,25,1\]"):
            session_client.serve(program, exported, "serving_default", {"images": wrong})


def test_saved_model_cli_runs_it(exported, images, tmp_path):
    for name, value in {"images": images, "n_samples": np.int32(5)}.items():
        np.save(tmp_path / f"{name}.npy", value)
    tool = [sys.executable, "-m", "tensorflow.python.tools.saved_model_cli"]
    inputs = ";".join(f"{name}={tmp_path / name}.npy" for name in ("images", "n_samples"))
    signature = ["--tag_set", "serve", "--signature_def", "averaged", "--inputs", inputs, "--outdir", str(tmp_path)]
    done = subprocess.run([*tool, "run", "--dir", str(exported), *signature], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    votes = np.load(tmp_path / "probabilities.npy") * 5
    np.testing.assert_allclose(votes, votes.round(), atol=1e-5)
    np.testing.assert_allclose(votes.sum(axis=1), 5, atol=1e-5)


@pytest.fixture(scope="module")
def drawn(session, images):
    """Logits [500, 4, 10] of 500 requests of the same four images, from 8 threads."""
    with futures.ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(lambda _: session("serving_default", images=images), range(REQUESTS)))
    assert all(answer["logits"].shape == (BATCH, 10) for answer in answers)
    assert all(answer["class_name"].shape == (BATCH,) for answer in answers)
    return np.stack([answer["logits"] for answer in answers])


def test_concurrent_requests_get_noise_of_their_own(drawn):
    assert drawn.shape == (REQUESTS, BATCH, 10)
    for number in range(10):  # no class's logit comes twice either, but for float32's rounding
        assert len(np.unique(drawn[..., number])) > 0.99 * REQUESTS * BATCH
    assert len(np.unique(drawn.reshape(-1, 10), axis=0)) == REQUESTS * BATCH


def test_concurrent_requests_draw_from_the_nets_gaussian(drawn, mean_and_covariance):
    """Six standard errors: a right export fails one time in 10 million."""
    mean, covariance = mean_and_covariance
    noise = (drawn - mean[:BATCH]).reshape(-1, 10).astype(np.float64)
    count = len(noise)
    variance = np.diag(covariance)
    assert (np.abs(noise.mean(axis=0)) < 6 * np.sqrt(variance / count) + 1e-4).all()
    found = noise.T @ noise / count
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / count)
    assert (np.abs(found - covariance) < 6 * error + 1e-4).all()


def test_images_and_requests_draw_independently(drawn, mean_and_covariance):
    mean, covariance = mean_and_covariance
    noise = (drawn - mean[:BATCH]) / np.sqrt(np.diag(covariance)).astype(np.float32)
    pairs = [(noise[:, 0], noise[:, 1]), (noise[:, 0], noise[:, 3]), (noise[:-1], noise[1:]), (noise[::2], noise[1::2])]
    for first, second in pairs:
        correlation = (first * second).reshape(-1, 10).mean(axis=0)
        assert (np.abs(correlation) < 6 / np.sqrt(first.size / 10)).all()


def test_averaged_converges_to_exact(session, images, mean_and_covariance):
    exact = session("exact", images=images)
    for samples in (100, 1_000, MAX_SAMPLES):
        averaged = session("averaged", images=images, n_samples=np.int32(samples))
        p = exact["probabilities"]
        error = 6 * np.sqrt(p * (1 - p) / samples) + 5 / samples + 1e-3
        assert (np.abs(averaged["probabilities"] - p) < error).all()
        deviation = np.sqrt(np.diag(mean_and_covariance[1]) / samples)
        assert (np.abs(averaged["logits"] - exact["logits"]) < 6 * deviation + 1e-3).all()
    assert (averaged["class_id"] == exact["class_id"]).mean() >= 0.75  # two classes may be as likely as each other


def test_exact_is_the_probability_of_an_evaluation(session, examples, model, mean_and_covariance):
    answer = session("exact", images=examples.images)
    mean = mean_and_covariance[0]
    np.testing.assert_allclose(answer["logits"], mean, rtol=1e-3, atol=1e-3)
    expected, _ = probability_correct(mean, examples.labels, model.logit_scale.numpy())
    found = np.take_along_axis(answer["probabilities"], examples.labels[:, np.newaxis], axis=1)[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-3)
    np.testing.assert_array_equal(answer["class_id"], answer["probabilities"].argmax(axis=1))


def test_a_batch_larger_than_a_chunk_of_draws(session, examples):
    many = np.resize(examples.images, (1500, 25, 25, 1))  # 300 draws of it are more than a chunk has
    votes = session("averaged", images=many, n_samples=np.int32(300))["probabilities"] * 300
    np.testing.assert_allclose(votes.sum(axis=1), 300, atol=1e-2)
    np.testing.assert_allclose(votes, votes.round(), atol=1e-2)


def encoded(pixels):
    """A grey image [H, W, 1] as files that keep its pixels, and as files that nearly do."""
    rgb = np.repeat(pixels, 3, axis=2)
    alpha = np.full((*pixels.shape[:2], 1), 200, np.uint8)
    kinds = (pixels, rgb, np.concatenate([pixels, alpha], axis=2), np.concatenate([rgb, alpha], axis=2))
    png = [tf.io.encode_png(kind).numpy() for kind in kinds]
    return png, [saved_by_pillow(pixels, kind) for kind in ("JPEG", "BMP", "GIF")]


def saved_by_pillow(pixels, kind):
    file = io.BytesIO()
    PIL.Image.fromarray(pixels[..., 0]).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def noiseless(tmp_path_factory, trained_undefended):
    """An export without noise, so that `image_bytes` can be compared."""
    net = load_model(trained_undefended / "model.keras")
    directory = tmp_path_factory.mktemp("noiseless")
    return ServedModel(wca_tf.export(net, directory, image_shape=(25, 25, 1), class_names="0123456789"))


def test_image_files_are_decoded_and_resized_as_for_training(noiseless, images, tmp_path):
    exactly, nearly = encoded(images[0])
    expected = noiseless("noise_free", images=images[:1])["logits"]
    for files, tolerance in ((exactly, 1e-4), (nearly, 2.0)):
        answer = noiseless("image_bytes", image_bytes=np.array(files, object))
        assert np.abs(answer["logits"] - expected).max() < tolerance
    for split in ("train", "test"):
        for name in "ab":
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "1.png").write_bytes(tf.io.encode_png(np.resize(images[1], (40, 31, 1))).numpy())
    folder = load_examples(TrainConfig(dataset=f"folder:{tmp_path}", image_size=25), "test")
    file = (tmp_path / "test" / "a" / "1.png").read_bytes()
    answer = noiseless("image_bytes", image_bytes=np.array([file], object))
    expected = noiseless("noise_free", images=folder.images[:1])["logits"]
    np.testing.assert_allclose(answer["logits"], expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def centred(tmp_path_factory, trained_undefended):
    """An export of a net whose training had --image_size=25 --shorter_side=30."""
    directory = tmp_path_factory.mktemp("centred")
    shutil.copytree(trained_undefended, directory / "net")
    file = ModelDirectory(directory / "net").config
    stored = read_json(file)
    stored["config"] |= {"image_size": 25, "shorter_side": 30}
    file.write_text(json.dumps(stored))
    return export_model_dir(ExportConfig(str(directory / "net"), str(directory / "served")))


@pytest.mark.parametrize("shape", [(40, 91), (70, 31), (20, 20)], ids=str)
def test_the_centre_of_an_image_file_is_cut_out_as_for_training(centred, shape, tmp_path):
    for number in range(10):
        file = tmp_path / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (*shape, 1), dtype=np.uint8)
        file.write_bytes(tf.io.encode_png(pixels).numpy())
    config = DataConfig(f"folder:{tmp_path}", image_size=25, shorter_side=30, in_memory="false")
    seen = open_examples(config, "train").images
    contents = [Path(seen.encoded.name(number)).read_bytes() for number in seen.numbers]
    served = ServedModel(centred)
    answer = served("image_bytes", image_bytes=np.array(contents, object))["logits"]
    np.testing.assert_allclose(answer, served("noise_free", images=seen[:])["logits"], rtol=1e-4, atol=1e-4)


def test_a_file_too_thin_for_its_shorter_side_is_refused(centred):
    assert read_json(centred / MANIFEST)["shorter_side"] == 30
    thin = tf.io.encode_png(np.zeros((20_000, 1, 1), np.uint8)).numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 16777216 pixels with a shorter side of 30"):
        ServedModel(centred)("image_bytes", image_bytes=np.array([thin], object))


def test_a_file_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, trained_undefended, images):
    net = load_model(trained_undefended / "model.keras")
    exported = wca_tf.export(net, tmp_path, image_shape=(25, 25, 1), class_names="0123456789", max_image_pixels=625)
    served, fits = ServedModel(exported), tf.io.encode_png(images[0]).numpy()
    assert served("image_bytes", image_bytes=np.array([fits], object))["class_id"].shape == (1,)
    announced = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (20_000).to_bytes(4, "big") * 2
    for large in (tf.io.encode_png(np.zeros((26, 25, 1), np.uint8)).numpy(), announced):
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected at most 625 pixels"):
            served("image_bytes", image_bytes=np.array([fits, large], object))


def test_a_net_of_colour_images_takes_grey_files_and_a_grey_one_colour(tmp_path):
    rng = np.random.default_rng(0)
    grey, colour = (rng.integers(0, 256, (8, 8, channels)).astype(np.uint8) for channels in (1, 3))
    of_colour = np.concatenate([colour, grey], axis=2)  # the grey is alpha here
    luminance = np.rint(colour @ np.array([0.2989, 0.587, 0.114])).astype(np.uint8)[..., np.newaxis]
    expected = {1: (grey, luminance, luminance), 3: (np.repeat(grey, 3, axis=2), colour, colour)}
    contents = np.array([tf.io.encode_png(image).numpy() for image in (grey, colour, of_colour)], object)
    for channels, images in expected.items():
        backbone = keras.Sequential([keras.Input((8, 8, channels)), keras.layers.Flatten()])
        net = BottleneckNet(backbone, 3, 4)
        net.build((None, 8, 8, channels))
        directory = tmp_path / str(channels)
        served_net = ServedModel(wca_tf.export(net, directory, image_shape=(8, 8, channels), class_names="abc"))
        answer = served_net("image_bytes", image_bytes=contents)
        wanted = served_net("noise_free", images=np.stack(images))
        tolerance = 1e-4 if channels == 3 else 0.05  # luminance is rounded once more or less
        np.testing.assert_allclose(answer["logits"], wanted["logits"], atol=tolerance)


def test_the_warm_up_file_is_replayed(session, exported):
    """As TF Serving does: every record, in order, to the model."""
    records = tf.data.TFRecordDataset(str(exported / "assets.extra" / "tf_serving_warmup_requests"))
    logs = [prediction_log_pb2.PredictionLog.FromString(record) for record in records.as_numpy_iterator()]
    seen = set()
    for log in logs:
        request = log.predict_log.request
        inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
        answer = session(request.model_spec.signature_name, **inputs)
        seen.add((request.model_spec.signature_name, len(answer["logits"])))
    signatures = set(session.signatures)
    assert seen == {(signature, size) for signature in signatures for size in (1, 32)}


@contextlib.contextmanager
def tensorflow_model_server(version):
    """The real server, on free ports, ready to answer."""
    ports = [free_port(), free_port()]
    arguments = [f"--port={ports[0]}", f"--rest_api_port={ports[1]}", f"--model_name={NAME}"]
    process = subprocess.Popen(["tensorflow_model_server", *arguments, f"--model_base_path={version.parent}"])
    try:
        addresses = Addresses(f"localhost:{ports[0]}", f"localhost:{ports[1]}", NAME)
        for _ in range(100):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{addresses.rest}/v1/models/{NAME}"):
                break
            time.sleep(0.3)
        yield addresses
    finally:
        process.terminate()
        process.wait()


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module", params=["PredictionService on a Session", "tensorflow_model_server"])
def server(request, exported):
    if request.param != "tensorflow_model_server":
        context = served(exported, NAME)
    elif shutil.which("tensorflow_model_server"):
        context = tensorflow_model_server(exported)
    else:
        pytest.skip("there is no tensorflow_model_server on PATH")
    with context as addresses:
        yield addresses


@pytest.fixture
def predict(server):
    """predict(signature, name=array, ...): by gRPC, with the official messages."""
    with grpc.insecure_channel(server.grpc) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

        def call(signature, **inputs):
            request = predict_pb2.PredictRequest()
            request.model_spec.name, request.model_spec.signature_name = server.name, signature
            for name, value in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
            outputs = stub.Predict(request, timeout=60).outputs
            return {name: tf.make_ndarray(value) for name, value in outputs.items()}

        yield call


def post(server, body):
    """The JSON answer of the REST interface; raises HTTPError."""
    address = f"http://{server.rest}/v1/models/{server.name}:predict"
    with urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode())) as response:
        return json.load(response)


def test_grpc_round_trip(predict, session, images):
    for signature in ("exact", "noise_free"):
        answer, expected = predict(signature, images=images), session(signature, images=images)
        assert set(answer) == set(expected)
        for name, value in expected.items():
            assert answer[name].dtype == value.dtype or name == "class_name"
            np.testing.assert_array_equal(answer[name], value)
    first, second = (predict("serving_default", images=images)["logits"] for _ in range(2))
    assert (first != second).all()
    png = tf.io.encode_png(images[0]).numpy()
    assert predict("image_bytes", image_bytes=[png, png])["probabilities"].shape == (2, 10)
    assert predict("averaged", images=images, n_samples=np.int32(7))["logits"].shape == (BATCH, 10)


def test_rest_round_trip(server, session, images):
    expected = session("exact", images=images)
    columns = post(server, {"signature_name": "exact", "inputs": {"images": images.tolist()}})["outputs"]
    rows = post(server, {"signature_name": "exact", "instances": images.tolist()})["predictions"]
    for found in (columns, {name: [row[name] for row in rows] for name in columns}):
        np.testing.assert_allclose(found["probabilities"], expected["probabilities"], atol=1e-6)
        assert found["class_id"] == expected["class_id"].tolist()
        assert found["class_name"] == [name.decode() for name in expected["class_name"]]
    inputs = {"images": images.tolist(), "n_samples": 9}
    averaged = post(server, {"signature_name": "averaged", "inputs": inputs})["outputs"]
    np.testing.assert_allclose(np.sum(averaged["probabilities"], axis=1), 1, atol=1e-5)


MALFORMED = {
    "rank": ("serving_default", {"images": np.zeros((25, 25, 1), np.uint8)}),
    "height": ("serving_default", {"images": np.zeros((1, 24, 25, 1), np.uint8)}),
    "channels": ("exact", {"images": np.zeros((1, 25, 25, 3), np.uint8)}),
    "transposed": ("noise_free", {"images": np.zeros((25, 25, 1, 1), np.uint8)}),
    "float": ("serving_default", {"images": np.zeros((1, 25, 25, 1), np.float32)}),
    "text": ("serving_default", {"images": np.array([b"image"])}),
    "none": ("averaged", {"images": np.zeros((1, 25, 25, 1), np.uint8)}),
    "zero draws": ("averaged", {"images": np.zeros((1, 25, 25, 1), np.uint8), "n_samples": np.int32(0)}),
    "1e9 draws": ("averaged", {"images": np.zeros((1, 25, 25, 1), np.uint8), "n_samples": np.int32(10**9)}),
    "negative draws": ("averaged", {"images": np.zeros((1, 25, 25, 1), np.uint8), "n_samples": np.int32(-5)}),
    "vector": ("averaged", {"images": np.zeros((1, 25, 25, 1), np.uint8), "n_samples": np.int32([5])}),
    "corrupt": ("image_bytes", {"image_bytes": np.array([b"\x89PNG\r\n\x1a\nand no more"], object)}),
    "no image": ("image_bytes", {"image_bytes": np.array([b""], object)}),
    "scalar": ("image_bytes", {"image_bytes": np.array(b"one file", object)}),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_request_gets_an_error_and_the_next_one_an_answer(predict, images, kind):
    signature, inputs = MALFORMED[kind]
    with pytest.raises(grpc.RpcError) as caught:
        predict(signature, **inputs)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    if "n_samples" in inputs and kind != "vector":
        assert f"expected n_samples from 1 to {MAX_SAMPLES}, received" in caught.value.details()
    assert predict("serving_default", images=images)["logits"].shape == (BATCH, 10)


def test_a_broken_image_does_not_spoil_the_server_for_its_neighbours(predict, images):
    png = tf.io.encode_png(images[0]).numpy()
    with pytest.raises(grpc.RpcError):
        predict("image_bytes", image_bytes=np.array([png, png[: len(png) // 2]], object))
    assert predict("image_bytes", image_bytes=np.array([png], object))["logits"].shape == (1, 10)


def test_an_empty_batch_gets_an_empty_answer(predict):
    nothing = np.zeros((0, 25, 25, 1), np.uint8)
    for signature, inputs in {"averaged": {"n_samples": np.int32(4)}, "serving_default": {}, "exact": {}}.items():
        answer = predict(signature, images=nothing, **inputs)
        assert answer["logits"].shape == answer["probabilities"].shape == (0, 10)
        assert answer["class_id"].shape == answer["class_name"].shape == (0,)
    assert predict("image_bytes", image_bytes=np.array([], object))["logits"].shape == (0, 10)


def test_malformed_json_gets_an_error_and_the_next_request_an_answer(server, images):
    for body in ({"inputs": {"images": "no image"}}, {"instances": [[1, 2], [3]]}, {"inputs": {"image": [1]}}):
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(server, body)
        assert caught.value.code == 400
        assert json.load(caught.value)["error"]
    assert len(post(server, {"instances": images.tolist()})["predictions"]) == BATCH
