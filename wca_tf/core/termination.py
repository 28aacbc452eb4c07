"""A parent process that ends a worker on SIGTERM, as TensorFlow's workers do not end by themselves.

TensorFlow takes the handler of SIGTERM in every worker of a cluster. While a worker waits for others, it also keeps
Python from running, and so no handler and no thread of Python's can end the process.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from typing import Any, NoReturn

GRACE = 1.0  # seconds in which an interrupted worker may end by itself; its files are complete at any time
PR_SET_PDEATHSIG = 1  # Linux: the signal that a process gets when its parent ends


def supervise() -> None:
    """Fork: return in the child, which does the work. The parent passes signals on, and ends with the child's status.

    SIGINT and SIGTERM interrupt the child, which is killed unless it ends within `GRACE`. After SIGTERM the status is
    143. Call this before any thread starts.
    """
    sys.stdout.flush()
    parent, child = os.getpid(), os.fork()
    if child:
        _wait(child)
    os.setpgid(0, 0)  # a terminal's Ctrl-C reaches the parent alone, which passes it on
    if hasattr(libc := ctypes.CDLL(None), "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(os.EX_TEMPFAIL)


def _wait(child: int) -> NoReturn:
    received: list[int] = []

    def interrupt(number: int, _: Any) -> None:
        received.append(number)
        end = time.monotonic() + GRACE
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it has ended
            os.kill(child, signal.SIGINT)
            while time.monotonic() < end and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                time.sleep(0.02)
            os.kill(child, signal.SIGKILL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if received:
        status = 128 + received[0]
    os._exit(status if status >= 0 else 128 - status)
