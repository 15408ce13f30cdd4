"""iobench itself connects to nothing, and writes nowhere but where it was told to.

What it opens are the storage's connections. Python's audit events (PEP 578) show both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = r"""
import os, sys

NETWORK = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo",
           "socket.gethostbyname")

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = ("os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.symlink", "os.link",
           "os.truncate", "os.chmod", "os.chown", "os.utime", "shutil.rmtree")

def write_down(log, text):
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, text.encode(errors="backslashreplace") + b"\n")
    os.close(fd)

def watch(event, arguments):
    path = arguments[0] if arguments else None
    flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
    writes = flags & WRITES and (flags & os.O_TMPFILE) != os.O_TMPFILE  # a file without a name
    if (writes or event in CHANGES) and isinstance(path, (str, bytes)):
        path = os.fsdecode(path)
        if path not in sys.argv[1:2] and path != sys.argv[1] + ".writes":
            folder = arguments[-1] if event in ("os.mkdir", "os.remove", "os.rmdir") else -1
            if isinstance(folder, int) and folder >= 0 and not path.startswith("/"):
                path = os.readlink(f"/proc/self/fd/{folder}") + "/" + path
            write_down(sys.argv[1] + ".writes", os.path.abspath(path))
    if event not in NETWORK:
        return
    # A name in the file system is no network; urllib3 is the bottleneck ('::1', 0) to see whether
    # IPv6 works.
    place = arguments[1] if event in NETWORK[:3] else None
    if isinstance(place, (str, bytes)) or (event, place) == ("socket.bind", ("::1", 0)):
        return
    write_down(sys.argv[1], f"{event} {arguments!r}")

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
    for command in " ".join(sys.argv[2:]).split(" ; "):
        words = command.split()
        if words[0] == "report":  # the one run below this folder
            words[1:] = (entry.path for entry in os.scandir(words[1]))
        code = main(words)
        if code not in (0, 3):  # so short a run is no valid one
            sys.exit(code)
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
    assert done.returncode == 0, done.stderr
    return log.read_text() if log.exists() else ""


def test_the_watch_sees_a_connection(tmp_path: Path) -> None:
    assert "socket.connect" in seen(tmp_path / "log", "connect")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory for temporary files with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_nothing_of_a_local_story_connects_or_writes_elsewhere(
    tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "home").mkdir()
    environment = {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(temporary),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    data, results = str(tmp_path / "d"), str(tmp_path / "results")
    quick = "--repeat 1 --calibration 0.05s --set loader.workers=1 --set batch_size=8"
    made = f"generate demo --to {data} --samples 40 --set sample_size.mean=2000"
    told = f"run demo --data {data} --results {results} {quick} ; verify {data}"
    story = f"{made} ; {told} ; report {results} ; clean {data}"
    assert seen(tmp_path / "log", story, **environment) == ""
    assert not Path(data).exists()
    written = set((tmp_path / "log.writes").read_text().splitlines())
    assert f"{data}/manifest.json.part" in written  # the watch sees what there is to be seen
    memory = "/dev/shm/pym-"  # of Python's multiprocessing, which takes its name away at once
    own = (data, results, environment["TMPDIR"], "/dev/null", "/proc/self/", memory)
    assert {path for path in written if not path.startswith(own)} == set()
    assert list((tmp_path / "home").iterdir()) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.nightly
def test_litdata_does_not_ask_for_news(tmp_path: Path) -> None:
    """It asks PyPI for a newer version of itself where its own variables allow it."""
    pytest.importorskip("litdata")
    assert seen(tmp_path / "log", "litdata", LITDATA_CHECK_UPDATES="1") == ""
