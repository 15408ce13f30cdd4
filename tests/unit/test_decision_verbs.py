"""``iobench size``, ``whatif`` and ``advise`` as a user calls them: one clear line for bad input,
pure JSON, nothing written.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.cli.main import main

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Call:
    """(exit code, stdout, stderr) of a command in this process, with ``tmp_path`` for its working
    directory.
    """

    def go(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["iobench", *map(str, arguments)])
        try:
            code: Any = main()
        except SystemExit as left:
            code = left.code
        out, err = capfd.readouterr()
        return int(code), out, err

    return go


@pytest.fixture
def refused(call: Call) -> Callable[..., None]:
    def go(*arguments: str | Path, says: str) -> None:
        code, out, err = call(*arguments)
        assert (code, out) == (2, ""), (arguments, code, out, err)
        assert err.startswith("iobench: "), err
        assert err.count("\n") == 1, err
        assert says in err, err

    return go


def save(directory: Path, doc: Any) -> Path:
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(doc.model_dump_json())
    return directory


# size


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("demo",), "--accelerators"),
        (("dem", "--accelerators", "2"), "demo"),
        (("demo", "--accelerators", "0"), "accelerators"),
        (("demo", "--accelerators", "many"), "many"),
        (("demo", "--accelerators", "2", "--hosts", "4"), "hosts"),
        (("demo", "--accelerators", "2", "--required-au", "90"), "0.9"),
        (("demo", "--accelerators", "2", "--latency", "soon"), "'soon'"),
        (("demo", "--accelerators", "2", "--latency", "0"), "--latency"),
        (("demo", "--accelerators", "2", "--cache", "much"), "'much'"),
        (("demo", "--accelerators", "2", "--cache=-5GB"), "-5GB"),
        (("demo", "--accelerators", "2", "--dataset-size", "3 B"), "3 bytes"),
        (("demo", "--accelerators", "2", "--checkpoint-bytes", "1GB"), "--checkpoint-budget"),
        (("demo", "--accelerators", "2", "--parameters", "many"), "'many'"),
        (("demo", "--accelerators", "2", "--parameters", "0"), "86.6M"),
        (("demo", "--accelerators", "2", "--gradient-precision", "bf16"), "--parameters"),
        (("demo", "--accelerators", "2", "--gradient-precision", "int3"), "tf32"),
        (("demo", "--accelerators", "2", "--from", "results/nowhere"), "results/nowhere"),
        (("demo", "--accelerators", "2", "--set", "reader.blocksize=4"), "block_size"),
    ],
)
def test_size_refuses(refused: Callable[..., None], arguments: tuple[str, ...], says: str) -> None:
    refused("size", *arguments, says=says)


def test_size_from_a_run(call: Call, tmp_path: Path, make_run: Callable[..., Any]) -> None:
    run = save(tmp_path / "results" / "one", make_run())
    code, out, err = call(
        "size", "resnet50-h100", "--accelerators", "16", "--hosts", "2", "--from", run
    )
    assert (code, err) == (0, "")
    assert out.startswith("buy  ")
    assert re.search(r"would feed +2 of 16 accelerators", out)
    assert max(map(len, out.splitlines())) <= 100
    code, out, err = call(
        "size", "resnet50-h100", "--accelerators", "16", "--hosts", "2", "--from", run, "--json"
    )
    found = json.loads(out)
    assert found["measured"]["accelerators_fed_local"] == 4
    assert found["write_bytes_per_s"] is None
    assert found["not_measured"]["write_bytes_per_s"]


# whatif


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--storage-bandwidth"),
        (("--storage-bandwidth", "fast"), "'fast'"),
        (("--storage-bandwidth", "0x"), "--storage-bandwidth"),
        (("--storage-bandwidth=-2x",), "-2"),
        (("--storage-bandwidth", "0"), "bandwidth"),
        (("--storage-bandwidth", "nanx"), "'nan'"),
        (("--latency", "5 apples"), "5 apples"),
        (("--workers", "2.5"), "2.5"),
        (("--workers", "many"), "'many'"),
        (("--accelerators", "0"), "accelerators"),
        (("--step-time", "0"), "step time"),
        (("--cache", "much"), "'much'"),
        (("--cache-kind", "cold", "--workers", "2"), "cold"),
    ],
)
def test_whatif_refuses(
    refused: Callable[..., None],
    tmp_path: Path,
    make_run: Callable[..., Any],
    arguments: tuple[str, ...],
    says: str,
) -> None:
    refused("whatif", save(tmp_path / "results" / "one", make_run()), *arguments, says=says)


def test_whatif_of_nothing(refused: Callable[..., None]) -> None:
    refused("whatif", "results/nowhere", "--workers", "2", says="results/nowhere")


def test_whatif_prints_and_writes_nothing(
    call: Call, tmp_path: Path, make_run: Callable[..., Any]
) -> None:
    run = save(
        tmp_path / "results" / "one",
        make_run(rates={"storage_raw": 650, "fetch": 600}, measured=580, au=0.29),
    )
    before = (run / "run.json").read_bytes()
    code, out, err = call("whatif", run / "run.json", "--storage-bandwidth", "2x")
    assert (code, err) == (0, "")
    assert "+3.4 %" in " ".join(out.split())
    code, out, err = call("whatif", run, "--storage-bandwidth", "130MB/s", "--json")
    found = json.loads(out)
    verdict = found["what_if"]["job"]["verdict"]
    assert verdict["predicted_samples_per_s"] == pytest.approx(1200)
    assert verdict["binds"] == "storage"
    assert found["model_error"] == pytest.approx(600 / 580 - 1)
    assert [path.name for path in run.iterdir()] == ["run.json"]
    assert (run / "run.json").read_bytes() == before


# advise


@pytest.fixture
def sweep(tmp_path: Path, make_run: Callable[..., Any]) -> Path:
    """Workers 1, 2, 4, 8 prepare 500 samples/s each, storage gives 1,800."""
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
    return tmp_path / "sweep"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere",), "nowhere"),
        (("sweep/w1",), "sweep/w1"),
        (("sweep", "--workload", "other"), "'other'"),
        (("sweep", "--default", "loader.workers"), "KEY=VALUE"),
        (("sweep", "--default", "loader.worker=2"), ": loader.workers"),
        (("sweep", "--dataset-size", "big"), "'big'"),
        (("sweep", "--first-batch", "soon"), "'soon'"),
        (("sweep", "--shuffle-window", "-1"), "'-1'"),
        (("sweep", "--shuffle-window", "0"), "--shuffle-window"),
        (("sweep", "--first-batch", "0s"), "--first-batch"),
        (("sweep", "--dataset-size", "0"), "--dataset-size"),
    ],
)
def test_advise_refuses(
    refused: Callable[..., None], sweep: Path, arguments: tuple[str, ...], says: str
) -> None:
    refused("advise", *arguments, says=says)
    assert sweep.is_dir()


def test_advise_finds_the_knee(call: Call, sweep: Path) -> None:
    """4 workers are enough: today's 8 gain nothing, and today's 1 wait."""
    code, out, err = call("advise", sweep, "--default", "loader.workers=1")
    assert (code, err) == (0, "")
    assert out.startswith("test: take loader.workers=4\n")
    assert "3.60 x today's samples/s [3.60, 3.60" in out
    assert re.search("confidence +high", out)
    assert max(map(len, out.splitlines())) <= 100
    code, out, _ = call("advise", sweep, "--default", "loader.workers=8")
    assert "no faster, but within 5 % of the best" in out
    code, out, _ = call("advise", "sweep", "--json")
    found = json.loads(out)
    assert found["settings"] == {"loader.workers": "4"}
    assert found["gain"] is None
    assert {alternative["settings"]["loader.workers"] for alternative in found["alternatives"]} <= {
        "4",
        "8",
    }


def test_advise_names_what_it_leaves_out(call: Call, sweep: Path) -> None:
    (sweep / "half").mkdir()
    (sweep / "half" / "run.json").write_text("{")
    code, out, _ = call("advise", sweep)
    assert code == 0
    assert "Left out\n  - " in out
    assert "half" in out
