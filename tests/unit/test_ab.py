"""The record of two variants in turns: its claims, its report, its gate, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iobench.ask.compare.sequential import claims_of, measured, primary, verdict
from iobench.base.errors import IobenchError, UsageError
from iobench.cli.ab import gated
from iobench.cli.main import main
from iobench.cli.verbs import AbRequest
from iobench.record.ab import AB_FILE, AbRecord, AbRound, AbTrial, AbVariant, Name, load_ab, save_ab
from iobench.record.run import RUN_FILE
from iobench.record.sweep import SWEEP_FILE
from iobench.report.ab import answer, sections
from iobench.report.sections import FirstScreen
from iobench.runner.ab import _Comparison
from iobench.runner.budget import Budget
from iobench.runner.options import AbOptions, Observer
from tests.processes import document, in_process

IDENTITY = {"workload": "demo", "batch_size": "8", "storage.url": "/a"}
Values = Sequence[float | Mapping[str, float]]


def trial(value: float | Mapping[str, float]) -> AbTrial:
    figures = value if isinstance(value, Mapping) else {"samples_per_s": value}
    return AbTrial(seconds=1.0, figures=dict(figures))


def record(a: Values, b: Values, **changes: object) -> AbRecord:
    """A comparison whose rounds have these samples/s, or figures by their names."""
    rounds = [
        AbRound(
            round=number,
            first="A" if number % 2 == 0 else "B",
            began="2026-11-22T10:00:00+00:00",
            seed=42 + number,
            a=trial(one),
            b=trial(other),
        )
        for number, (one, other) in enumerate(zip(a, b, strict=True))
    ]
    base: dict[str, object] = {
        "iobench_version": "1",
        "created": "2026-11-22T10:00:00+00:00",
        "command": ["iobench", "ab", "/a", "/b", "--workload", "demo"],
        "status": "ok",
        "ended": "rounds",
        "metric": "samples_per_s",
        "threshold": 0.05,
        "max_rounds": 20,
        "planned_rounds": 20,
        "a": AbVariant(name="A", run="a", data="/a", workload="demo", identity=IDENTITY),
        "b": AbVariant(
            name="B",
            run="b",
            data="/b",
            workload="demo",
            identity={**IDENTITY, "storage.url": "/b"},
        ),
        "rounds": rounds,
    }
    return AbRecord.model_validate(base | changes)


FASTER = record([100, 101, 99, 100], [134, 133, 135, 134], ended="significant")
SLOWER = record([134, 133, 135, 134], [100, 101, 99, 100], ended="significant")
SAME = record([100, 101, 99, 100], [100.5, 100, 99.5, 100], ended="significant")
INCONCLUSIVE = record([100, 120, 90, 100], [110, 100, 105, 101])


@pytest.mark.parametrize(
    ("found", "told", "codes"),
    [
        (FASTER, "better", (0, 0, 0)),
        (SLOWER, "worse", (4, 4, 4)),
        (SAME, "equal", (0, 0, 0)),
        (INCONCLUSIVE, "inconclusive", (4, 0, 0)),
        (record([100] * 3, [50] * 3), "inconclusive", (4, 0, 0)),
    ],
    ids=["better", "worse", "equal", "inconclusive", "too few"],
)
def test_the_answer_and_the_gate(
    found: AbRecord, told: str, codes: tuple[int, int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verdict(primary(found)) == told
    for if_inconclusive, code in zip(("fail", "warn", "pass"), codes, strict=True):
        args = AbRequest(a="a", fail_on=0.05, if_inconclusive=if_inconclusive)
        assert gated(args, found) == code
        silent = told in ("better", "equal") or (
            told == "inconclusive" and if_inconclusive == "pass"
        )
        assert (capsys.readouterr().err == "") == silent


def test_the_time_for_more_rounds_is_named_where_a_budget_ended_them() -> None:
    """More rounds alone would change nothing, and those that were asked for may be enough."""
    rounds = [100.0, 104, 98, 100], [103.0, 105, 104, 107]
    more = primary(record(*rounds)).more
    needed = f"would tell: --budget {15 * (4 + more)}s"

    def told(**changes: object) -> str:
        shown = sections(record(*rounds, ended="budget", budget_s=60, **changes))
        return " ".join(next(each for each in shown if isinstance(each, FirstScreen)).sentences)

    assert f"{needed}." in told()
    assert f"{needed} --max-rounds {4 + more}." in told(max_rounds=5)


def test_a_metric_that_is_missing_in_a_turn_is_not_told() -> None:
    """The rounds that have it are a selection, however clear they are."""
    full = [{"samples_per_s": 100.0, "cpu_s": 1.0}] * 4
    less = [{"samples_per_s": 100.0, "cpu_s": 2.0 + n / 1e3} for n in range(5)]
    found = record([*full, {"samples_per_s": 100.0}], less)
    claim = next(claim for claim in claims_of(found) if claim.metric == "cpu_s")
    assert claim.answer == "inconclusive"
    assert claim.why
    assert not measured(found, claim)
    zero = record([0.0] * 4, [1.0] * 4)
    assert (primary(zero).answer, primary(zero).ratio) == ("inconclusive", None)
    assert answer(zero)


@pytest.mark.parametrize(
    "found",
    [
        record([], [], status="failed", error="variant B: no", planned_rounds=None),
        record([1.0], [2.0], status="interrupted", ended=""),
        record([1.0] * 2, [2.0] * 2, planned_rounds=2, ended="budget"),
        record([1e-30] * 4, [1e30] * 4),
    ],
)
def test_every_record_has_a_report(found: AbRecord, tmp_path: Path) -> None:
    save_ab(tmp_path, found)
    assert load_ab(tmp_path) == found
    for form in ("text", "json", "markdown", "csv", "html"):
        assert main(["report", str(tmp_path), "--format", form]) == 0


@pytest.mark.parametrize("file", [AB_FILE, SWEEP_FILE])
def test_a_directory_of_several_runs_is_no_run(file: str, tmp_path: Path) -> None:
    (tmp_path / "all" / "first").mkdir(parents=True)
    (tmp_path / "all" / file).write_text("{}")
    (tmp_path / "all" / "first" / RUN_FILE).write_text("{}")
    (tmp_path / "other").mkdir()
    code, out, told = in_process("report", str(tmp_path / "all"), str(tmp_path / "other"))
    assert (code, out, told.count("\n")) == (1, "", 1)
    assert str(tmp_path / "all" / "first") in told
    assert f"report it alone: iobench report {tmp_path / 'all'}" in told


def test_an_invalid_side_is_status_3(tmp_path: Path) -> None:
    found = FASTER.model_copy(deep=True)
    found.b.validity = "invalid"
    save_ab(tmp_path, found)
    assert document("report", tmp_path / "ab.json", code=3)["b"]["validity"] == "invalid"
    for if_inconclusive, code in (("fail", 4), ("warn", 0), ("pass", 0)):
        assert gated(AbRequest(a="a", fail_on=0.05, if_inconclusive=if_inconclusive), found) == code


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("metric", "nonsense"),
        ("threshold", 0),
        ("planned_rounds", 0),
        ("max_rounds", 10**9),
        ("rounds", [{}]),
    ],
)
def test_a_record_of_somebody_else_is_checked(key: str, value: object, tmp_path: Path) -> None:
    changed = {**FASTER.model_dump(mode="json"), key: value}
    (tmp_path / "ab.json").write_text(json.dumps(changed))
    with pytest.raises(IobenchError, match=key):
        load_ab(tmp_path)
    assert main(["report", str(tmp_path)]) == 1


class PlantedSide:
    """A variant whose warm-up takes 10 s and whose repetitions take 20 s, on a planted clock."""

    seed = 42
    run = None  # no training whose steps are fitted
    began = "2026-11-22T10:00:00+00:00"

    def __init__(self, name: Name, now: list[float]) -> None:
        self.name, self._now = name, now
        self.doc = SimpleNamespace(created=f"when {name} began")
        self.record = AbVariant(name=name, run=name.lower(), data="/d", workload="demo")

    def warm_up(self) -> None:
        self._now[0] += 10.0
        self.record.warm_up_s = 10.0

    def measure(self, number: int) -> None:
        self._now[0] += 20.0

    def measured(self, metric: str) -> AbTrial:
        return AbTrial(seconds=20.0, figures={metric: 100.0})

    def finish(self, **_: bool) -> None:
        return


def test_a_budget_without_a_turn_is_refused_with_the_least_that_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("iobench.runner.budget.time", SimpleNamespace(monotonic=lambda: now[0]))
    with pytest.raises(UsageError) as caught:
        _comparison(30.0, now, tmp_path).run()
    assert "at least 42s" in caught.value.remedy  # 20 s are over, a round takes 20 s, and the end


def test_both_runs_have_the_time_of_their_comparison(tmp_path: Path) -> None:
    """By it, and the command, ``compare`` knows that they were measured in turns."""
    found = _comparison(None, [100.0], tmp_path)
    assert {each.doc.created for each in found.variants} == {found.record.created}


def _comparison(seconds: float | None, now: list[float], tmp_path: Path) -> _Comparison:
    variants: Any = (PlantedSide("A", now), PlantedSide("B", now))
    options = AbOptions(results=tmp_path, max_rounds=4, budget=Budget(seconds=seconds))
    return _Comparison(variants, tmp_path, options, Observer())
