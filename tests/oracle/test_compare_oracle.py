"""Two equal storages compare as equal, and one that is 10 % slower compares as slower."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.cli.main import main

BANDWIDTH = 20e6


@pytest.fixture
def run(
    tmp_path: Path, make_dataset: Any, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, float], str]:
    """One more run in a results folder, bound by a link of known speed."""
    _, data = make_dataset(samples=400, format="tar", samples_per_shard=25)

    def go(name: str, share: float) -> str:
        words = [
            "run",
            "demo",
            "--data",
            f"throttled+{data}?bandwidth={int(share * BANDWIDTH)}",
            "--repeat",
            "2",
            "--calibration",
            "0",
        ]
        for setting in (
            "batch_size=20",
            "epochs=1",
            "loader.workers=1",
            "accelerator.step_time=1ms",
            "reader.decode=false",
            "reader.crop=null",
        ):
            words += ["--set", setting]
        assert main([*words, "--results", str(tmp_path / name), "--quiet"]) == 0
        capsys.readouterr()
        return str(tmp_path / name)

    return go


def test_equal_is_equal_and_slower_is_slower(
    run: Callable[[str, float], str], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(4):  # in turns, so that the machine's drift hits all alike
        base, again, slower = run("base", 1.0), run("again", 1.0), run("slower", 0.9)

    def difference(one: str, other: str, *words: str, code: int = 0) -> Any:
        assert main(["compare", one, other, "--metric", "samples_per_s", "--json", *words]) == code
        (found,) = json.loads(capsys.readouterr().out)["comparisons"]
        return found

    assert difference(base, again, "--fail-on", "5%")["difference"] == "equal"
    found = difference(base, slower, "--fail-on", "5%", code=4)
    assert found["difference"] == "worse"
    (row,) = found["rows"]
    ratio = row["claim"]["ratio"]
    assert ratio["value"] == pytest.approx(0.9, abs=0.03)
    assert ratio["low"] <= 0.9 + 0.02
    assert ratio["high"] >= 0.9 - 0.02
    assert difference(slower, base)["difference"] == "better"
