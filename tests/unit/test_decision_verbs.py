"""``iobench size``, ``whatif`` and ``advise`` as a user calls them: one clear line for bad input,
pure JSON, nothing written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import in_process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_run: Callable[..., Any]) -> Path:
    """Two runs, and a sweep in which workers 1, 2, 4, 8 prepare 500 samples/s each, and storage
    gives 1,800.
    """
    tmp_path = tmp_path_factory.mktemp("results")
    slow = make_run(rates={"storage_raw": 650, "fetch": 600}, measured=580, au=0.29)
    save(tmp_path / "one", slow)
    save(tmp_path / "fed", make_run())
    for workers in (1, 2, 4, 8):
        rate = min(1800.0, 500.0 * workers)
        doc = make_run(
            rates={"prep": 500.0 * workers, "fetch": 1800},
            measured=rate,
            au=rate / 2000,
            accelerators=1,
            workload={
                "loader": {"workers": workers, "prefetch_factor": 2},
                "accelerator": {"kind": "emulated", "name": "a", "step_time": 0.05},
            },
        )
        save(tmp_path / "sweep" / f"w{workers}", doc)
    return tmp_path


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def save(directory: Path, doc: Any) -> None:
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(doc.model_dump_json())


def found(*words: str) -> Any:
    code, out, err = in_process(*words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


SIZE = ("size", "demo", "--accelerators", "2")
WHATIF = ("whatif", "one")
ADVISE = ("advise", "sweep")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (SIZE[:2], "--accelerators"),
        (("size", "dem", "--accelerators", "2"), "demo"),
        (("size", "demo", "--accelerators", "0"), "accelerators"),
        (("size", "demo", "--accelerators", "many"), "many"),
        ((*SIZE, "--hosts", "4"), "hosts"),
        ((*SIZE, "--required-au", "90"), "0.9"),
        ((*SIZE, "--latency", "soon"), "'soon'"),
        ((*SIZE, "--latency", "0"), "--latency"),
        ((*SIZE, "--cache", "much"), "'much'"),
        ((*SIZE, "--cache=-5GB"), "-5GB"),
        ((*SIZE, "--dataset-size", "3 B"), "3 bytes"),
        ((*SIZE, "--checkpoint-bytes", "1GB"), "--checkpoint-budget"),
        ((*SIZE, "--parameters", "many"), "'many'"),
        ((*SIZE, "--parameters", "0"), "86.6M"),
        ((*SIZE, "--gradient-precision", "bf16"), "--parameters"),
        ((*SIZE, "--gradient-precision", "int3"), "tf32"),
        ((*SIZE, "--from", "nowhere"), "nowhere"),
        ((*SIZE, "--set", "reader.blocksize=4"), "block_size"),
        (("whatif", "nowhere", "--workers", "2"), "nowhere"),
        (WHATIF, "--storage-bandwidth"),
        ((*WHATIF, "--storage-bandwidth", "fast"), "'fast'"),
        ((*WHATIF, "--storage-bandwidth", "0x"), "--storage-bandwidth"),
        ((*WHATIF, "--storage-bandwidth=-2x"), "-2"),
        ((*WHATIF, "--storage-bandwidth", "0"), "bandwidth"),
        ((*WHATIF, "--storage-bandwidth", "nanx"), "'nan'"),
        ((*WHATIF, "--latency", "5 apples"), "5 apples"),
        ((*WHATIF, "--workers", "2.5"), "2.5"),
        ((*WHATIF, "--accelerators", "0"), "accelerators"),
        ((*WHATIF, "--step-time", "0"), "step time"),
        ((*WHATIF, "--cache", "much"), "'much'"),
        ((*WHATIF, "--cache-kind", "cold", "--workers", "2"), "cold"),
        (("advise", "nowhere"), "nowhere"),
        (("advise", "sweep/w1"), "sweep/w1"),
        ((*ADVISE, "--workload", "other"), "'other'"),
        ((*ADVISE, "--default", "loader.workers"), "KEY=VALUE"),
        ((*ADVISE, "--default", "loader.worker=2"), ": loader.workers"),
        ((*ADVISE, "--dataset-size", "big"), "'big'"),
        ((*ADVISE, "--first-batch", "soon"), "'soon'"),
        ((*ADVISE, "--shuffle-window", "-1"), "'-1'"),
        ((*ADVISE, "--shuffle-window", "0"), "--shuffle-window"),
        ((*ADVISE, "--first-batch", "0s"), "--first-batch"),
        ((*ADVISE, "--dataset-size", "0"), "--dataset-size"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words: tuple[str, ...], says: str) -> None:
    code, out, err = in_process(*words)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("iobench: ")
    assert says in err


def test_size_from_a_run() -> None:
    size = found("size", "resnet50-h100", "--accelerators", "16", "--hosts", "2", "--from", "fed")
    assert size["measured"]["accelerators_fed_local"] == 4
    assert size["write_bytes_per_s"] is None
    assert size["not_measured"]["write_bytes_per_s"]


def test_whatif_computes_and_writes_nothing(folder: Path) -> None:
    before = (folder / "one" / "run.json").read_bytes()
    changed = found("whatif", "one", "--storage-bandwidth", "130MB/s")
    verdict = changed["what_if"]["job"]["verdict"]
    assert verdict["predicted_samples_per_s"] == pytest.approx(1200)
    assert verdict["binds"] == "storage"
    assert changed["model_error"] == pytest.approx(600 / 580 - 1)
    assert [path.name for path in (folder / "one").iterdir()] == ["run.json"]
    assert (folder / "one" / "run.json").read_bytes() == before


def test_advise_finds_the_knee(folder: Path) -> None:
    """4 workers are enough: today's 8 gain nothing, and today's 1 wait."""
    (folder / "sweep" / "half").mkdir()
    (folder / "sweep" / "half" / "run.json").write_text("{")
    advice = found(*ADVISE)
    assert (advice["settings"], advice["gain"]) == ({"loader.workers": "4"}, None)
    others = {each["settings"]["loader.workers"] for each in advice["alternatives"]}
    assert others <= {"4", "8"}
    assert [line for line in advice["left_out"] if "half" in line]
    one = found(*ADVISE, "--default", "loader.workers=1")
    assert one["gain"] == pytest.approx(3.6)
    assert one["confidence"] == "high"
    eight = found(*ADVISE, "--default", "loader.workers=8")
    assert eight["gain"] == pytest.approx(1.0)
