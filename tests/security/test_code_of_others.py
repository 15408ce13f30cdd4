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


def iobench(*words: str, path: Path | None = None, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command as it is installed: the current directory is not on Python's path."""
    command = shutil.which("iobench", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("the command iobench is not installed beside this Python")
    paths = [*([str(path)] if path else []), *os.environ.get("PYTHONPATH", "").split(":")]
    return subprocess.run(
        [command, *words],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, paths))},
        check=False,
    )


@pytest.fixture
def home(make_dataset: Any, tmp_path: Path) -> Path:
    _, root = make_dataset()
    shutil.copytree(root, tmp_path / "d")
    return tmp_path


VERBS = (("list",), ("verify", "d"))


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
    for words in VERBS:
        done = iobench(*words, path=site, cwd=home)
        assert done.returncode == 0, done.stderr
        assert not (home / "imported").exists(), words
    assert "evil" in iobench("list", "storage", path=site, cwd=home).stdout
    iobench("verify", "evil://x", path=site, cwd=home)
    assert (home / "imported").exists()  # it is a plug-in, for whoever names it


def test_modules_in_the_current_directory_are_not_imported(home: Path) -> None:
    for name in ("numpy", "pyarrow", "torch", "yaml", "json", "iobench_plugin", "sitecustomize"):
        (home / f"{name}.py").write_text(f"open({str(home / 'imported')!r}, 'w')\n")
    for words in VERBS:
        done = iobench(*words, cwd=home)
        assert done.returncode == 0, done.stderr
    assert not (home / "imported").exists()


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
