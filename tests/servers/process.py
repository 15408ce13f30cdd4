"""Programs that tests start: on loopback, on a port of their own, ended by their pid, and with this
process if it is killed.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from tests.processes import PATIENCE_S

_PR_SET_PDEATHSIG = 1


def missing(what: str) -> NoReturn:
    """Where a server can't be had, a test is skipped, loudly; never in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and CI must have it")
    pytest.skip(f"NOT TESTED: {what} is missing")


_PORTS = itertools.count(97 * os.getpid())


def free_port() -> int:
    """Below those that the kernel gives to connections: none takes it before a server does, and no
    other process of the tests gets it at the same time.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port := 10_000 + next(_PORTS) % 20_000))
            return port


def start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    def end_with_parent() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=end_with_parent)


def wait_for(
    port: int, process: subprocess.Popen[bytes], log: Path, address: str = "127.0.0.1"
) -> None:
    """Until it listens. Raises RuntimeError with its log where it ends before."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((address, port)) == 0:
                return
        if process.poll() is not None:
            break
        time.sleep(0.02)
    stop(process)
    raise RuntimeError(f"{process.args!r} did not start: {log.read_text(errors='replace')[-2000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
