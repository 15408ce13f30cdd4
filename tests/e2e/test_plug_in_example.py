"""The package in examples/plug-in is installed, keeps the contracts, and is used by commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "plug-in"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which Python finds the installed package, and no checkout of it."""
    site = tmp_path_factory.mktemp("site")
    words = ("-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(EXAMPLE))
    subprocess.run([sys.executable, *words], check=True, timeout=300)
    return {**os.environ, "PYTHONPATH": str(site)}


def python(environment: dict[str, str], folder: Path, *words: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_it_keeps_the_contracts(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    words = ("-q", "-c", "pytest.ini", "--rootdir", ".", "-p", "no:cacheprovider", "-n", "0")
    shown = python(environment, tmp_path, "pytest", *words, str(EXAMPLE / "tests"))
    assert " passed" in shown


def test_commands_use_it_by_name(environment: dict[str, str], tmp_path: Path) -> None:
    """As the README of the package says, and from its storage."""
    names = python(environment, tmp_path, "iobench", "list", "--json")
    for name in ("sqlite", "bz2", "stamped", "lengths", "onebyone", "saving"):
        assert f'"{name}"' in names
    small = ("--samples", "40", "--set", "samples_per_shard=10", "--quiet")
    kinds = ("--set", "format=lengths", "--set", "content=stamped", "--set", "codec=bz2")
    data = f"sqlite://{tmp_path}/data.db"
    python(environment, tmp_path, "iobench", "generate", "demo", "--to", data, *small, *kinds)
    python(environment, tmp_path, "iobench", "verify", data, "--quiet")
    loader = ("--set", "loader.kind=onebyone", "--set", "loader.workers=0")
    quick = ("--repeat", "1", "--calibration", "0s", "--set", "batch_size=10", "--quiet")
    words = ("run", "demo", "--data", data, *loader, *quick, "--json")
    record = json.loads(python(environment, tmp_path, "iobench", *words))
    assert record["job"]["loader"]["delivery"]["missing"] == 0
    assert record["storage"]["scheme"] == "sqlite"
