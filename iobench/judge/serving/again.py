"""The figures of a run of requests, computed again from its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ...record.run import KvCacheRecord, ServingRecord
from ...record.serving import RequestWindow
from ..kv.figures import with_kv_figures
from .figures import Rows, with_figures

W = TypeVar("W", bound=RequestWindow)


def served_again(doc: ServingRecord, rows: Rows) -> ServingRecord:
    """The record with all figures of its windows computed from ``rows``, its ``events.parquet``.

    Windows whose figures were other ones are told as changed.
    """
    spec = doc.job.scenario
    trials, changed = _again(doc.job.trials, rows, lambda trial, of: with_figures(trial, of, spec))
    return doc.with_job(trials=trials).with_changes(changed)


def kv_again(doc: KvCacheRecord, rows: Rows) -> KvCacheRecord:
    """The same for a run of a KV cache."""
    spec = doc.job.scenario
    trials, changed = _again(
        doc.job.trials, rows, lambda trial, of: with_kv_figures(trial, of, spec)
    )
    return doc.with_job(trials=trials).with_changes(changed)


def _again(kept: list[W], rows: Rows, compute: Callable[[W, Rows], W]) -> tuple[list[W], list[str]]:
    trials, changed = list[W](), list[str]()
    for place, trial in enumerate(kept):
        mine = rows["trial"] == place
        again = compute(trial, {name: each[mine] for name, each in rows.items()})
        if _differs(trial, again):
            changed.append(
                f"the figures of window {place + 1} are not those of its requests in events.parquet"
            )
        trials.append(again)
    return trials, changed


def _differs(trial: RequestWindow, again: RequestWindow) -> bool:
    return _unlike(trial.model_dump(), again.model_dump())


def _unlike(kept: Any, found: Any) -> bool:
    if isinstance(found, dict) and isinstance(kept, dict):
        return any(_unlike(kept.get(name), value) for name, value in found.items())
    if isinstance(found, float) and isinstance(kept, float):
        return abs(kept - found) > 1e-6 * abs(found)
    return bool(kept != found)
