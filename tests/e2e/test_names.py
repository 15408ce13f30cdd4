"""File names may be any bytes: what is not UTF-8 is scanned, kept, verified, run and cleaned."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from iobench.data.dataset import load_manifest
from tests.hostile import check, run

NAMES = [b"\xff\xfe.bin", "é漢.bin".encode(), b"plain.bin", b"sub\xe9/\xf0\x1b[2J.bin"]
ORIGIN = ("--origin", os.fsdecode(b"photos\xfc"))
WORKLOAD = """
name: mine
dataset: ./found.yaml
batch_size: 1
accelerator: {step_time: 1ms}
loader: {workers: 1}
"""


@pytest.fixture
def scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``photos`` with such names, scanned to ``found.manifest``, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        path = Path(os.fsdecode(b"photos\xfc/" + name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(6000))
    told = check(
        run("scan", os.fsdecode(b"photos\xfc"), "--save", "found.yaml", "--checksums"), (0,), "scan"
    )
    assert "4 samples in 4 shards" in told
    return tmp_path


def test_they_are_in_the_manifest_and_verified(scanned: Path) -> None:
    manifest = load_manifest(scanned / "found.manifest")
    assert {os.fsencode(key) for key in manifest.keys()} == set(NAMES)  # noqa: SIM118
    check(run("verify", "found.manifest", *ORIGIN, "--workers", "1"), (0,), "verify")
    victim = scanned / os.fsdecode(b"photos\xfc/\xff\xfe.bin")
    victim.write_bytes(victim.read_bytes()[:-1])
    out = check(
        run("verify", "found.manifest", *ORIGIN, "--workers", "1", "--json"), (1,), "verify"
    )
    (damage, *_) = json.loads(out)["damages"]
    assert os.fsencode(damage["shard"]) == b"\xff\xfe.bin"


def test_they_are_run(scanned: Path) -> None:
    (scanned / "mine.yaml").write_text(WORKLOAD)
    words = ("run", "./mine.yaml", "--data", "found.manifest", *ORIGIN, "--repeat", 1)
    words += ("--calibration", 0, "--no-ablations", "--set", "reader.check=content", "--json")
    told = run(*words, "--results", os.fsdecode(b"results\xff"))
    document = json.loads(check(told, (0,), "run"))
    assert document["job"]["repetitions"][0]["samples"] == 4
    assert os.fsencode(document["storage"]["url"]).endswith(b"/photos\xfc")
    (directory,) = Path(os.fsdecode(b"results\xff")).iterdir()
    again = json.loads(check(run("report", directory, "--json"), (0,), "report"))
    assert again["command"] == document["command"]
