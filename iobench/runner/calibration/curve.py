"""The storage's curve for the requests that a run's own reader issues, and the ceiling it gives.

``iobench probe`` measures a curve in the same way, without a workload.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from ...base.errors import StorageError, UsageError
from ...base.units import counted, format_bytes
from ...judge.figures.curve import conclude_curve, highest
from ...record.curve import Rate, StorageCurve
from ...record.training import Ceiling
from ...record.verdict import Estimate, RunCurve
from ...storage.scratch import scratch
from ..budget import Budget
from ..curve.curve import (
    MAX_POINT_S,
    MIN_POINT_S,
    CurveMeasurement,
    Limits,
    curve_of,
    requests_opened,
)
from ..curve.places import Places
from ..curve.story import MAX_IN_FLIGHT, best_bytes_per_s, second_requests
from ..curve.target import objects_of, requests
from ..plan import Plan
from .bench import Bench

_POINTS = 10
"""Points of one curve that have the time of a calibration window together, beside their start."""

_START_S = 2.0
"""The starts of the measuring program (``overhead_s``) for the first points of both curves."""

_FIRST_OTHER = 4
"""Reads in flight with which the second curve begins: only its plateau is of interest."""

_OTHER_SHARE, _OPENS_SHARE = 0.25, 0.15
"""Shares of the time that the second curve has, and the one of opens alone, if there is one."""


def budget_s(seconds: float) -> float:
    """The most that both curves take, for calibration windows of ``seconds``; 0 without them."""
    return 3 * seconds + _START_S if seconds > 0 else 0.0


def why_no_curve(plan: Plan) -> str:
    """Why nothing is measured where the page cache may serve the run's own reads; else empty.

    A curve empties that cache.
    """
    if plan.workload.cache == "cold" or plan.uncached:
        return ""
    return f"with cache={plan.workload.cache} this host's memory may serve the reads"


def storage_curve(bench: Bench) -> Ceiling:
    """Measure the curves into ``bench.curve``; return raw storage's ceiling, which they give."""
    plan = bench.plan
    if why := why_no_curve(plan):
        return Ceiling(not_measured=why)
    try:
        bench.curve = measure(bench)
    except (StorageError, UsageError) as error:
        return Ceiling(not_measured=error.what)
    finally:
        plan.storage.close()  # workers that are forked later inherit no open file
    ceiling = _ceiling(bench.curve.curve)
    rate_samples(ceiling, plan.sample_bytes)
    return ceiling


def measure(bench: Bench) -> RunCurve:
    """The curve of the plan's own requests, and one of requests of another size.

    Over several hosts it is that of all together, each with an equal part of the reads in flight.

    What the second ones are depends on what the first curve shows, see ``second_requests``. Where
    each request opens a file of its own, opening the files alone is measured, too, on one host:
    with as many in flight as the first curve had at its knee, or at its end.

    fio's job files and figures stay in the run's directory, in ``fio``. Raises StorageError, and
    UsageError if there is nothing to read.
    """
    plan, objects = bench.plan, objects_of(bench.plan)
    places, note = requests(plan, objects)
    usual = places.median_bytes
    second = second_requests(objects, usual, seed=plan.seed)
    whole = budget_s(bench.seconds)
    hosts = bench.hosts.count
    opened = hosts == 1 and requests_opened(plan.storage, places)
    began = time.monotonic()
    with scratch("curve") as run_dir:

        def limited(first: int, most: int, until_s: float) -> Limits:
            return Limits(
                max_in_flight=most,
                point_s=min(MAX_POINT_S, max(MIN_POINT_S, bench.seconds / _POINTS)),
                budget=Budget(seconds=until_s, began_s=began, end_s=0.0),
                first=first,
                reach=plan.reads_in_flight,
                time_option="--calibration",
            )

        def curve(places: Places, *, first: int, until_s: float) -> StorageCurve:
            limits = limited(-(-first // hosts) * hosts, MAX_IN_FLIGHT * hosts, until_s)
            name = f"{places.order} {first}"
            reader = bench.hosts.reader(plan.storage, places, name=name, run_dir=run_dir)
            return CurveMeasurement(
                plan.storage, places, limits, run_dir=run_dir, reader=reader
            ).run()

        try:
            reads = whole * (1 - _OPENS_SHARE) if opened else whole
            own = curve(places, first=1, until_s=reads - (_OTHER_SHARE * whole if second else 0.0))
            other = opens = None
            best = best_bytes_per_s(own)
            if second is not None and best > 0:
                second = second_requests(objects, usual, bytes_per_s=best, seed=plan.seed)
            if second is not None and own.points:
                other = conclude_curve(curve(second, first=_FIRST_OTHER, until_s=reads))
            if opened and own.points:
                own = conclude_curve(own, other)
                there = own.knee_in_flight or own.points[-1].in_flight
                opens = curve_of(
                    "open",
                    plan.storage,
                    objects,
                    limited(there, there, whole),
                    run_dir=run_dir,
                    seed=plan.seed,
                )
        finally:
            _keep_jobs(run_dir, bench.directory / "fio")
    own = conclude_curve(own, other, opens)
    if note:
        own = own.model_copy(update={"notes": [*own.notes, note]})
    return RunCurve(
        curve=own,
        large=other,
        opens=opens,
        not_measured=""
        if other is not None
        else "requests of another size were not measured, so operations and bytes can't be told "
        "apart",
    )


def rate_samples(raw: Ceiling, read_bytes_per_sample: float) -> None:
    """Set the samples/s of a ceiling that is known in bytes/s, with their interval."""
    if not raw.bytes_per_s or not read_bytes_per_sample > 0:
        return
    rate, before = raw.bytes_per_s / read_bytes_per_sample, raw.windows
    raw.samples_per_s = rate
    raw.details.read_bytes_per_sample = read_bytes_per_sample
    if before is not None and before.value > 0:
        factor = rate / before.value
        raw.windows = before.each(lambda end: end * factor)
        raw.windows.value = rate


def _ceiling(curve: StorageCurve) -> Ceiling:
    """The plateau of a curve, or the highest point that decides, in bytes/s."""
    best = highest(curve.points)
    if best is None or best.reads_per_s.value <= 0:
        return Ceiling(not_measured=curve.not_measured or "no read was completed")
    rate: Rate = curve.plateau_bytes_per_s or best.bytes_per_s
    where = "plateau of the curve"
    if curve.plateau_bytes_per_s is None:
        where = f"the highest point of the curve, with {counted(best.in_flight, 'read')} in flight"
    how = f"{where}, {curve.order} reads of {format_bytes(curve.request_bytes)}, {curve.how}"
    if curve.plateau_bytes_per_s is None:
        how += f"; no plateau: {curve.not_measured}"
    return Ceiling(
        bytes_per_s=rate.value,
        how=how,
        by="fio" if curve.by == "fio" else "reader",
        windows=Estimate(value=rate.value, low=rate.low, high=rate.high, n=rate.windows),
    )


def _keep_jobs(done: Path, kept: Path) -> None:
    """Keep fio's job files and figures, but not the long lists of places that it was given."""
    for path in sorted(done.rglob("*")):
        if path.suffix in (".fio", ".json"):
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, kept / path.name)
