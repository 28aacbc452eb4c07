"""Workers: processes that make jobs ready and run them, one at a time. Both environments import this.

("prepare", name, job) makes a job, runs it once, checks what it gave, and answers {"seconds", "told"}; ("run", name,
times) answers {"seconds": of one run, "peak_bytes": above the level before}; ("forget",) drops all jobs.
"""

import ctypes
import dataclasses
import gc
import re
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PATIENCE = 600.0  # seconds for an answer


@dataclasses.dataclass(frozen=True)
class Job:
    """Something to time.

    Attributes:
        run: what is timed; where `times_itself`, its result is the seconds that count.
        check: told what the first run returned; raises when that is not what was asked for.
        told: what the parent is told of the job; `check` may add to it.
    """

    run: Callable[[], Any] = lambda: None
    check: Callable[[Any], None] = lambda result: None
    told: dict[str, Any] = dataclasses.field(default_factory=dict)
    times_itself: bool = False


class WorkerError(Exception):
    """A job that raised, or a worker that died or took too long."""


class Worker:
    """A child process; one that died is started anew by the next request. What it prints goes to `log`."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, *request: Any, timeout: float = PATIENCE) -> dict[str, Any]:
        """Return the answer to a request; raise WorkerError when it is an error, or late by `timeout` seconds."""
        if self._process is None:
            self._start()
        try:
            self._connection.send(request)
            if not self._connection.poll(timeout):
                raise WorkerError(f"no answer within {timeout:.0f} s")
            answer = self._connection.recv()
        except (OSError, EOFError, WorkerError) as error:
            self.close()
            raise error if isinstance(error, WorkerError) else WorkerError("the process died") from error
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        command = [*self._command, str(theirs.fileno())]
        with theirs, open(self._log, "a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, pass_fds=[theirs.fileno()])


def serve(prepare: Callable[[dict[str, Any]], Job], pool: Callable[[str], int] = lambda which: 0) -> None:
    """Answer requests until the parent ends.

    `pool` tells the bytes, "current" or at the "peak", of the memory that a library keeps after use, where the kernel
    cannot see what a run needs of it; "current" starts a new peak.
    """
    connection, jobs = Connection(int(sys.argv[-1])), {}
    while True:
        try:
            request, *arguments = connection.recv()
        except EOFError:
            return
        try:
            if request == "prepare":
                answer = _first_run(jobs, prepare, *arguments)
            elif request == "run":
                answer = _run(jobs, pool, *arguments)
            else:
                jobs.clear()
                answer = {}
        except Exception as error:
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        connection.send(answer)


def _first_run(
    jobs: dict[str, Job], prepare: Callable[[dict[str, Any]], Job], name: str, asked: dict[str, Any]
) -> dict[str, Any]:
    job = jobs[name] = prepare(asked)
    started = time.perf_counter()
    result = job.run()
    seconds = time.perf_counter() - started
    job.check(result)
    return {"seconds": seconds, "told": job.told}


def _run(jobs: dict[str, Job], pool: Callable[[str], int], name: str, times: int) -> dict[str, Any]:
    if name not in jobs:
        raise RuntimeError("the process died, and this job with it")
    before, pooled = reset_peak(), pool("current")
    started = time.perf_counter()
    results = [jobs[name].run() for _ in range(times)]
    seconds = time.perf_counter() - started
    peak = None if before is None else max(resident("VmHWM") - before, pool("peak") - pooled)
    return {"seconds": (sum(results) if jobs[name].times_itself else seconds) / times, "peak_bytes": peak}


def reset_peak() -> int | None:
    """Give free memory back and start a new peak; return the bytes resident now, None where the kernel refuses."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return resident("VmRSS")


def resident(field: str) -> int:
    """Return the bytes resident: VmRSS now, VmHWM at the peak."""
    return 1024 * int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1))
