"""What a command prints on terminals of all kinds: colours, encodings, few columns, a full disk."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from iobench.cli.terminal import folded
from tests.hostile import HOSTILE

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0"
RUN = GOLDEN / "runs/calibrated"
COLOR = re.compile(r"\x1b\[\d+m")


def iobench(*arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "iobench", *map(str, arguments)],
        capture_output=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


def on_terminal(columns: int, *arguments: object, **environment: str) -> str:
    """What a command prints on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "iobench", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    told = b""
    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not chunk:
            break
        told += chunk
    os.close(ours)
    assert process.wait(timeout=120) in (0, 1)
    return told.decode().replace("\r\n", "\n")


def test_colours_are_for_terminals_that_want_them() -> None:
    plain = iobench("report", RUN).stdout.decode()
    assert not COLOR.search(plain)
    colored = on_terminal(100, "report", RUN)
    assert COLOR.search(colored)
    for without in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        told = on_terminal(100, "report", RUN, **without)
        assert "\x1b" not in told
        assert told == COLOR.sub("", colored)


def test_narrow_terminals_get_lines_broken_between_words() -> None:
    columns = 34
    told = on_terminal(columns, "report", RUN, NO_COLOR="1")
    words = re.findall(r"\S+", iobench("report", RUN).stdout.decode())
    long = [word for word in words if len(word) > columns // 2]
    for line in told.splitlines():
        assert len(line) <= columns or any(word in line for word in long), line
    shown = re.sub(r"\s+", " ", told)
    for words_together in ("what storage can deliver", "more cores", "accelerator utilization"):
        if words_together in re.sub(r"\s+", " ", " ".join(words)):
            assert words_together in shown
    listed = on_terminal(columns, "list", "workloads")
    assert "resnet50-h100" in listed
    lost = on_terminal(columns, "verify", "there-is-no-such-directory-" + "x" * columns)
    assert "no such directory" in re.sub(r"\s+", " ", lost)


def test_folding() -> None:
    assert folded("  a bb ccc", 80) == ["  a bb ccc"]
    assert folded("  aa bb cc dd", 8) == ["  aa bb", "    cc", "    dd"]
    assert folded("x" * 30, 8) == ["x" * 30]
    assert folded("\x1b[1maaaa\x1b[0m bbb", 8) == ["\x1b[1maaaa\x1b[0m bbb"]
    assert folded("aaaa bbbb cccc", 9) == ["aaaa bbbb", "  cccc"]


SCRIPT = """
import json, sys
from iobench.cli.main import main
codes = []
for words in json.loads(sys.argv[1]):
    try:
        codes.append(main(words))
    except SystemExit as ended:
        codes.append(ended.code)
print("codes", codes)
"""


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"PYTHONIOENCODING": "latin-1"}, marks=pytest.mark.slow),
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    ],
    ids=["latin-1", "ascii", "C"],
)
def test_every_encoding_is_one_in_which_iobench_speaks(
    environment: dict[str, str], tmp_path: Path
) -> None:
    photos = tmp_path / "photos-é-漢"
    photos.mkdir()
    (photos / "bild-ü-漢.bin").write_bytes(os.urandom(5000))
    shutil.copytree(RUN, photos / "run")
    named = (
        os.fsencode(photos).decode("ascii", "surrogateescape")
        if "LC_ALL" in environment
        else str(photos)
    )
    commands = [
        ["report", f"{named}/run"],
        ["report", f"{named}/run", "--json"],
        ["list"],
        ["compare", named, "--by", "host.node"],
        ["scan", named, "--save", f"{tmp_path}/s.yaml"],
        ["verify", f"{tmp_path}/s.manifest", "--origin", named, "--workers", "1"],
        ["verify", named],
        ["plan", "nosuch-漢-\udcff"],
        ["--help"],
    ]
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)],
        capture_output=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.endswith(b"codes [0, 0, 0, 2, 0, 0, 1, 2, 0]\n"), told.stderr
    assert b"Traceback" not in told.stderr
    assert b"#####" in told.stdout  # the bars of the report


def test_a_manifest_of_names_that_this_locale_has_not_got(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/漢.bin").write_bytes(os.urandom(5000))
    assert iobench("scan", tmp_path / "photos", "--save", tmp_path / "s.yaml").returncode == 0
    ascii_ = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    told = iobench("verify", tmp_path / "s.manifest", **ascii_)
    assert (told.returncode, told.stderr.count(b"\n")) == (1, 1)
    assert b"LC_ALL" in told.stderr
    words = ("verify", tmp_path / "s.manifest", "--origin", tmp_path / "photos")
    assert iobench(*words, LC_ALL="C.UTF-8").returncode == 0


def test_a_full_disk_behind_standard_output_is_an_error() -> None:
    for arguments in (("list",), ("report", RUN)):
        with open("/dev/full", "wb") as full:
            told = subprocess.run(
                [sys.executable, "-m", "iobench", *map(str, arguments)],
                stdout=full,
                stderr=subprocess.PIPE,
                timeout=120,
                check=False,
            )
        assert told.returncode == 1
        assert told.stderr.startswith(b"iobench: ")
        assert told.stderr.count(b"\n") == 1


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m iobench list instances | head -c 10; echo ${{PIPESTATUS[0]}}"
    told = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120, check=True)
    assert told.stderr == b""
    assert told.stdout.endswith(b"0\n")


def test_quiet_says_nothing_about_progress(tmp_path: Path) -> None:
    """``demo`` shows the commands that it runs; --quiet leaves them out, errors are told."""
    argument = "--repeat=0"
    for quiet in ((), ("--quiet",)):
        told = subprocess.run(
            [sys.executable, "-m", "iobench", "demo", "--samples", "0", argument, *quiet],
            cwd=tmp_path,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert told.returncode == 2
        assert (b"$ iobench" in told.stderr) == (not quiet)
        assert b"iobench: " in told.stderr


def test_hostile_arguments_on_a_terminal() -> None:
    told = on_terminal(80, "report", HOSTILE.replace("\ud800", ""))
    assert "PWNED" in told
    assert "\x1b" not in told
