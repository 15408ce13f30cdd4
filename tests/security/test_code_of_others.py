"""Code that lies about, as a plug-in or in the current directory, runs only where it is asked
for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GROUPS = (
    "storage", "formats", "contents", "codecs", "accelerators", "loaders", "writers",
)  # fmt: skip


COMMANDS = """
import os, sys
from iobench.cli.main import main
for words in sys.argv[2:]:
    try:
        code = main(words.split())
    except SystemExit as left:
        code = left.code
    print(code, os.path.exists(sys.argv[1]))
"""


@pytest.fixture
def home(make_dataset: Any, tmp_path: Path) -> Path:
    _, root = make_dataset()
    shutil.copytree(root, tmp_path / "d")
    return tmp_path


def lines(home: Path, *commands: str, path: Path | None = None) -> list[str]:
    """What commands print in ``home``, in one process: after each one its exit code, and whether
    the file ``imported`` is there.

    They are given by a script of another folder, as the command that is installed, so that the
    current directory is not on Python's path.
    """
    script = home / "bin" / "commands.py"
    script.parent.mkdir()
    script.write_text(COMMANDS)
    paths = [*([str(path)] if path else []), *os.environ.get("PYTHONPATH", "").split(":")]
    done = subprocess.run(
        [sys.executable, script, home / "imported", *commands],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=home,
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, paths))},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_foreign_plug_in_is_not_imported_by_what_does_not_name_it(home: Path) -> None:
    site = home / "site"
    (site / "evil-1.dist-info").mkdir(parents=True)
    (site / "evil-1.dist-info" / "METADATA").write_text("Name: evil\nVersion: 1\n")
    (site / "evil-1.dist-info" / "entry_points.txt").write_text(
        "".join(
            f"[iobench.{group}]\nevil = evil:Thing\nfile = evil:Thing\ntar = evil:Thing\n"
            for group in GROUPS
        )
    )
    (site / "evil.py").write_text(f"open({str(home / 'imported')!r}, 'w')\nclass Thing: pass\n")
    told = lines(home, "list", "verify d", "list storage", "verify evil://x", path=site)
    assert [line for line in told if line.startswith(("0 ", "1 ", "2 "))] == [
        *["0 False"] * 3,
        "2 True",  # it is a plug-in, for whoever names it
    ]
    assert any(line.split()[:1] == ["evil"] for line in told)


def test_modules_in_the_current_directory_are_not_imported(home: Path) -> None:
    for name in ("numpy", "pyarrow", "torch", "yaml", "json", "iobench_plugin", "sitecustomize"):
        (home / f"{name}.py").write_text(f"open({str(home / 'imported')!r}, 'w')\n")
    told = lines(home, "list", "verify d")
    assert [line for line in told if line.startswith("0 ")] == ["0 False"] * 2


# Messages of libraries


PROGRAM = r"""
import logging, sys, warnings
from iobench.cli.main import main

assert main(["list", "codecs"]) == 0
logging.getLogger("botocore.retries").warning("the server said %s", "\x1b]0;title\x07\u202e\nnext")
try:
    raise ValueError("\x1b[2J")
except ValueError:
    logging.getLogger("urllib3").exception("failed")
warnings.warn("a name: \x1b]52;c;ZXZpbA==\x07\u200b\nnext", UserWarning)
logging.getLogger("botocore").debug("not shown")
"""


def test_they_are_lines_of_printable_text() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, encoding="utf-8", timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines), lines
    for line, text in zip(lines, ("title", "[2J", "]52;c"), strict=True):
        assert "\\x1b" in line
        assert text in line
    assert "not shown" not in done.stderr
