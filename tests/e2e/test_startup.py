"""What starts quickly must not import what is slow, and a report must not need what only a run
needs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Call

HEAVY = {"torch", "pydantic", "pyarrow", "numpy", "fsspec", "s3fs", "simplejpeg", "psutil"}

_PROBE = """
import json, os, sys
from iobench.cli.main import main
code = 0
try:
    code = main(sys.argv[2:])
except SystemExit as left:
    code = left.code
with open(sys.argv[1], "w") as file:
    modules = sorted({name.partition(".")[0] for name in sys.modules})
    json.dump({"code": code, "modules": modules}, file)
"""


def imported(tmp_path: Path, *arguments: str | Path, code: int = 0) -> set[str]:
    """Top-level packages in ``sys.modules`` after ``iobench ARGUMENTS`` in a process of its own,
    which must end with ``code``.
    """
    out = tmp_path / "modules.json"
    found = subprocess.run(
        [sys.executable, "-c", _PROBE, str(out), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    seen = json.loads(out.read_text())
    assert seen["code"] == code, found.stderr
    return set(seen["modules"])


def test_the_probe_sees_an_import(tmp_path: Path) -> None:
    assert {"iobench", "json"} <= imported(tmp_path, "--version")


def test_a_run_that_cannot_begin_imports_no_torch(tmp_path: Path) -> None:
    seen = imported(tmp_path, "run", "demo", "--data", tmp_path / "none", code=1)
    assert "numpy" in seen, "the dataset was not looked for"
    assert "torch" not in seen


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("--version",), ("run", "--help"), ("generate", "--help"), ("report", "--help")],
)
def test_help_imports_nothing_heavy(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert imported(tmp_path, *arguments) & HEAVY == set()


@pytest.mark.parametrize("kind", ["codecs", "formats", "storage", "accelerators", "contents"])
def test_list_of_plugins_imports_nothing_heavy(tmp_path: Path, kind: str) -> None:
    assert imported(tmp_path, "list", kind) & HEAVY == set()


def test_list_does_without_torch(tmp_path: Path) -> None:
    """Workloads and datasets are YAML; reading them may cost a schema, not a tensor library."""
    assert imported(tmp_path, "list") & {"torch", "pyarrow", "numpy"} == set()


def test_sizing_does_without_torch(tmp_path: Path) -> None:
    assert (
        imported(tmp_path, "size", "resnet50-h100", "--accelerators", "8") & {"torch", "pyarrow"}
        == set()
    )


def test_what_reads_results_and_data_does_without_torch(tmp_path: Path, make_dataset: Any) -> None:
    _, root = make_dataset()
    for arguments in (
        ("verify", root, "--workers", "1"),
        ("doctor", root),
        ("clean", root, "--dry-run"),
        ("generate", "demo", "--to", tmp_path / "d", "--samples", "3", "--workers", "1"),
    ):
        assert not {"torch", "pandas"} & imported(tmp_path, *arguments), arguments


@pytest.mark.slow
def test_a_report_needs_neither_torch_nor_storage(
    tmp_path: Path, make_dataset: Any, call: Call
) -> None:
    _, root = make_dataset()
    quick = [
        "--repeat",
        "1",
        "--calibration",
        "0.2",
        "--set",
        "batch_size=5",
        "--set",
        "reader.crop=null",
        "--set",
        "epochs=1",
    ]
    told = call("run", "demo", "--data", root, "--results", tmp_path / "results", *quick)
    assert told[0] == 0, told
    (directory,) = (tmp_path / "results").iterdir()
    assert not {"torch", "pandas"} & imported(tmp_path, "report", directory)
    assert "torch" not in imported(tmp_path, "whatif", directory, "--storage-bandwidth", "2x")
    assert "torch" not in imported(
        tmp_path, "size", "demo", "--accelerators", "2", "--from", directory
    )
    again = tmp_path / "results" / "again"
    shutil.copytree(directory, again)
    document = json.loads((again / "run.json").read_text())
    document["job"]["workload"]["loader"]["workers"] += 1
    (again / "run.json").write_text(json.dumps(document))
    assert "torch" not in imported(tmp_path, "advise", tmp_path / "results")
    # And a second witness: the interpreter's own log of imports.
    timed = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "iobench", "report", str(directory)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    names = {
        line.rpartition("|")[2].strip()
        for line in timed.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "pyarrow" in names, "the log is not what this test takes it for"
    assert not {name for name in names if name.partition(".")[0] == "torch"}
    assert not {
        name
        for name in names
        if name.startswith(("iobench.load", "iobench.storage", "iobench.runner"))
    }
