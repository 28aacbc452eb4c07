"""An export behind TF Serving's two interfaces, on loopback, for tests without a tensorflow_model_server.

Requests reach a Session's C++ runtime as they are: nothing in Python looks at their shapes and types. gRPC is the
official PredictionService with its official messages; REST is predict as TF Serving's documentation has it
(https://www.tensorflow.org/tfx/serving/api_rest): rows or columns, and {"b64": ...} for bytes.
"""

import base64
import contextlib
import dataclasses
import http.server
import json
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

THREADS = 8
STATUS = {code.value[0]: code for code in grpc.StatusCode}


class ServedModel:
    """A SavedModel in a Session, as TF Serving holds one; calls may come from several threads."""

    def __init__(self, version: Path) -> None:
        self.session = tf.compat.v1.Session(graph=tf.Graph())
        with self.session.graph.as_default():
            loaded = tf.compat.v1.saved_model.load(self.session, ["serve"], str(version))
        self.signatures = {name: loaded.signature_def[name] for name in loaded.signature_def if name[0] != "_"}
        self._callables = {name: self._callable(definition) for name, definition in self.signatures.items()}

    def _callable(self, definition: Any) -> Any:
        """The Session's own callable: `Session.run` would check shapes and types in Python."""
        feed, fetch = ([info.name for _, info in sorted(d.items())] for d in (definition.inputs, definition.outputs))
        return self.session._make_callable_from_options(config_pb2.CallableOptions(feed=feed, fetch=fetch))

    def __call__(self, signature: str, **inputs: Any) -> dict[str, np.ndarray]:
        """The outputs by name; raises tf.errors.OpError, as the runtime does."""
        if signature not in self.signatures:
            raise tf.errors.InvalidArgumentError(None, None, f"expected a signature, received {signature!r}")
        definition = self.signatures[signature]
        if set(inputs) != set(definition.inputs):
            expected = sorted(definition.inputs)
            raise tf.errors.InvalidArgumentError(None, None, f"expected inputs {expected}, received {sorted(inputs)}")
        answers = self._callables[signature](*[np.asarray(inputs[name]) for name in sorted(inputs)])
        return dict(zip(sorted(definition.outputs), answers, strict=True))


class _PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, name: str, model: ServedModel) -> None:
        self.name, self.model = name, model

    def Predict(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.model_spec.name != self.name:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no model {request.model_spec.name!r}")
        try:
            inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
            answers = self.model(request.model_spec.signature_name or "serving_default", **inputs)
        except tf.errors.OpError as error:
            context.abort(STATUS[error.error_code], error.message)
        response = predict_pb2.PredictResponse(model_spec=request.model_spec)
        for name, value in answers.items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
        return response


def rest_predict(model: ServedModel, request: dict[str, Any]) -> dict[str, Any]:
    """The JSON answer to a JSON request; raises ValueError and what `model` raises."""
    signature = request.get("signature_name", "serving_default")
    definition = dict(model.signatures[signature].inputs)  # asked for a name it lacks, the message would make one
    if "instances" in request:
        rows = [
            row if isinstance(row, dict) and "b64" not in row else {_only(definition): row}
            for row in request["instances"]
        ]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
    else:
        columns = request["inputs"]
        columns = columns if isinstance(columns, dict) and "b64" not in columns else {_only(definition): columns}
    dtypes = {name: tf.as_dtype(definition[name].dtype).as_numpy_dtype for name in columns}
    answers = model(signature, **{name: np.array(_plain(value), dtypes[name]) for name, value in columns.items()})
    outputs = {name: _text(value.tolist()) for name, value in answers.items()}
    if "instances" in request:
        return {"predictions": [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]}
    return {"outputs": outputs}


def _only(definition: Any) -> str:
    [name] = definition
    return name


def _plain(value: Any) -> Any:
    """Nested lists with {"b64": ...} decoded."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else value


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _rest_handler(name: str, model: ServedModel) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                if self.path != f"/v1/models/{name}:predict":
                    raise ValueError(f"no such address: {self.path}")
                code, answer = 200, rest_predict(model, json.loads(body))
            except (tf.errors.OpError, ValueError, KeyError, TypeError, OverflowError) as error:
                code, answer = 400, {"error": str(error)}
            contents = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(contents)))
            self.end_headers()
            self.wfile.write(contents)

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    return Handler


@dataclasses.dataclass(frozen=True)
class Addresses:
    """Where a server listens: host:port for gRPC, and for REST."""

    grpc: str
    rest: str
    name: str


@contextlib.contextmanager
def served(version: Path, name: str) -> Iterator[Addresses]:
    """Serve a version by gRPC and REST, on free ports of this machine."""
    model = ServedModel(version)
    grpc_server = grpc.server(futures.ThreadPoolExecutor(THREADS))
    service = _PredictionService(name, model)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, grpc_server)
    grpc_port = grpc_server.add_insecure_port("localhost:0")
    grpc_server.start()
    rest_server = http.server.ThreadingHTTPServer(("localhost", 0), _rest_handler(name, model))
    threading.Thread(target=rest_server.serve_forever, daemon=True).start()
    try:
        yield Addresses(f"localhost:{grpc_port}", f"localhost:{rest_server.server_address[1]}", name)
    finally:
        rest_server.shutdown()
        rest_server.server_close()
        grpc_server.stop(None).wait()
        model.session.close()
