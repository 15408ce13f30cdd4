"""Serving runs whose requests are made here, in virtual time: their answer is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from iobench.judge.figures.requests import served, with_served_figures
from iobench.judge.rebuild import conclude
from iobench.record.host import Host, StorageFacts
from iobench.record.job import DatasetFacts
from iobench.record.run import ServingRecord
from iobench.record.serving import FoundRate, ServedTrial, ServingRun, TrialKind
from iobench.serve.arrivals import Arrivals
from iobench.settings.scenario import Scenario

SCENARIO = Scenario(name="images", dataset="demo", limit=0.015, step_time=0.0005)

_made: dict[str, ServedTrial] = {}


def build_trial(kind: TrialKind = "repetition", **given: Any) -> ServedTrial:
    """The same window for the same words: each of its thousands of requests is served once."""
    key = f"{kind} {sorted(given.items())!r}"
    if key not in _made:
        _made[key] = _build_trial(kind, **given)
    return _made[key].model_copy(deep=True)


def _build_trial(
    kind: TrialKind = "repetition",
    *,
    read_s: float = 0.002,
    readers: int = 8,
    rate: float = 400.0,
    seconds: float = 10.0,
    seed: int = 1,
    late_s: float = 0.0,
    failed: int = 0,
    sync_s: float | None = None,
    scenario: Scenario = SCENARIO,
    **changes: Any,
) -> ServedTrial:
    """A window in which each of so many readers takes ``read_s`` for a sample.

    ``late_s``: readers that are free begin so late. ``failed``: reads that fail, evenly spread.
    ``sync_s``: a log commits each record for itself, in this time.
    """
    instants = Arrivals(scenario.arrivals).window(rate, seconds, seed)
    begins, ends = served(
        instants + late_s * 1e9, servers=readers, batch_size=1, batch_delay=0, step=read_s * 1e9
    )
    fails = np.zeros(len(instants), np.uint8)
    if failed:
        fails[:: len(instants) // failed][:failed] = 1
    rows: dict[str, Any] = {
        "intended_ns": instants,
        "taken_ns": np.maximum(instants, begins - late_s * 1e9).astype(np.int64),
        "issued_ns": begins.astype(np.int64),
        "ready_ns": ends.astype(np.int64),
        "failed": fails,
        "logged_ns": np.full(len(instants), -1),
    }
    facts: dict[str, Any] = {
        "bytes": 100_000 * len(instants),
        "cpu_share": 0.1,
        "residency_before": None if kind == "without-storage" else 0.0,
    }
    if sync_s is not None and kind != "without-log":
        _, answers = served(
            ends,
            servers=scenario.accelerators,
            batch_size=scenario.batch_size,
            batch_delay=scenario.batch_delay * 1e9,
            step=scenario.step_time * 1e9,
        )
        _, commits = served(answers, servers=1, batch_size=1, batch_delay=0, step=sync_s * 1e9)
        rows["logged_ns"] = commits.astype(np.int64)
        facts |= {
            "logged": True,
            "log_bytes": scenario.log.record * len(instants),
            "log_commits": len(instants),
            "log_objects": 1,
            "log_at_risk": 0,
            "log_volatile": 0,
        }
    trial = ServedTrial(
        kind=kind, seed=seed, rate=rate, seconds=seconds, requests=len(instants), **facts | changes
    )
    return with_served_figures(trial, rows, scenario)


def build_serving(
    trials: Sequence[ServedTrial] | None = None,
    *,
    repetitions: int = 3,
    scenario: Scenario = SCENARIO,
    rate: float = 400.0,
    found: FoundRate | None = None,
    job: dict[str, Any] | None = None,
    head: dict[str, Any] | None = None,
    **window: Any,
) -> ServingRecord:
    """A concluded run; ``window``: how its windows with storage differ from ``build_trial``'s."""
    if trials is None:
        trials = [
            each
            for seed in range(repetitions)
            for each in (
                build_trial(seed=seed, rate=rate, scenario=scenario, **window),
                build_trial(
                    "without-storage",
                    seed=seed,
                    rate=rate,
                    read_s=5e-5,
                    sync_s=window.get("sync_s"),
                    scenario=scenario,
                ),
                *(
                    [build_trial("without-log", seed=seed, rate=rate, scenario=scenario, **window)]
                    if "sync_s" in window
                    else []
                ),
            )
        ]
    facts: dict[str, Any] = {
        "iobench_version": "0.1.0",
        "run_id": "images-20260401-120000-abcd",
        "created": "2026-04-01T12:00:00+00:00",
        "command": ["iobench", "serve", "images", "--data", "data", "--rate", f"{rate:g}"],
        "status": "ok",
        "validity": "unknown",
    }
    dataset = DatasetFacts(samples=1000, sample_bytes_mean=100_000.0, changed=[])
    return conclude(
        ServingRecord(
            **facts | (head or {}),
            hosts=[Host(node="box", cores=8)],
            storage=StorageFacts(url="/mnt/data", scheme="file", page_cache=True),
            job=ServingRun(
                scenario=scenario,
                rate=rate,
                trials=list(trials),
                found=found,
                **{"dataset": dataset} | (job or {}),
            ),
        )
    )
