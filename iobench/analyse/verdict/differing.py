"""Where a record says something else than what follows from its own events and windows.

Whoever changes a figure in ``run.json`` alone, or puts the events of another run beside it, is
found; whoever changes everything that belongs together is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose

from ...schema.record import RUN_FILE, TrainingRecord
from ...units import format_count

ROUNDING = 1e-6
"""Relative difference that rounding may leave between a figure and the same one computed again."""


def differences(doc: TrainingRecord, again: TrainingRecord) -> Iterator[str]:
    """Yield a sentence for each figure of a record that is another one when computed ``again``."""
    for name, figure in doc.metrics.items():
        now = again.metrics.get(name)
        if now is not None and _differ(figure.median, now.median):
            yield _sentence(name, figure.median, now.median)
    for name, ceiling in doc.job.ceilings.items():
        computed = again.job.ceilings.get(name)
        if name == "cpu" or computed is None:
            continue
        told, now_rate = ceiling.samples_per_s, computed.samples_per_s
        if told is not None and now_rate is not None and _differ(told, now_rate):
            yield _sentence(f"ceilings.{name}.samples_per_s", told, now_rate)
    yield from _raw(doc)


def _raw(doc: TrainingRecord) -> Iterator[str]:
    """The ceiling of the raw storage, which is a rate of the recorded curve, in samples."""
    raw, curve = doc.job.ceilings.get("storage_raw"), doc.job.curve
    if raw is None or raw.bytes_per_s is None or curve is None or curve.curve is None:
        return
    rates = [point.bytes_per_s.value for point in curve.curve.points]
    if curve.curve.plateau_bytes_per_s is not None:
        rates.append(curve.curve.plateau_bytes_per_s.value)
    if rates and all(_differ(raw.bytes_per_s, rate) for rate in rates):
        yield _sentence("ceilings.storage_raw.bytes_per_s", raw.bytes_per_s, rates[-1])
    of_sample = raw.details.read_bytes_per_sample
    if raw.samples_per_s is not None and of_sample:
        expected = raw.bytes_per_s / of_sample
        if _differ(raw.samples_per_s, expected):
            yield _sentence("ceilings.storage_raw.samples_per_s", raw.samples_per_s, expected)


def _differ(told: float, found: float) -> bool:
    return not isclose(told, found, rel_tol=ROUNDING, abs_tol=1e-12)


def _sentence(name: str, told: float, found: float) -> str:
    return f"{RUN_FILE} says {name} = {format_count(told)}, but {format_count(found)} follows"
