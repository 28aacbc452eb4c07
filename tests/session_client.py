"""session_client.c from Python: built against TensorFlow's wheel, and run on an export."""

import dataclasses
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

SOURCE = Path(__file__).with_suffix(".c")
TYPES = {"logits": np.float32, "probabilities": np.float32, "class_id": np.int64, "class_name": str}


@dataclasses.dataclass(frozen=True)
class Served:
    """What a process of the program printed: milliseconds of each request, and its answer, values without shape."""

    milliseconds: list[float]
    answers: list[dict[str, np.ndarray]]


def build(directory: Path) -> Path:
    """Compile the program into `directory`; returns its path."""
    tensorflow = Path(tf.__file__).parent
    program = directory / "session_client"
    options = ("-O2", "-Wall", "-Wextra", "-Werror", "-isystem", str(tensorflow / "include"), f"-L{tensorflow}")
    libraries = ("-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2", f"-Wl,-rpath,{tensorflow}")
    subprocess.run(["gcc", str(SOURCE), "-o", str(program), *options, *libraries], check=True)
    return program


def meta_graph(version: Path) -> Any:
    """The SavedModel's MetaGraphDef, as the file has it."""
    [graph] = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes()).meta_graphs
    return graph


def start(
    program: Path,
    version: Path,
    signature: str,
    inputs: dict[str, np.ndarray | list[bytes]],
    requests: int = 1,
    warm_up: int = 0,
    quiet: bool = False,
    threads: int = 2,
) -> subprocess.Popen:
    """Start a process that makes the same request several times; a list of bytes, all equal, is a string input."""
    definition = meta_graph(version).signature_def[signature]
    directory = tempfile.mkdtemp(dir=program.parent)
    given, wanted = [], []
    for name, value in inputs.items():
        file = Path(directory, name)
        if isinstance(value, list):
            file.write_bytes(value[0])
            kind, dims = "string", str(len(value))
        else:
            file.write_bytes(value.tobytes())
            kind, dims = str(value.dtype), ",".join(map(str, value.shape))
        given += [*definition.inputs[name].name.split(":"), kind, dims, str(file)]
    for name in TYPES:
        wanted += definition.outputs[name].name.split(":")
    counts = [requests, warm_up, int(quiet), len(inputs), len(TYPES)]
    limits = {name: str(threads) for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")}
    return subprocess.Popen(
        [str(program), str(version), *map(str, counts), *given, *wanted],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **limits},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> Served:
    """Wait for a process of `start`; raises RuntimeError, with what it said, when it failed."""
    out, err = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(err)
    lines = [line.split("\t") for line in out.splitlines()]
    answers = [
        {name: np.array(text.split(), dtype) for (name, dtype), text in zip(TYPES.items(), line[1:], strict=True)}
        for line in lines
        if len(line) > 1
    ]
    return Served([float(line[0]) for line in lines], answers)


def serve(*arguments: Any, **options: Any) -> Served:
    """`start` and `finish`."""
    return finish(start(*arguments, **options))
