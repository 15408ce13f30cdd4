"""Results, prices and terms that tell nothing: one line, the exit code, no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import in_process
from tests.unit.test_compare import BASE, FAST, several, write

PRICES = "type,usd_per_hour,spot_usd_per_hour,region,priced,currency\n"


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of several kinds, in the working directory."""
    monkeypatch.chdir(tmp_path)
    several("base", BASE)
    several("fast", FAST)
    several("other-data", FAST, dataset__spec={"name": "e", "format": "tar", "seed": 1})
    several("other-work", FAST, workload__name="v")
    several("broken", FAST, validity="invalid")
    write("once/0", [100.0], run_id="once")
    write("again/0", [120.0], run_id="again")
    write("no-rate/0", BASE, run_id="no-rate")
    node = json.loads(Path("no-rate/0/run.json").read_text())
    for repetition in node["job"]["repetitions"]:
        repetition["samples_per_s"] = None
    Path("no-rate/0/run.json").write_text(json.dumps(node))
    for name, row in {
        "euro": "mine,1.00,,here,2026-11-22,EUR\nyours,1.00,,here,2026-11-22,USD",
        "spot": "mine,1.00,1.50,here,2026-11-22,USD",
        "below-0": "mine,-1,,here,2026-11-22,USD",
    }.items():
        Path(f"{name}.csv").write_text(f"{PRICES}{row}\n")
    return tmp_path


def ended(*words: object) -> tuple[int, str, str]:
    code, out, err = in_process(*words)
    assert "Traceback" not in out + err
    return code, out, err


COST = ("cost", "base", "--host-price-per-hour", "1")

EURO = ("--prices", "euro.csv")

REFUSED: dict[str, tuple[int, tuple[str, ...]]] = {
    "another dataset": (2, ("compare", "base", "other-data")),
    "another workload": (2, ("compare", "base", "other-work")),
    "only INVALID runs": (2, ("compare", "base", "broken")),
    "no metric on one side": (2, ("compare", "base", "no-rate")),
    "one place": (2, ("compare", "base")),
    "no such metric": (2, ("compare", "base", "fast", "--metric", "samples")),
    "no such directory": (2, ("compare", "base", "nowhere")),
    "a change below 0": (2, ("compare", "base", "fast", "--fail-on", "-5%")),
    "prices of two currencies": (
        2,
        ("cost", "base", "fast", *("--instance", "mine", "--instance", "yours"), *EURO),
    ),
    "an instance that nobody knows": (2, ("cost", "base", "--instance", "g5.3xlrage")),
    "a spot price above the other one": (2, (*COST, "--host-spot-price-per-hour", "1.5")),
    "the same in a list": (
        2,
        ("cost", "base", "--instance", "mine", "--prices", "spot.csv"),
    ),
    "a price below 0": (2, ("cost", "base", "--instance", "mine", "--prices", "below-0.csv")),
    "a deadline in the past": (2, (*COST, "--deadline", "2020-01-01T00:00")),
    "a deadline of less than nothing": (2, (*COST, "--deadline", "-1h")),
    "no price": (2, ("cost", "base")),
    "a workload that never ran": (2, ("history", "resnet50", "--results", ".")),
    "a metric that no run has": (
        2,
        ("history", "w", "--results", "base", "--metric", "restore_s"),
    ),
}


@pytest.mark.parametrize(("code", "words"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_in_one_line(code: int, words: tuple[str, ...]) -> None:
    """A comparison that is not possible has a report as well, which says what differs."""
    found, out, err = ended(*words)
    assert found == code, (out, err)
    assert not out or "not comparable" in out, out
    assert err.startswith("iobench: "), err
    assert err.endswith("\n"), err
    assert err.count("\n") == 1, err


def test_one_repetition_of_one_run_tells_nothing() -> None:
    code, out, _ = ended("compare", "once", "again", "--json")
    (found,) = json.loads(out)["comparisons"]
    assert (code, {row["claim"]["answer"] for row in found["rows"]}) == (0, {"not told"})
    assert ended("compare", "once", "again", "--fail-on", "5%")[0] == 4
    assert ended("compare", "once", "again", "--fail-on", "5%", "--if-untold", "warn")[0] == 0


@pytest.mark.parametrize("candidate", ["no-rate", "broken", "other-data", "other-work"])
def test_a_gate_passes_none_of_them(candidate: str) -> None:
    assert ended("compare", "base", candidate, "--fail-on", "5%")[0] in (2, 4)


def story(*rates: float, days: tuple[int, ...]) -> Any:
    for day, rate in zip(days, rates, strict=True):
        created = f"2026-01-{day:02d}T00:00:00+00:00"
        write(f"story/{day}", [rate] * 3, run_id=f"day-{day}", created=created)
    code, out, err = ended("history", "w", "--results", "story", "--json")
    assert code == 0, err
    (found,) = json.loads(out)["histories"]
    return found


def test_a_history_of_one_run_has_no_change() -> None:
    found = story(100.0, days=(1,))
    assert len(found["entries"]) == 1
    assert found["points"] == []


def test_a_history_with_a_gap_goes_on_after_it() -> None:
    found = story(*[100.0, 101.0, 99.0, 100.5, 99.5] * 2, days=(1, 2, 3, 4, 5, 26, 27, 28, 29, 30))
    assert len(found["entries"]) == 10
    assert found["points"] == []
