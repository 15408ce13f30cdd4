"""Log records and warnings, also those of libraries, reach a terminal as text."""

from __future__ import annotations

import subprocess
import sys

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
