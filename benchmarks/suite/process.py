"""Workers: processes that prepare jobs and run them one at a time. Requests and answers are lines of JSON.

{"prepare": NAME, "job": {...}} makes a job ready; {"run": NAME, "times": n, "check": c} runs it n times and answers
{"seconds": of one run, "peak_bytes": above the level before, "told": about the job}; {"forget": true} drops all jobs.
What goes wrong in a job is answered as {"error": one line}. Standard library alone: both environments import this.
"""

import ctypes
import dataclasses
import gc
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_ERROR_LENGTH = 300


@dataclasses.dataclass(frozen=True)
class Job:
    """Something to time.

    Attributes:
        run: what is timed; where `times_itself`, its result is the seconds that count.
        check: told what the first run returned; raises when that is not what was asked for.
        info: what the parent is told of the job; `check` may add to it.
    """

    run: Callable[[], Any]
    check: Callable[[Any], None] = lambda result: None
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    times_itself: bool = False


class WorkerError(Exception):
    """A job that raised, or a worker that died or took too long."""


class Worker:
    """A child process; one that died is started anew by the next request."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._command = command
        self._environment = {**os.environ, **environment}
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The answer to a request; raises WorkerError when it is an error, or late by `timeout` seconds."""
        process = self._process or self._start()
        try:
            print(json.dumps(request), file=process.stdin, flush=True)
            ready, _, _ = select.select([process.stdout], [], [], timeout)
            line = process.stdout.readline() if ready and process.stdout else ""
        except BrokenPipeError:
            line, ready = "", [process.stdout]
        if not line:
            self.close()
            raise WorkerError("the process died" if ready else f"no answer within {timeout:.0f} s")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> "subprocess.Popen[str]":
        with open(self._log, "a") as log:
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                self._command, env=self._environment, stdin=pipe, stdout=pipe, stderr=log, text=True
            )
        self._process = process
        return process


@dataclasses.dataclass(frozen=True)
class Pool:
    """Memory that a library keeps for itself after use, where the kernel cannot see what a run needs of it.

    Attributes:
        reset: start a new peak; returns the bytes in use now.
        peak: bytes in use at the peak.
    """

    reset: Callable[[], int] = lambda: 0
    peak: Callable[[], int] = lambda: 0


def serve(prepare: Callable[[dict[str, Any]], Job], pool: Pool = Pool()) -> None:
    """Be a worker: answer requests on standard input until it ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    jobs: dict[str, Job] = {}
    for line in sys.stdin:
        try:
            answer = _answer(json.loads(line), prepare, jobs, pool)
        except Exception as error:
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:MAX_ERROR_LENGTH]}
        print(json.dumps(answer), file=answers, flush=True)


def _answer(
    request: dict[str, Any], prepare: Callable[[dict[str, Any]], Job], jobs: dict[str, Job], pool: Pool
) -> dict[str, Any]:
    if "prepare" in request:
        name = request["prepare"]
        jobs[name] = prepare(request["job"])
        return {}
    if "run" in request:
        if request["run"] not in jobs:
            raise RuntimeError("the process died, and this job with it")
        return _run(jobs[request["run"]], request["times"], request["check"], pool)
    jobs.clear()
    gc.collect()
    return {}


def _run(job: Job, times: int, check: bool, pool: Pool) -> dict[str, Any]:
    before, pooled = reset_peak(), pool.reset()
    started = time.perf_counter()
    results = [job.run() for _ in range(times)]
    seconds = (time.perf_counter() - started) / times
    peak = None if before is None else max(peak_memory() - before, pool.peak() - pooled)
    if check:
        job.check(results[0])
    return {"seconds": sum(results) / times if job.times_itself else seconds, "peak_bytes": peak, "told": job.info}


def reset_peak() -> int | None:
    """Give free memory back and start a new peak; returns the bytes resident now, None where the kernel refuses."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _memory("VmRSS")


def peak_memory() -> int:
    """Bytes resident at the peak."""
    return _memory("VmHWM")


def _memory(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{field}:\s+(\d+) kB", status).group(1))
