"""A real limit of a server's bandwidth: the kernel of this host holds what the server sends to a
rate (traffic control, HTB), whichever protocol it speaks and over however many connections.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_BURST_BYTES = 128 << 10
"""Two of the largest packets of the loopback interface."""


def _tc(*words: object) -> None:
    done = subprocess.run(["tc", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.stderr.strip())


@contextmanager
def held(port: int, bytes_per_s: float) -> Iterator[None]:
    """The server at ``port`` of this host sends at most so many bytes/s in this block.

    Skips the test where the kernel offers no traffic control, or to root alone.
    """
    if shutil.which("tc") is None or os.geteuid() != 0:
        pytest.skip("tc and root are needed: the oracle behind a limited server did NOT run")
    try:
        _tc("qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb")
    except OSError as error:
        pytest.skip(f"tc: {error}: the oracle behind a limited server did NOT run")
    try:
        rate = f"{round(bytes_per_s)}bps"  # tc's word for bytes/s
        burst = ("burst", _BURST_BYTES, "cburst", _BURST_BYTES)
        limited = ("classid", "1:1", "htb", "rate", rate, *burst, "quantum", 1 << 16)
        _tc("class", "add", "dev", "lo", "parent", "1:", *limited)
        sent = ("match", "ip", "sport", port, "0xffff", "flowid", "1:1")
        _tc("filter", "add", "dev", "lo", "parent", "1:", "protocol", "ip", "u32", *sent)
        yield
    finally:
        _tc("qdisc", "del", "dev", "lo", "root")
