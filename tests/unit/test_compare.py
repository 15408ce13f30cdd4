"""What may be compared with what, what is told of it, and recorded runs that can't be read."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet  # noqa: F401  # here, because nobody may not read it later
import pytest

from iobench import __version__
from iobench.ask.compare.claims import IN_TURNS, UNKNOWN_DRIFT, combined
from iobench.ask.compare.comparison import compare
from iobench.ask.compare.history import histories
from iobench.ask.compare.identity import by_identity, differences, identity, place, role_of
from iobench.ask.compare.runs import Group, collect, values_of
from iobench.ask.tuning.sweepfolder import read_sweep
from iobench.base.errors import IobenchError, UsageError
from iobench.cli.main import main
from iobench.host.tables import read_table
from iobench.judge.judged import judge
from iobench.judge.rebuild import conclude
from iobench.record.ab import Drift
from iobench.record.run import ServingRecord, TrainingRecord
from iobench.record.serving import FoundRate
from iobench.record.training import Ceiling, TrainingRun
from tests.processes import in_process
from tests.requests import build_serving


def document(rates: list[float], **changes: Any) -> dict[str, Any]:
    """A recorded run of these samples/s; ``changes`` by dotted path, written with two
    underscores.
    """
    doc: dict[str, Any] = {
        "schema_version": "2.0",
        "iobench_version": "0",
        "run_id": "r",
        "created": "2026-01-01T00:00:00+00:00",
        "command": [],
        "status": "ok",
        "validity": "valid",
        "hosts": [{"cores": 2, "kernel": "6.1"}],
        "storage": {"url": "/data"},
        "job": {
            "kind": "training",
            "workload": {
                "name": "w",
                "dataset": "d",
                "accelerator": {"step_time": 0.1},
                "batch_size": 8,
                "loader": {"workers": 2},
                "reader": {"concurrency": 4, "crop": None},
            },
            "dataset": {
                "id": "x",
                "spec": {
                    "name": "d",
                    "samples": 64,
                    "sample_size": {"mean": 1000},
                    "format": "tar",
                    "shard_size": 1 << 26,
                },
            },
            "repetitions": [
                {"seed": i, "accelerators": 1, "samples_per_s": rate, "wall_s": 1.0}
                for i, rate in enumerate(rates)
            ],
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        top = (*parents, last)[0]
        node = doc["job"] if top in TrainingRun.model_fields and top not in doc else doc
        for key in parents:
            node = node["hosts"][0] if key == "host" else node[key]
        node[last] = value
    return doc


BASE = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2]
FAST = [120.0, 121.0, 119.0, 120.5, 119.5, 120.2]


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def cut_run(rate: float, steps: int, fill_s: float = 2.0) -> TrainingRecord:
    """A run that a budget ended after some steps of 8 samples, which came at ``rate`` after the
    first batch: until then it took ``fill_s``.
    """
    wall_s = fill_s + 8 * steps / rate
    doc = document([8 * steps / wall_s] * 3, fitted={"asked_max_steps": None})
    rank = {"rank": 0, "wall_s": wall_s, "fill_s": fill_s, "busy_s": wall_s - fill_s}
    for each in doc["job"]["repetitions"]:
        each |= {"steps": steps, "samples": 8 * steps, "wall_s": wall_s, "ranks": [rank]}
        each |= {"cpu_s": 0.01 * steps, "accelerator_utilization_sustained": 1 - fill_s / wall_s}
    doc["job"]["dataset"]["samples"] = 64_000
    return TrainingRecord.model_validate(doc)


def test_runs_that_a_budget_cut_are_compared_without_the_start_of_their_epochs() -> None:
    """With it, the longer run would be faster by a half, though its samples came no faster."""
    short, long = cut_run(100.0, steps=25), cut_run(100.0, steps=250)
    found = compare(Group("short", [short]), Group("long", [long]))
    assert found.after_fill
    middles = {row.metric: (row.baseline[0].median, row.candidate[0].median) for row in found.rows}
    assert middles["samples_per_s"] == pytest.approx((100.0, 100.0))
    assert middles["accelerator_utilization_sustained"] == pytest.approx((1.0, 1.0))
    assert "cpu_s" not in middles
    assert any(line.startswith("cpu_s ") for line in found.missing)


def test_batches_that_were_made_during_the_fill_do_not_make_a_cut_run_faster() -> None:
    """Preparation makes 70 samples/s, so that 100 are no rate that lasts. At most 4 of the 23
    batches after the first ones are from the fill.
    """
    prep = {"prep": Ceiling(samples_per_s=70.0, how="")}
    doc = conclude(cut_run(100.0, steps=25).with_job(ceilings=prep))
    verdict = judge(doc).evidence.measured
    assert verdict == pytest.approx(100 * (1 - 4 / 23))
    assert values_of(doc, "samples_per_s", after_fill=True) == pytest.approx([verdict] * 3)


def keep(folder: Path | str, doc: dict[str, Any]) -> None:
    """Write a record into a folder of its own."""
    Path(folder).mkdir(parents=True)
    Path(folder, "run.json").write_text(json.dumps(doc))


def write(name: str, rates: list[float], **changes: Any) -> str:
    keep(name, document(rates, **changes))
    return name


def several(name: str, rates: list[float], **changes: Any) -> str:
    """A folder of runs, one for each rate, which is the median of its three repetitions."""
    for number, rate in enumerate(rates):
        values = [rate * 0.999, rate, rate * 1.001]
        write(f"{name}/{number}", values, run_id=f"{name}-{number}", **changes)
    return name


def compared(*words: str, code: int = 0) -> Any:
    ended, out, err = in_process("compare", *words, "--json")
    assert ended == code, err
    return json.loads(out)


def told(*words: str) -> str:
    code, _, err = in_process("compare", *words)
    assert (code, err.count("\n")) == (2, 1), err
    return err


def test_faster_slower_and_the_same() -> None:
    one, other = several("a", BASE), several("b", FAST)
    (found,) = compared(one, other)["comparisons"]
    assert found["difference"] == "better"
    (row,) = found["rows"]
    claim = row["claim"]
    assert claim["ratio"]["value"] == pytest.approx(1.2, rel=0.01)
    assert claim["p"] == pytest.approx(2 / 924)
    assert (claim["basis"], claim["baseline_runs"], claim["candidate_runs"]) == ("runs", 6, 6)
    assert [run["median"] for run in row["baseline"]] == BASE
    assert row["baseline"][0]["low"] == pytest.approx(99.9)
    assert row["baseline"][0]["repetitions"] == 3
    assert compared(other, one)["comparisons"][0]["difference"] == "worse"
    again = several("c", BASE[::-1])
    assert compared(one, again)["comparisons"][0]["difference"] == "equal"


def test_repetitions_of_one_run_prove_nothing_about_another() -> None:
    """Six repetitions on each side, 20 % apart: it may be the hour."""
    one, other = write("x/a", BASE), write("y/b", FAST)
    (found,) = compared(one, other)["comparisons"]
    claim = found["rows"][0]["claim"]
    assert (found["difference"], claim["basis"], claim["p"]) == ("inconclusive", None, None)
    assert (claim["baseline_runs"], claim["candidate_runs"]) == (1, 1)
    assert "iobench ab" in claim["why"]
    assert main(["compare", one, other, "--fail-on", "5%"]) == 4
    assert main(["compare", one, other, "--fail-on", "5%", "--if-inconclusive", "warn"]) == 0


def test_the_two_runs_of_one_ab_have_no_drift_between_them() -> None:
    begun = {"command": ["iobench", "ab", "data", "other"], "created": "2026-02-01T00:00:00+00:00"}
    one = write("x/a", BASE, **begun)
    other = write("x/b", FAST, workload__loader__workers=1, **begun)
    (found,) = compared(one, other)["comparisons"]
    assert found["rows"][0]["claim"]["why"] == IN_TURNS
    price = ("--host-price-per-hour", "1")
    assert IN_TURNS in " ".join(in_process("cost", one, other, *price)[1].split())
    begun["created"] = "2026-02-02T00:00:00+00:00"
    (found,) = compared(one, write("y/b", FAST, **begun))["comparisons"]
    assert found["rows"][0]["claim"]["why"] == UNKNOWN_DRIFT


def test_one_run_a_side_is_told_by_the_drift_of_earlier_runs() -> None:
    drifting = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2]
    for number, rate in enumerate(drifting):
        write(f"results/{number}", [rate], run_id=f"r{number}", storage__url="/here")
    slow = write("results/slow", [80.0], run_id="slow", storage__url="/here")
    (found,) = compared("results/0", slow)["comparisons"]
    claim = found["rows"][0]["claim"]
    assert (found["difference"], claim["basis"]) == ("worse", "drift")
    assert 0.003 < found["rows"][0]["drift"]["sd"] < 0.02
    # earlier runs elsewhere, and runs of another storage, tell nothing
    shutil.rmtree(slow)
    other = write("results/other", [80.0], run_id="other", storage__url="/there")
    (found,) = compared("results/0", other)["comparisons"]
    assert found["difference"] == "inconclusive"
    for number, rate in enumerate(drifting):
        write(f"there/{number}", [rate], run_id=f"t{number}", storage__url="/there")
    known = ("--history", "results", "--history", "there")
    (found,) = compared("results/0", other, *known)["comparisons"]
    assert found["difference"] == "worse"
    assert "nowhere" in told("results/0", other, "--history", "nowhere")


def test_a_restless_storage_is_not_judged_by_a_calm_one() -> None:
    """The drift of both places counts alike, however many runs are known of each."""
    calm = Drift(metric="m", sd=0.01, degrees=29, runs=30, first="2026-01-02", last="2026-03-01")
    restless = Drift(metric="m", sd=0.08, degrees=4, runs=5, first="2026-01-01", last="2026-02-01")
    both = combined([calm, restless])
    assert both.sd == pytest.approx(((0.01**2 + 0.08**2) / 2) ** 0.5)
    assert (both.degrees, both.runs) == (4, 35)
    assert (both.first, both.last) == ("2026-01-01", "2026-03-01")
    assert combined([calm]) == calm
    still = calm.model_copy(update={"sd": 0.0})
    assert combined([still, still]).degrees == 58


def test_runs_that_differ_are_not_pooled() -> None:
    """Each kind of the candidate's runs is compared with the baseline's most similar one."""
    for folder, cores in (("a", (1, 2)), ("b", (1, 2, 4))):
        for number in cores:
            several(f"{folder}/{number}", BASE, host__effective_cores=number)
    found = compared("a", "b")["comparisons"]
    assert [(len(each["baseline_runs"]), len(each["candidate_runs"])) for each in found] == [
        (6, 6)
    ] * 3
    differ = [any("effective_cores" in line for line in each["changes"]) for each in found]
    assert sorted(differ) == [False, False, True]
    (found,) = compared("a", "b", "--across", "host.effective_cores")["comparisons"]
    assert (len(found["baseline_runs"]), len(found["candidate_runs"])) == (12, 18)


def test_a_study_is_one_run() -> None:
    """Two saves of each study are no two runs."""
    runs = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"
    studies = [str(runs / name) for name in ("checkpoint-stream", "checkpoint-dcp-async")]
    (found,) = compared(*studies)["comparisons"]
    rows = {row["metric"]: row for row in found["rows"]}
    assert [run["repetitions"] for run in rows["blocked_s"]["baseline"]] == [2]
    assert {row["claim"]["answer"] for row in rows.values()} == {"inconclusive"}


def test_a_gate_takes_its_own_threshold() -> None:
    """1,000 against 960, told without doubt: a loss of 4 % is beyond 2 % and within 5 %."""
    base = several("a", [1000.0, 1001.0, 1002.0, 999.0, 998.0, 1000.5])
    lost = several("b", [960.0, 961.0, 962.0, 959.0, 958.0, 960.5])
    for change, code in (("2%", 4), ("0.02", 4), ("5%", 0)):
        assert main(["compare", base, lost, "--fail-on", change]) == code
    assert main(["compare", lost, base, "--fail-on", "2%"]) == 0


def test_a_gate_never_passes_what_is_not_told() -> None:
    """Noise of 10 %: the interval holds a loss of 5 % as well as no loss."""
    base = several("a", [90.0, 95.0, 100.0, 105.0, 110.0])
    new = several("b", [88.0, 93.0, 98.0, 103.0, 108.0])
    gate = ("compare", base, new, "--fail-on", "5%")
    for inconclusive, code, warned in (("fail", 4, 1), ("warn", 0, 1), ("pass", 0, 0)):
        ended, _, err = in_process(*gate, "--if-inconclusive", inconclusive)
        assert (ended, err.count("inconclusive")) == (code, warned), inconclusive
    assert main([*gate]) == 4
    # what is told worse fails, whatever is done about the rest, and so does a run that failed
    over = several("d", [90.0, 95.0, 100.0, 105.0, 110.0])
    assert main(["compare", base, over, "--fail-on", "50%"]) == 0
    write("d/over", [100.0, 101.0, 99.0], status="failed", run_id="over")
    ended, _, err = in_process("compare", base, over, "--fail-on", "50%")
    assert (ended, "d/over failed" in err) == (4, True)
    slow = several("c", [50.0, 51.0, 52.0, 53.0, 54.0])
    assert main(["compare", base, slow, "--fail-on", "5%", "--if-inconclusive", "pass"]) == 4


def with_waits(name: str, waits: list[float], *, steps: int = 10, **figures: float) -> str:
    """Six runs of equal rates, whose steps take 0.1 s, with these waits."""
    for number, wait in enumerate(waits):
        doc = document([BASE[number]], run_id=f"{name}-{number}")
        doc["job"]["repetitions"][0] |= {"wait_p99_s": wait, "steps": steps, **figures}
        keep(f"{name}/{number}", doc)
    return name


def test_a_gate_looks_at_the_primary_metric_or_at_those_named() -> None:
    few, many = (
        with_waits(name, [wait + number / 1e5 for number in range(6)])
        for name, wait in (("a", 0.02), ("b", 0.03))
    )
    assert main(["compare", few, many, "--fail-on", "5%"]) == 0
    both = ("--metric", "samples_per_s", "--metric", "wait_p99_s")
    found = compared(few, many, "--fail-on", "5%", *both, code=4)
    assert [(each["metric"], each["outcome"]) for each in found["gate"]] == [
        ("samples_per_s", "passed"),
        ("wait_p99_s", "failed"),
    ]
    levels = [row["claim"]["confidence"] for row in found["comparisons"][0]["rows"]]
    assert sorted(levels) == [0.95, 0.975]


def test_waits_below_one_percent_of_a_step_do_not_count() -> None:
    """84 and 119 microseconds at a step of 100 ms are 1.4 times, and nothing."""
    few, many = (
        with_waits(name, [wait + number / 1e8 for number in range(6)])
        for name, wait in (("a", 84e-6), ("b", 119e-6))
    )
    gate = ("--fail-on", "5%", "--metric", "wait_p99_s")
    found = compared(few, many, *gate)
    assert [each["outcome"] for each in found["gate"]] == ["passed"]
    (row,) = found["comparisons"][0]["rows"]
    assert row["claim"]["answer"] == "different"
    assert row["negligible"]
    # without steps, they are compared with the wall time of 1 s
    few, many = (
        with_waits(name, [wait + number / 1e8 for number in range(6)], steps=0)
        for name, wait in (("c", 0.011), ("d", 0.02))
    )
    compared(few, many, *gate, code=4)


def test_a_metric_that_one_side_lacks_is_no_pass() -> None:
    base = with_waits("a", [0.02] * 6)
    new = several("b", BASE)
    found = compared(base, new, "--fail-on", "5%", "--metric", "wait_p99_s", code=2)
    assert found["comparisons"][0]["missing"]
    both = ("--metric", "samples_per_s", "--metric", "wait_p99_s", "--fail-on", "5%")
    found = compared(base, new, *both, code=4)
    assert [each["outcome"] for each in found["gate"]] == ["passed", "inconclusive"]
    # a rate that is null on one side: the primary metric is missing, whatever else was measured
    for number in range(6):
        write(f"n/{number}", [None], run_id=f"n{number}")  # type: ignore[list-item]
    assert main(["compare", base, "n", "--fail-on", "5%"]) == 2


def test_invalid_runs_and_missing_workloads_are_no_pass() -> None:
    base, new = several("a", BASE), several("b", BASE)
    gate = ("compare", base, new, "--fail-on", "5%")
    assert main([*gate]) == 0
    write("b/invalid", BASE, run_id="i", validity="invalid")
    assert main([*gate]) == 4
    assert main([*gate, "--include-invalid"]) == 4
    assert main([*gate, "--if-inconclusive", "warn"]) == 0
    shutil.rmtree("b/invalid")
    several("a/more", BASE, workload__name="more")
    assert main([*gate]) == 4


@pytest.mark.parametrize(
    ("change", "value", "key"),
    [
        ("workload__batch_size", 16, "batch_size"),
        ("workload__name", "other", "workload"),
        ("dataset__spec__seed", 2, "dataset.seed"),
    ],
)
def test_what_asks_something_else_is_not_comparable(change: str, value: Any, key: str) -> None:
    one, other = several("a", BASE), several("b", FAST, **{change: value})
    assert f"not comparable: {key}" in told(one, other)
    if key != "workload":
        (found,) = compared(one, other, "--across", key)["comparisons"]
        assert found["difference"] == "better"


def searched(rate: float, read_s: float = 0.002) -> ServingRecord:
    """A run that found this rate, and repeated it by reads of so long."""
    return build_serving(rate=rate, found=FoundRate(low=rate), read_s=read_s)


def test_searches_for_the_largest_rate_are_compared_by_that_rate() -> None:
    sides = [Group(f"{rate}", [searched(rate)] * 4) for rate in (300.0, 600.0)]
    found = compare(*sides)
    assert (found.comparable, found.difference) == (True, "better")
    assert [row.metric for row in found.rows] == ["requests_per_s"]
    fixed = [Group(f"{rate}", [build_serving(rate=rate)] * 4) for rate in (300.0, 600.0)]
    assert not compare(*fixed).comparable


def test_a_rate_that_broke_its_limit_when_it_was_repeated_is_no_value() -> None:
    found = compare(Group("held", [searched(300.0)]), Group("broken", [searched(400.0, 0.022)]))
    assert (found.rows, found.missing) == (
        (),
        ("requests_per_s was not measured by the candidate",),
    )


def test_runs_of_requests_have_a_usual_metric_over_time() -> None:
    folder = Path("served")
    for name, doc in (("fixed", build_serving()), ("searched", searched(300.0))):
        (folder / name).mkdir(parents=True)
        (folder / name / "run.json").write_text(doc.model_dump_json())
    shown, _ = histories(folder, "images", None)
    assert {each.metric for each in shown} == {"latency_p99_s", "requests_per_s"}


def test_folders_are_taken_apart_by_what_they_ask() -> None:
    """Runs that ask the same are one group; two results folders copied together are one."""
    for machine, rates in (("one", BASE), ("two", FAST)):
        several(f"{machine}/r1", rates[:3])
        several(f"{machine}/deeper/r2", rates[3:])
        write(f"{machine}/r3", rates, workload__batch_size=32)
        write(f"{machine}/r4", rates, workload__name=f"only-{machine}")
    found = compared("one", "two")
    assert [(len(each["baseline_runs"]), each["difference"]) for each in found["comparisons"]] == [
        (6, "better"),
        (1, "inconclusive"),
    ]
    assert any("only-one" in line for line in found["left_out"])


def test_runs_by_a_key() -> None:
    for workers, factor in ((1, 1.0), (2, 1.2), (16, 1.21)):
        rates = [rate * factor for rate in BASE]
        several(f"r/w{workers}", rates, workload__loader__workers=workers)
        several(f"r/i{workers}", rates, host__instance_type=f"m{workers}", workload__batch_size=4)
    by = compared("r", "--by", "loader.workers")["comparisons"]
    assert [(each["baseline"], each["candidate"], each["difference"]) for each in by][:2] == [
        ("loader.workers=1", "loader.workers=16", "better"),
        ("loader.workers=1", "loader.workers=2", "better"),
    ]
    assert "host.cores=2" in told("r", "--by", "host.cores")  # all runs have the same
    by = compared("r", "--by", "host.instance_type")["comparisons"]
    assert {(each["baseline"], each["candidate"]) for each in by} == {
        ("host.instance_type=m1", "host.instance_type=m16"),
        ("host.instance_type=m1", "host.instance_type=m2"),
    }


def test_what_does_not_count_is_named() -> None:
    good, other = write("r/good", BASE), write("s/good", FAST)
    broken = [{"rule": "cache.cold-residency", "level": "invalid", "evidence": "warm"}]
    write("r/invalid", FAST, validity="invalid", findings=broken)
    write("r/empty", [])
    write("r/newer", FAST, schema_version="3.0")
    write("r/nan", [*FAST[:5], float("nan")])
    Path("r/half").mkdir()
    Path("r/half/run.json").write_text('{"schema_version": "1.0", "run')
    keep("r/foreign", ["not ours"])  # type: ignore[arg-type]
    Path("r/notes.txt").write_text("mine")
    found = compared("r", "s")
    (each,) = found["comparisons"]
    assert (len(each["baseline_runs"]), each["difference"]) == (1, "inconclusive")
    for words in ("cache.cold-residency", "empty", "'3.0'", "half", "NaN", "foreign"):
        assert any(words in line for line in found["left_out"]), words
    (each,) = compared("r", "s", "--include-invalid")["comparisons"]
    assert len(each["baseline_runs"]) == 2
    assert "INVALID" in told("r/invalid", other)
    assert "r/empty" in told(good, "r/empty")
    assert "r/newer" in told("r/newer", other)


def test_a_copied_run_counts_once() -> None:
    """Results folders are merged by copying; a run a side, copied, is still too few."""
    for side, rates in (("one", BASE[:3]), ("two", FAST[:3])):
        write(f"{side}/r", rates), write(f"{side}/copied/r", rates)
    found = compared("one", "two")
    assert found["comparisons"][0]["difference"] == "inconclusive"
    assert any("one/r is a copy of one/copied/r" in line for line in found["left_out"])
    write("by/w1", BASE[:3]), write("by/w2", FAST[:3], workload__loader__workers=4)
    (each,) = compared("by", "by/w1", "by/w2", "--by", "loader.workers")["comparisons"]
    assert (len(each["baseline_runs"]), len(each["candidate_runs"])) == (1, 1)


def test_a_file_of_any_name_is_one_run_without_what_lies_beside_it() -> None:
    for name, rates in (("before", BASE), ("after", FAST)):
        write(name, rates, run_id=name)
        Path(name, "run.json").rename(f"{name}.json")
    write("beside", [1.0, 1.0])
    (each,) = compared("before.json", "after.json")["comparisons"]
    assert each["baseline_runs"] + each["candidate_runs"] == ["before", "after"]
    assert "run.json" in told("run.json", "after.json")  # it is not there, and runs lie beside it
    probe = {"schema_version": "1.0", "iobench_version": __version__, "url": "here"}
    Path("probe.json").write_text(json.dumps(probe))
    assert "another kind" in told("probe.json", "after.json")


@pytest.fixture
def of_nobody() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's; the test reads it as nobody.

    Nothing is refused to root.
    """
    folder = Path(tempfile.mkdtemp(prefix="iobench-test-"))
    folder.chmod(0o755)
    was = os.geteuid()
    try:
        yield folder
    finally:
        os.seteuid(was)
        shutil.rmtree(folder)


