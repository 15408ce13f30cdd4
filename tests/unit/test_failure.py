"""No error ends in a traceback: one line, a documented exit code, a log for internal errors."""

from __future__ import annotations

import argparse
import errno
import re
import signal
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from iobench.cli import list as verb
from iobench.cli.main import main
from iobench.errors import DatasetError, IobenchError, UsageError
from tests.hostile import HOSTILE, RAW, check, run

Fail = Callable[[BaseException], None]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Fail]:
    """``fails(error)``: from now on ``iobench list`` raises it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    handler = signal.getsignal(signal.SIGINT)

    def set_error(error: BaseException) -> None:
        def broken(args: argparse.Namespace) -> int:
            raise error

        monkeypatch.setattr(verb, "VERB", replace(verb.VERB, run=broken))

    yield set_error
    signal.signal(signal.SIGINT, handler)  # an interrupted command ignores the next Ctrl-C


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("iobench-error-*.log"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IobenchError("x"), 1),
        (DatasetError(HOSTILE, remedy=HOSTILE), 1),
        (UsageError("x\ny"), 2),
        (OSError(errno.EIO, "Input/output error", HOSTILE), 1),
        (OSError(HOSTILE), 1),
        (MemoryError(), 1),
        (UnicodeEncodeError("latin-1", "\u6f22", 0, 1, "ordinal not in range"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_what_was_foreseen(
    fails: Fail, tmp_path: Path, error: BaseException, code: int, debug: bool
) -> None:
    fails(error)
    ended, out, err = main_list(debug)
    assert (ended, out) == (code, "")
    lines = err.splitlines()
    assert lines[-1].startswith("iobench: ")
    assert ("Traceback" in err) == (len(lines) > 1) == (debug and code != 130)
    assert RAW.search(err) is None
    assert logs(tmp_path) == []


def main_list(debug: bool) -> tuple[int, str, str]:
    return run("list", *(["--debug"] if debug else []))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(HOSTILE),
        RecursionError("x"),
        KeyError("k"),
        UnicodeDecodeError("utf-8", b"", 0, 1, "x"),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_an_internal_error_leaves_a_log(
    fails: Fail, tmp_path: Path, error: BaseException, debug: bool
) -> None:
    fails(error)
    code, out, err = main_list(debug)
    assert (code, out) == (70, "")
    assert RAW.search(err) is None
    line = err.splitlines()[-1]
    (log,) = logs(tmp_path)
    assert str(log) in line
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    text = log.read_text()
    assert "Traceback (most recent call last)" in text
    assert type(error).__name__ in text
    assert ("Traceback" in err) == debug


def test_a_log_that_can_t_be_written_is_no_second_error(
    fails: Fail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(RuntimeError("x"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    code, _, err = main_list(debug=False)
    assert (code, err.count("\n")) == (70, 1)
    assert "--debug" in err


def test_a_log_follows_no_link(
    fails: Fail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    fails(RuntimeError("x"))
    stamp = time.strftime("%Y")
    monkeypatch.setattr("time.strftime", lambda *_: stamp)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    import os

    (tmp_path / f"iobench-error-{stamp}-{os.getpid()}.log").symlink_to(victim)
    assert main_list(debug=False)[0] == 70
    assert victim.read_text() == "mine"


def test_debug_keeps_the_exit_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, code in ((["plan", "nosuch"], 2), (["verify", str(tmp_path / "no")], 1)):
        assert main(words) == code
        assert "Traceback" not in capsys.readouterr().err
        assert main([*words, "--debug"]) == code
        assert "Traceback" in capsys.readouterr().err


def test_arguments_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["\x1b[2J"],
        ["list", "\x1b[2J"],
        ["list", "--\u202ex"],
        ["report", "a", HOSTILE],
    ):
        code = 1 if words[0] == "report" else 2  # two runs, of which there is none
        check(run(*words), (code,), words)


@pytest.mark.parametrize(
    "words",
    [
        ("cost", "run", "--host-price-per-hour", "1", "--hosts"),
        ("cost", "run", "--host-price-per-hour"),
        ("cost", "run", "--host-price-per-hour", "1", "--budget"),
        ("size", "demo", "--accelerators"),
        ("size", "demo", "--accelerators", "1", "--required-au"),
        ("plan", "demo", "--repeat"),
        ("plan", "llama3-8b", "--accelerators"),
        ("generate", "demo", "--to", "x", "--samples"),
        ("generate", "demo", "--to", "x", "--memory-multiple"),
        ("verify", "x", "--workers"),
    ],
)
def test_numbers_beyond_all_sense(words: tuple[str, ...]) -> None:
    for number in ("9" * 400, "9" * 5000, "1e400", "nan", "-inf", "\udcff", ""):
        check(run(*words[:-1], f"{words[-1]}={number}"), (2,), (words, number[:9]))


def test_the_help_names_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = set(re.findall(r"^  (\d+) ", capsys.readouterr().out, re.MULTILINE))
    assert shown == {"0", "1", "2", "3", "4", "5", "70", "130"}
