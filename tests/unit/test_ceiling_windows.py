"""Ceilings from several windows: what they say together, and when they are measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from iobench.analyse.verdict.rebuild import rebuild
from iobench.analyse.verdict.windows import pooled
from iobench.runner.agent import HostAgent
from iobench.runner.calibration.bench import Bench
from iobench.runner.calibration.ceilings import ENTRIES
from iobench.runner.calibration.windows import again, measure_again, plan_windows
from iobench.runner.plan import make_plan
from iobench.schema.training import Ceiling, CeilingDetails, CeilingWindow
from iobench.schema.workload import load_workload

Build = Callable[..., Any]


def ceiling_of(*rates: float | None, seconds: float = 1.0) -> Ceiling:
    windows = [
        CeilingWindow(
            seconds=seconds,
            samples_per_s=rate,
            bytes_per_s=None if rate is None else rate * 1e6,
            cpu_s_per_gb=0.5,
        )
        for rate in rates
    ]
    return Ceiling(not_measured="nothing yet", details=CeilingDetails(windows=windows))


def test_windows_together_have_a_rate_and_an_interval() -> None:
    found = pooled(ceiling_of(90.0, 100.0, 110.0, None))
    assert found.samples_per_s == pytest.approx(100.0)
    assert found.bytes_per_s == pytest.approx(1e8)
    assert found.cpu_s_per_gb == pytest.approx(0.5)
    assert found.not_measured == ""
    assert found.windows is not None
    assert found.windows.n == 3
    assert found.windows.low == pytest.approx(100 - 4.303 * 10 / 3**0.5, rel=1e-3)
    assert found.windows.high == pytest.approx(100 + 4.303 * 10 / 3**0.5, rel=1e-3)


def test_a_long_window_counts_more_than_a_short_one() -> None:
    uneven = ceiling_of(100.0, 200.0)
    uneven.details.windows[0].seconds = 3.0
    assert pooled(uneven).samples_per_s == pytest.approx(125.0)


def test_one_window_has_no_interval_and_none_has_no_rate() -> None:
    one = pooled(ceiling_of(90.0))
    assert one.windows is not None
    assert (one.windows.value, one.windows.low, one.windows.high) == (90.0, None, None)
    none = ceiling_of(None)
    assert pooled(none) == none


def test_rebuild_rates_each_window_by_its_own_events(make_run: Build, make_events: Build) -> None:
    rows = [
        {
            "phase": "calibrate.fetch",
            "repetition": window,
            "step": n,
            "start": n * each_s,
            "wait": each_s,
            "samples": 10,
            "sample_bytes": 1000,
        }
        for window, each_s in enumerate((0.1, 0.2))
        for n in range(11)
    ]
    ceiling = ceiling_of(1.0, 2.0).model_copy(update={"by": "reader"})
    for window in ceiling.details.windows:
        window.cpu_s = 0.011
    doc = make_run().with_job(ceilings={"fetch": ceiling})
    fetch = rebuild(doc, make_events(rows)).job.ceilings["fetch"]
    rates = [window.samples_per_s for window in fetch.details.windows]
    assert rates == [pytest.approx(100.0), pytest.approx(50.0)]
    assert fetch.samples_per_s == pytest.approx(75.0)
    assert fetch.cpu_s_per_gb == pytest.approx(1000.0)


@pytest.mark.parametrize(
    ("seconds", "repetitions", "first_s", "after"),
    [
        (3.0, 6, 1.5, (0, 2, 4)),
        (10.0, 6, 5.0, (0, 1, 3, 4)),
        (3.0, 2, 1.5, (0,)),
        (3.0, 1, 3.0, ()),
        (0.5, 6, 0.5, ()),
        (0.0, 6, 0.0, ()),
    ],
)
def test_the_time_of_a_ceiling_is_divided(
    seconds: float, repetitions: int, first_s: float, after: tuple[int, ...]
) -> None:
    windows = plan_windows(seconds, repetitions)
    assert (windows.first_s, windows.after) == (first_s, after)
    if after:
        assert windows.later_s >= 0.5
        assert first_s + len(after) * windows.later_s == pytest.approx(seconds)


def test_each_ceiling_is_measured_again(make_dataset: Any, tmp_path: Path) -> None:
    _, path = make_dataset(format="tar", samples_per_shard=20)
    settings = ["batch_size=8", "reader.direct=false", "loader.workers=1", "reader.crop=null"]
    plan = make_plan(
        load_workload("demo", settings), str(path), accelerators=1, repetitions=3, seed=1
    )
    with ExitStack() as held:
        bench = Bench(
            plan=plan, agent=HostAgent(plan.storage), directory=tmp_path, seconds=0.1, held=held
        )
        for entry in ENTRIES:
            if entry.applies(plan):
                bench.ceilings[entry.name] = entry.measure(bench)
        before = dict(bench.ceilings)
        assert [entry.name for entry in again(bench)] == ["fetch", "prep", "harness", "accelerator"]
        for entry in again(bench):
            measure_again(bench, entry, 0.05)
    for name in ("fetch", "prep", "harness", "accelerator"):
        first, both = before[name].details.windows, bench.ceilings[name].details.windows
        assert [len(first), len(both)] == [1, 2]
        assert both[0] == first[0]
        found = bench.ceilings[name].windows
        assert found is not None
        assert found.n == 2
        assert found.low is not None
        numbers = {part[1] for part in bench.parts if part[0] == f"calibrate.{name}"}
        assert numbers == {0, 1}
    slow = bench.ceilings["fetch"].details.windows[-1]
    slow.seconds = 10.0
    assert "fetch" not in [entry.name for entry in again(bench)]


def test_the_cpu_ceiling_is_the_cores_over_what_a_sample_costs(make_run: Build) -> None:
    """8 cores, and 20 CPU seconds for 120,000 samples in each of five repetitions."""
    cpu = make_run().job.ceilings["cpu"]
    assert cpu.by == "computed"
    assert cpu.samples_per_s == pytest.approx(8 / (20 / 120_000))
    assert cpu.cpu_s_per_gb == pytest.approx(20 / 12)
    assert cpu.windows is not None
    assert cpu.windows.n == 5


@pytest.mark.parametrize(
    "lacking",
    [
        {"repetition": {"cpu_s": None}},
        {"repetition": {"complete": False}},
        {"host": {"cores": None, "affinity_cores": None, "effective_cores": None}},
        {"rates": dict.fromkeys(("storage_raw", "fetch", "prep", "harness", "accelerator"))},
    ],
)
def test_there_is_no_cpu_ceiling_without_its_figures(
    make_run: Build, lacking: dict[str, Any]
) -> None:
    assert "cpu" not in make_run(**lacking).job.ceilings
