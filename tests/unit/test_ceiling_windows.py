"""Ceilings from several windows: what they say together, and when they are measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iobench.analyse.figures.windows import pooled
from iobench.analyse.verdict.rebuild import rebuild
from iobench.schema.training import Ceiling, CeilingDetails, CeilingWindow

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
    assert found.windows.n == 3
    assert found.windows.low == pytest.approx(100 - 4.303 * 10 / 3**0.5, rel=1e-3)
    assert found.windows.high == pytest.approx(100 + 4.303 * 10 / 3**0.5, rel=1e-3)


def test_a_long_window_counts_more_than_a_short_one() -> None:
    uneven = ceiling_of(100.0, 200.0)
    uneven.details.windows[0].seconds = 3.0
    assert pooled(uneven).samples_per_s == pytest.approx(125.0)


def test_one_window_has_no_interval_and_none_has_no_rate() -> None:
    one = pooled(ceiling_of(90.0))
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


def test_the_cpu_ceiling_is_the_cores_over_what_a_sample_costs(make_run: Build) -> None:
    """8 cores, and 20 CPU seconds for 120,000 samples in each of five repetitions."""
    cpu = make_run().job.ceilings["cpu"]
    assert cpu.by == "computed"
    assert cpu.samples_per_s == pytest.approx(8 / (20 / 120_000))
    assert cpu.cpu_s_per_gb == pytest.approx(20 / 12)
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
