"""No error ends in a traceback: one line, a documented exit code, a log for internal errors."""

from __future__ import annotations

import argparse
import errno
import json
import re
import shlex
import signal
import stat
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from iobench.base.errors import DatasetError, UsageError
from iobench.base.extras import install_command
from iobench.cli import failure
from iobench.cli import list as verb
from tests.hostile import HOSTILE, RAW, check, run
from tests.processes import refused

ROOT = Path(__file__).parents[2]

Fail = Callable[[BaseException], None]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Fail]:
    """``fails(error)``: from now on ``iobench list`` raises it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    handler = signal.getsignal(signal.SIGINT)

    def set_error(error: BaseException) -> None:
        def broken(args: argparse.Namespace) -> int:
            raise error

        monkeypatch.setattr(verb, "run", broken)

    yield set_error
    signal.signal(signal.SIGINT, handler)  # an interrupted command ignores the next Ctrl-C


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("iobench-error-*.log"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
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
    "error", [RuntimeError(HOSTILE), KeyError("k"), UnicodeDecodeError("utf-8", b"", 0, 1, "x")]
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


def test_debug_keeps_the_exit_code(tmp_path: Path) -> None:
    for words, code in ((["plan", "nosuch"], 2), (["verify", str(tmp_path)], 1)):
        assert refused(*words, code=code)
        ended, _, told = run(*words, "--debug")
        assert (ended, "Traceback" in told) == (code, True)


@pytest.mark.parametrize(
    "words",
    [
        ("cost", "run", "--host-price-per-hour"),
        ("size", "demo", "--accelerators"),
        ("plan", "demo", "--repeat"),
        ("generate", "demo", "--to", "x", "--samples"),
    ],
)
def test_numbers_beyond_all_sense(words: tuple[str, ...]) -> None:
    for number in ("9" * 400, "9" * 5000, "1e400", "nan", "-inf", "\udcff", ""):
        check(run(*words[:-1], f"{words[-1]}={number}"), (2,), (words, number[:9]))


def test_a_package_that_is_missing_is_named(fails: Fail, tmp_path: Path) -> None:
    fails(ModuleNotFoundError("No module named 'torch._C'", name="torch._C"))
    said = refused("list", code=1)
    assert "torch" in said
    assert sys.executable in said
    assert logs(tmp_path) == []


def test_a_module_of_our_own_that_is_missing_is_an_internal_error(
    fails: Fail, tmp_path: Path
) -> None:
    fails(ModuleNotFoundError("No module named 'iobench.x'", name="iobench.x"))
    assert run("list")[0] == 70
    assert len(logs(tmp_path)) == 1


def test_all_that_is_needed_is_known() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split("[<>=]", each)[0] for each in project["dependencies"]}
    assert set(failure.NEEDED.values()) == needed


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EROFS, "Read-only file system"),
        OSError(errno.EACCES, "Permission denied"),
        "in the folder",
    ],
)
def test_shared_memory_that_can_not_be_written_is_named(
    fails: Fail, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError | str
) -> None:
    missing = tmp_path / "shm"
    monkeypatch.setattr(failure, "SHARED_MEMORY", str(missing))
    if isinstance(error, str):
        error = OSError(errno.EROFS, "Read-only file system", str(missing / "pym-1"))
    fails(error)
    assert f"{missing}, " in refused("list", code=1)


# The command that installs an extra


def installed(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    """Let pip have recorded this origin of iobench: None for an index."""

    class Recorded(metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            assert filename == "direct_url.json"
            return None if origin is None else json.dumps(origin)

        def locate_file(self, path: object) -> Path:  # type: ignore[override]
            raise NotImplementedError

    monkeypatch.setattr(metadata, "distribution", lambda name: Recorded())


def test_from_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://user:secret@example.org/iobench.git"
    installed(monkeypatch, {"url": url, "vcs_info": {"vcs": "git", "commit_id": "1"}})
    assert shlex.split(install_command("s3")) == [
        *("pip", "install", "iobench[s3] @ git+https://example.org/iobench.git")
    ]
