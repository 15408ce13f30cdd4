"""The figures of a serving run, computed again from its requests."""

from __future__ import annotations

from ...record.run import ServingRecord
from ...record.serving import ServedTrial
from .figures import Rows, with_figures


def served_again(doc: ServingRecord, rows: Rows) -> ServingRecord:
    """The record with all figures of its windows computed from ``rows``, its ``events.parquet``.

    Windows whose figures were other ones are told as changed.
    """
    trials, changed = [], list[str]()
    for place, trial in enumerate(doc.job.trials):
        mine = rows["trial"] == place
        again = with_figures(
            trial, {name: each[mine] for name, each in rows.items()}, doc.job.scenario
        )
        if _differs(trial, again):
            changed.append(
                f"the figures of window {place + 1} are not those of its requests in events.parquet"
            )
        trials.append(again)
    return doc.with_job(trials=trials).with_changes(changed)


def _differs(trial: ServedTrial, again: ServedTrial) -> bool:
    kept, found = trial.model_dump(), again.model_dump()
    return any(
        abs(kept[name] - value) > 1e-6 * abs(value)
        if isinstance(value, float) and kept[name] is not None
        else kept[name] != value
        for name, value in found.items()
        if not isinstance(value, dict)
    )