def as_nobody() -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)


def test_a_folder_that_may_not_be_opened_is_left_out(of_nobody: Path) -> None:
    for name in ("good", "closed", "unnamed/run"):
        write(str(of_nobody / name), [1.0], run_id=name)
    (of_nobody / "closed").chmod(0)
    (of_nobody / "unnamed").chmod(0o444)  # its names may be listed, and nothing else
    as_nobody()
    found = collect(of_nobody)
    assert list(found.runs) == [of_nobody / "good"]
    assert [line.count("\n") for line in found.left_out] == [0, 0]
    for name, line in zip(("closed", "unnamed"), found.left_out, strict=True):
        assert str(of_nobody / name) in line
    for inside in ("closed", "closed/run.json"):
        with pytest.raises(UsageError, match=f"{of_nobody}/closed"):
            collect(of_nobody / inside)


def _read_events(folder: Path) -> None:
    read_table(folder / "events.parquet", "step events", row_bytes=1)


@pytest.mark.parametrize(
    ("name", "read"), [("sweep.json", read_sweep), ("events.parquet", _read_events)]
)
def test_a_file_that_may_not_be_read_is_not_said_to_be_damaged(
    of_nobody: Path, name: str, read: Callable[[Path], object]
) -> None:
    (of_nobody / name).touch(0o000)
    as_nobody()
    with pytest.raises(IobenchError, match=r"Permission denied\. Check the permissions$"):
        read(of_nobody)


