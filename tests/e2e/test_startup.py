"""What starts quickly must not import what is slow. What reports need is in test_imports.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SWEEP = Path(__file__).parent.parent / "golden/0.1.0/sweep"
HEAVY = {"torch", "pydantic", "pyarrow", "numpy", "fsspec", "s3fs", "simplejpeg", "psutil"}

_PROBE = """
import json, os, sys
from iobench.cli.main import main
found = []
for command in sys.argv[2:]:
    try:
        code = main(command.split())
    except SystemExit as left:
        code = left.code
    found.append([code, sorted(sys.modules)])
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""


def imported(tmp_path: Path, *commands: str, codes: tuple[int, ...] = (0,)) -> list[set[str]]:
    """The modules that are there after each command. All are given to one new process, and end
    with one of ``codes``.
    """
    out = tmp_path / "modules.json"
    words = [sys.executable, "-c", _PROBE, str(out), *commands]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(out.read_text())
    assert {code for code, _ in found} <= set(codes), ended.stderr
    assert "iobench.cli.main" in found[0][1]
    return [set(names) for _, names in found]


def test_what_reads_no_samples_does_without_torch(tmp_path: Path, make_dataset: Any) -> None:
    """Helps and lists of plug-ins import nothing heavy. Workloads and datasets are YAML; reading
    them may cost a schema, not a tensor library.
    """
    _, root = make_dataset()
    helps = ("--help", "--version", "run --help", "generate --help", "report --help")
    kinds = [f"list {kind}" for kind in ("codecs", "formats", "storage", "accelerators")]
    *light, listed, sized, _, _, _, _, _, read = imported(
        tmp_path,
        *helps,
        *kinds,
        "list contents",
        "list",
        "size resnet50-h100 --accelerators 8",
        f"verify {root} --workers 1",
        f"doctor {root}",
        f"clean {root} --dry-run",
        f"generate demo --to {tmp_path}/d --samples 3 --workers 1",
        f"advise {SWEEP}",
        f"run demo --data {tmp_path}/none",
        codes=(0, 2),
    )
    assert light[-1] & HEAVY == set()
    assert listed & {"torch", "pyarrow", "numpy"} == set()
    assert sized & {"torch", "pyarrow"} == set()
    assert "numpy" in read, "the dataset was not looked for"
    assert read & {"torch", "pandas"} == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_while_the_command_line_is_imported_is_one_line(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "cyclopts.py").write_text(f"import os\nos.kill(os.getpid(), {number:d})")
    words = [sys.executable, "-m", "iobench", "list"]
    ended = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert (ended.returncode, ended.stderr) == (130, "iobench: interrupted\n")


def test_a_verb_that_keeps_nothing_ends_by_sigterm_in_one_line() -> None:
    stopped = """
import os, signal, sys
from iobench.cli import list as verb
from iobench.cli.main import main
verb.run = lambda request: os.kill(os.getpid(), signal.SIGTERM) or signal.pause()
sys.exit(main(["list"]))
"""
    words = [sys.executable, "-c", stopped]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (130, "iobench: interrupted\n")
