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
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from iobench.cli.main import main
from tests.processes import in_process, printed

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0"
RUN = GOLDEN / "runs/calibrated"
COLOR = re.compile(r"\x1b\[\d+m")


def on_terminal(columns: int, *arguments: object, **environment: str) -> str:
    """What a command prints on a terminal of so many columns."""
    command, ours = pty.fork()
    if not command:
        code = 99
        try:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            for name in ("COLUMNS", "NO_COLOR"):
                os.environ.pop(name, None)
            os.environ.update({"TERM": "xterm", **environment})
            sys.stdout, sys.stderr = (os.fdopen(end, "w", closefd=False) for end in (1, 2))
            code = main([str(word) for word in arguments])
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    told = b""
    with suppress(OSError):  # the other side is closed
        while chunk := os.read(ours, 1 << 16):
            told += chunk
    os.close(ours)
    assert os.waitstatus_to_exitcode(os.waitpid(command, 0)[1]) in (0, 1, 2)
    return told.decode().replace("\r\n", "\n")


def test_colours_are_for_terminals_that_want_them() -> None:
    assert not COLOR.search(printed("report", RUN))
    colored = on_terminal(100, "report", RUN)
    assert COLOR.search(colored)
    told = on_terminal(100, "report", RUN, NO_COLOR="1")
    assert "\x1b" not in told
    assert told == COLOR.sub("", colored)
    assert "\x1b" not in on_terminal(100, "report", RUN / "nothing", TERM="dumb")


def test_narrow_terminals_get_lines_broken_between_words() -> None:
    columns = 34
    told = on_terminal(columns, "report", RUN, NO_COLOR="1")
    words = re.findall(r"\S+", printed("report", RUN))
    long = [word for word in words if len(word) > columns // 2]
    for line in told.splitlines():
        assert len(line) <= columns or any(word in line for word in long), line
    assert "is the bottleneck" in re.sub(r"\s+", " ", told)
    lost = on_terminal(columns, "verify", "there-is-no-such-directory-" + "x" * columns)
    assert "no such directory" in re.sub(r"\s+", " ", lost)


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
        pytest.param({"PYTHONIOENCODING": "latin-1"}, id="latin-1", marks=pytest.mark.nightly),
        pytest.param({"PYTHONIOENCODING": "ascii"}, id="ascii", marks=pytest.mark.nightly),
        pytest.param({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, id="C"),
    ],
)
def test_every_encoding_is_one_in_which_iobench_speaks(
    environment: dict[str, str], tmp_path: Path
) -> None:
    photos = tmp_path / "photos-é-漢"
    photos.mkdir()
    # More bytes than the records below, so that scan takes the folder for one of such files.
    (photos / "bild-ü-漢.bin").write_bytes(os.urandom(500_000))
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
    # A manifest has names in UTF-8. Where the locale can't write them, verify says so.
    unwritable = int("LC_ALL" in environment)
    codes = f"codes {[0, 0, 0, 2, 0, unwritable, 1, 2, 0]}\n"
    assert told.stdout.endswith(codes.encode()), told.stderr
    assert (b"Set LC_ALL=C.UTF-8" in told.stderr) == bool(unwritable)
    assert b"Traceback" not in told.stderr
    assert b"#####" in told.stdout  # the bars of the report


def test_a_full_disk_behind_standard_output_is_an_error() -> None:
    command = f"{sys.executable} -m iobench report {RUN} > /dev/full"
    told = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, check=False)
    assert told.returncode == 1
    assert told.stderr.startswith(b"iobench: ")
    assert told.stderr.count(b"\n") == 1


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_quiet_says_nothing_about_progress(quiet: tuple[str, ...]) -> None:
    """``demo`` shows the commands that it runs; --quiet leaves them out, errors are told."""
    code, _, err = in_process("demo", "--samples", "0", "--repeat=0", *quiet)
    assert code == 2
    assert ("$ iobench" in err) == (not quiet)
    assert "iobench: " in err


# A reader that leaves (``| head -1``)


LIMIT_S = 240

INVALID = ("--rules", "mlperf")
CROSSED = ("--fail-on", "samples_per_s>0")


def closed_pipe() -> int:
    """The end of a pipe for writing, when nobody reads from the other end any more."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "iobench", *map(str, arguments)]


def ended(*arguments: object, errors_too: bool = False) -> tuple[int, bytes]:
    """(exit code, standard error) of a command whose standard output nobody reads."""
    pipe = closed_pipe()
    try:
        told = subprocess.run(
            command(*arguments),
            stdout=pipe,
            stderr=pipe if errors_too else subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
    finally:
        os.close(pipe)
    return told.returncode, told.stderr or b""


def test_a_report_of_an_invalid_run_ends_as_it_does_otherwise() -> None:
    assert ended("report", RUN, "--json", *INVALID) == (3, b"")


def test_a_crossed_threshold_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    code, errors = ended("report", RUN, *CROSSED)
    assert (code, errors.count(b"\n")) == (4, 1)


def test_nobody_reads_the_errors_either() -> None:
    assert ended("report", RUN, *CROSSED, errors_too=True)[0] == 4
    assert ended("no-such-verb", errors_too=True)[0] == 2


@pytest.mark.nightly
def test_errors_that_nobody_reads_leave_the_document_whole() -> None:
    with open("/dev/full", "wb") as full:
        told = subprocess.run(
            command("report", RUN, "--json", *CROSSED),
            stdout=subprocess.PIPE,
            stderr=full,
            timeout=LIMIT_S,
            check=False,
        )
    assert told.returncode == 4
    assert json.loads(told.stdout)["run_id"]


def test_a_run_is_recorded_and_invalid_all_the_same(make_dataset: Any, tmp_path: Path) -> None:
    """Nobody reads the verb's output or its errors, and it works on to its end."""
    _, data = make_dataset()
    words = ("run", "demo", "--data", data, "--repeat", 1, "--calibration", 0)
    quick = ("--set", "loader.workers=0", "--set", "batch_size=10", "--set", "reader.decode=false")
    more = ("--set", "reader.crop=null", "--set", "epochs=1", "--no-ablations")
    place = ("--results", tmp_path / "r")
    code, _ = ended(*words, *quick, *more, *place, *INVALID, errors_too=True)
    assert code == 3
    (record,) = (tmp_path / "r").rglob("run.json")
    document = json.loads(record.read_text())
    assert (document["status"], document["validity"]) == ("ok", "invalid")


@pytest.mark.nightly
def test_streams_that_were_never_open(make_dataset: Any) -> None:
    """No file that is opened later gets the number of standard output or of standard error."""
    _, data = make_dataset()
    words = " ".join(f"'{word}'" for word in command("verify", data, "--workers", "1"))
    told = subprocess.run(
        ["bash", "-c", f"{words} >&- 2>&-"], capture_output=True, timeout=LIMIT_S, check=False
    )
    assert told.returncode == 0
    assert told.stderr == b""
