"""Builders for recorded results: a run in which all is well (each test breaks one thing), and step
events from plain rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from iobench.judge.figures.metrics import summarise
from iobench.judge.rebuild import conclude
from iobench.record.run import TrainingRecord
from iobench.record.sweep import Sweep
from iobench.record.training import EVENT_COLUMNS, Ceiling, Epoch, Repetition, TrainingRun
from tests.words import long_sentences

SECOND = 1_000_000_000
BY = {
    "storage_raw": "fio",
    "fetch": "reader",
    "prep": "reader",
    "loader": "loader",
    "accelerator": "accelerator",
}
"""What measures each ceiling."""


def build_events(rows: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Rows with times in seconds (``start``, ``wait``, ``copy``, ``busy``, ``late``) or any column
    by its own name, defaults elsewhere.
    """
    defaults: dict[str, Any] = dict.fromkeys(EVENT_COLUMNS, 0) | {
        "phase": "measure",
        "steps": 1,
        "samples": 1,
    }
    columns: dict[str, list[Any]] = {name: [] for name in EVENT_COLUMNS}
    for row in rows:
        full = defaults | {
            (f"{k}_ns" if f"{k}_ns" in EVENT_COLUMNS else k): round(v * SECOND)
            if f"{k}_ns" in EVENT_COLUMNS
            else v
            for k, v in row.items()
        }
        for name in EVENT_COLUMNS:
            columns[name].append(full[name])
    return {
        name: np.array(values, dtype=object if name == "phase" else np.int64)
        for name, values in columns.items()
    }


def build_run(
    *,
    rates: dict[str, float | None] | None = None,
    measured: float | Sequence[float] | None = 1900.0,
    au: float | None = 0.95,
    accelerators: int = 2,
    repetitions: int = 5,
    residency: float | None = 0.0,
    workload: dict[str, Any] | None = None,
    dataset: dict[str, Any] | None = None,
    host: dict[str, Any] | None = None,
    loader: dict[str, Any] | None = None,
    repetition: dict[str, Any] | None = None,
    concluded: bool = True,
    **document: Any,
) -> TrainingRecord:
    """Two accelerators of 1,000 samples/s (batch 100 in 0.1 s), 6 GB of 100 kB samples, a host of 1
    GB and 8 cores; storage: 4,000/s. ``measured``: the rate, or that of each repetition.
    """
    figures = {
        "storage_raw": 5000.0,
        "fetch": 4000.0,
        "prep": 6000.0,
        "loader": 8000.0,
        "accelerator": 1000.0 * accelerators,
    } | (rates or {})
    ceilings = {
        name: Ceiling(
            samples_per_s=rate, bytes_per_s=rate * 1e5, cpu_s_per_gb=0.5, how="test", by=BY[name]
        )
        if rate is not None
        else Ceiling(not_measured=f"{name} left out by the test")
        for name, rate in figures.items()
    }
    one: dict[str, Any] = {
        "accelerators": accelerators,
        "epochs": [
            Epoch(
                epoch=e,
                residency_before=residency,
                residency_how="cachestat",
                bytes_read=6_000_000_000,
                sample_bytes=6_000_000_000,
                bytes_fetched=6_000_000_000,
                fetched_how="counted",
                startup_s=1.0,
            )
            for e in range(2)
        ],
        "cpu_s": 20.0,
        "throttled_s": 0.0,
        "residency_before": residency,
        "samples": 120_000,
        "steps": 600 * accelerators,
        "bytes_read": 12_000_000_000,
        "sample_bytes": 12_000_000_000,
        "retries": 0,
        "throttled": 0,
        "wall_s": 65.0,
        "busy_s": 60.0,
        "wait_s": 5.0,
        "time_to_first_batch_s": 1.5,
        "accelerator_utilization": au,
        "accelerator_utilization_sustained": au,
        "accelerator_utilization_strict": au,
        "samples_per_s": None if isinstance(measured, Sequence) else measured,
        "read_bytes_per_s": measured * 1e5 if isinstance(measured, float | int) else None,
        "wait_p50_s": 0.001,
        "wait_p99_s": 0.02,
        "late_p99_s": 0.0001,
        "late_left_s": 0.0002,
        "rates": {"bin_s": 1.0, "samples_per_s": [1900.0] * 60, "stored_bytes_per_s": [1.9e8] * 60},
    } | (repetition or {})
    done = [Repetition.model_validate({"seed": index + 1} | one) for index in range(repetitions)]
    if isinstance(measured, Sequence):
        for each, rate in zip(done, measured, strict=True):
            each.samples_per_s, each.read_bytes_per_s = rate, rate * 1e5
    if "delivery" in (loader or {}):  # a library's record says more
        library = {"kind": "iobench", "library": "torch 2", "shuffle": {"not_measured": "no proof"}}
        loader = library | (loader or {})
    spec = {"name": "test-data", "samples": 60_000, "sample_size": {"mean": 100_000}}
    job, head = {}, {}
    for key, value in document.items():
        (job if key in TrainingRun.model_fields else head)[key] = value
    doc = TrainingRecord.model_validate(
        {
            "iobench_version": "0",
            "run_id": "run-1",
            "created": "2026-01-01T00:00:00Z",
            "command": ["iobench", "run"],
            "status": "ok",
            "validity": "unknown",
            "hosts": [
                {
                    "cores": 8,
                    "affinity_cores": 8,
                    "cpu_quota_cores": None,
                    "effective_cores": 8.0,
                    "memory_bytes": 1_000_000_000,
                }
                | (host or {})
            ],
            "storage": {"scheme": "file", "url": "/data"},
            "job": {
                "accelerators": accelerators,
                "workload": {
                    "name": "test",
                    "dataset": "test-data",
                    "accelerator": {"kind": "emulated", "name": "h100", "step_time": 0.1},
                    "batch_size": 100,
                    "epochs": 2,
                    "cache": "cold",
                    "required_accelerator_utilization": 0.9,
                    "reader": {"concurrency": 4, "decode": True, "tail": "keep"},
                    "loader": {"workers": 2, "prefetch_factor": 2, "transport": "ring"},
                }
                | (workload or {}),
                "dataset": {"samples": 60_000, "stored_bytes": 6_000_000_000, "changed": []}
                | (dataset or {})
                | {"spec": spec | (dataset or {}).get("spec", {})},
                "loader": {"direct": False} | (loader or {}),
                "ceilings": ceilings,
                "repetitions": done,
            }
            | job,
        }
        | head
    )
    if not concluded:
        return doc.model_copy(update={"metrics": summarise(doc.job.repetitions)})
    doc = conclude(doc)
    told = [text for each in doc.findings for text in (each.evidence, each.remedy)]
    told += [each.change for each in doc.job.verdict.advice] if doc.job.verdict else []
    assert long_sentences(told) == []
    return doc


def build_sweep(**changes: Any) -> Sweep:
    """A sweep of the workload ``demo`` over data below ``d``, which has no points."""
    asked = {"created": "", "command": [], "iobench_version": "0", "workload": "demo"}
    asked |= {"data_root": "d", "seed": 1, "repetitions": 2, "calibration_s": 0, "axes": {}}
    return Sweep.model_validate(asked | changes)