# What sets two runs apart


THROTTLED = {
    "scheme": "throttled",
    "url": "throttled+/data",
    "bandwidth_bytes_per_s": 100_000_000,
    "latency_s": 0.0,
    "iops": None,
    "free_bytes": 7,
}


def run_with(**changes: Any) -> TrainingRecord:
    return TrainingRecord.model_validate(document([1.0, 1.1], **changes))


@pytest.mark.parametrize(
    ("change", "key", "role"),
    [
        ({"iobench_version": "9"}, "iobench_version", "version"),
        ({"host__node": "b"}, "host.node", "place"),
        ({"host__packages": {"torch": "9"}}, "host.packages.torch", "version"),
        ({"host__gpus": [{"name": "x"}]}, "host.gpus.name", "other"),
        ({"storage__endpoint": "http://b"}, "storage.endpoint", "place"),
        ({"storage": {**THROTTLED}}, "storage.bandwidth_bytes_per_s", "place"),
        ({"storage__faults": {"stall_every": 3}}, "storage.faults.stall_every", "place"),
        ({"loader": {"direct": True}}, "loader.direct", "other"),
        ({"accelerators": 2}, "accelerators", "asked"),
        ({"workload__reader": {"crop": 8}}, "reader.crop", "asked"),
    ],
)
def test_a_fact_is_in_the_identity_with_its_role(
    change: dict[str, Any], key: str, role: str
) -> None:
    one, other = run_with(), run_with(**change)
    told = {line.partition(":")[0] for line in differences(identity(one), identity(other))}
    assert key in told
    assert role_of(key) == role
    assert (place(one) == place(other)) == (role != "place")
    assert len(by_identity([one, other])) == 2
    assert [len(group) for group in by_identity([one, other, one])] == [2, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"storage": {**THROTTLED, "free_bytes": 8}},
        {"storage": {**THROTTLED, "latency_p99_s": None}},
        {"host__hugetlb": {"free": 3}},
        {"created": "2026-02-01T00:00:00+00:00", "run_id": "r2"},
    ],
)
def test_what_changes_by_itself_is_no_part_of_the_identity(change: dict[str, Any]) -> None:
    one, other = run_with(storage=THROTTLED), run_with(**{"storage": THROTTLED, **change})
    assert len(by_identity([one, other])) == 1


def test_the_steps_that_fitted_into_a_budget_are_no_setting() -> None:
    """They are the size of a sample, also beside a run that made all steps."""
    asked = {"asked_max_steps": 178}
    two = run_with(workload__max_steps=2, fitted=asked)
    five = run_with(workload__max_steps=5, fitted=asked)
    whole = run_with(workload__max_steps=178)
    assert len(by_identity([two, five, whole])) == 1
    set_by_hand = run_with(workload__max_steps=5)
    (told,) = differences(identity(whole), identity(set_by_hand))
    assert told.startswith("max_steps: ")
    assert role_of("max_steps") == "asked"
    unlimited = run_with(workload__max_steps=5, fitted={"asked_max_steps": None})
    assert len(by_identity([unlimited, run_with(workload__max_steps=None)])) == 1
