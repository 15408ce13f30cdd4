"""Ceilings from several windows: what they say together, and by which events."""

from __future__ import annotations

import pytest

from iobench.judge.figures.windows import pooled
from iobench.judge.rebuild import rebuild
from iobench.record.training import Ceiling, CeilingDetails, CeilingWindow
from tests.unit.conftest import build_events, build_run


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


def test_one_window_has_no_interval_and_none_has_no_rate() -> None:
    one = pooled(ceiling_of(90.0))
    assert (one.windows.value, one.windows.low, one.windows.high) == (90.0, None, None)
    none = ceiling_of(None)
    assert pooled(none) == none


def test_rebuild_rates_each_window_by_its_own_events() -> None:
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
    doc = build_run().with_job(ceilings={"fetch": ceiling})
    fetch = rebuild(doc, build_events(rows)).job.ceilings["fetch"]
    rates = [window.samples_per_s for window in fetch.details.windows]
    assert rates == [pytest.approx(100.0), pytest.approx(50.0)]
    assert fetch.samples_per_s == pytest.approx(75.0)
    assert fetch.cpu_s_per_gb == pytest.approx(1000.0)
