"""iobench itself connects to nothing: what it opens are the storage's connections."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = r"""
import os, sys

NETWORK = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo",
           "socket.gethostbyname")

def watch(event, arguments):
    if event not in NETWORK:
        return
    # A name in the file system is no network; urllib3 binds ('::1', 0) to see whether IPv6 works.
    place = arguments[1] if event in NETWORK[:3] else None
    if isinstance(place, (str, bytes)) or (event, place) == ("socket.bind", ("::1", 0)):
        return
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{event} {arguments!r}\n".encode())
    os.close(fd)

sys.addaudithook(watch)
if sys.argv[2] == "connect":
    import socket
    socket.socket().connect_ex(("127.0.0.1", 9))
elif sys.argv[2] == "litdata":
    import iobench.load.libraries.lit
    from litdata.helpers import _check_version_and_prompt_upgrade
    _check_version_and_prompt_upgrade("0.2.50")
else:
    from iobench.cli.main import main
    sys.exit(main(sys.argv[2:]))
"""


def seen(log: Path, *words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(log), *words],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr  # 3: so short a run is no valid one
    return log.read_text() if log.exists() else ""


def test_the_watch_sees_a_connection(tmp_path: Path) -> None:
    assert "socket.connect" in seen(tmp_path / "log", "connect")


def test_nothing_of_a_local_story_connects(tmp_path: Path) -> None:
    data, results = str(tmp_path / "d"), str(tmp_path / "results")
    quick = ("--repeat", "1", "--calibration-s", "0.2", "--set", "loader.workers=1")
    spec = ("--set", "sample_size.mean=2000")
    for words in (
        ("generate", "demo", "--to", data, "--samples", "40", *spec),
        ("run", "demo", "--data", data, "--results", results, "--set", "batch_size=8", *quick),
        ("verify", data),
        ("report", results),
        ("clean", data),
    ):
        if words[0] == "report":
            words = ("report", str(next(Path(results).iterdir())))
        assert seen(tmp_path / "log", *words) == "", words


def test_litdata_does_not_ask_for_news(tmp_path: Path) -> None:
    """It asks PyPI for a newer version of itself where its own variables allow it."""
    pytest.importorskip("litdata")
    assert seen(tmp_path / "log", "litdata", LITDATA_CHECK_UPDATES="1") == ""
