"""The table of metrics: every figure that iobench computes for a run, with unit and label.

It is the only such table. Conditions (``--fail-on``), comparisons, histories, CSV and the text and
markdown reports read it, and show its metrics in this order. CONTRIBUTING.md says what else a new
metric needs, and which reports show it. The metrics are computed by ``judge.figures.metrics`` (of a
repetition), ``judge.checkpoint`` (of a save or a restore), ``judge.model_load``,
``judge.figures.requests`` (of the requests of a repetition) and ``judge.verdict``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

from ..base.errors import UnknownNameError
from ..base.text import printable

Unit = Literal[
    "samples/s", "requests/s", "bytes/s", "s", "bytes", "count", "share", "ratio", "W", "MHz"
]
"""``share``: 0 to 1. ``ratio``: one figure over another, which may be above 1."""

Better = Literal["more", "less"]
Of = Literal["repetition", "save", "restore", "load", "request", "verdict"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One figure.

    ``name`` is its key in ``run.json`` and CSV, and its name in conditions. ``better`` is None if
    neither more nor less of it is better. ``median``: a run's document holds the median over its
    repetitions, saves or restores. ``short`` is the label for narrow tables; only metrics that have
    one are compared between runs. ``device``: by counters of the GPU, or of the model's arithmetic;
    reports show these under a heading of their own, apart from accelerator utilization.
    """

    name: str
    unit: Unit
    label: str
    of: Of
    better: Better | None = None
    median: bool = True
    short: str = ""
    device: bool = False


def _rows(of: Of, usual: Better | None = None, **kind: bool) -> Callable[..., Metric]:
    """What makes the rows of a kind of metric, of which ``usual`` is better where none says so."""

    def row(
        name: str,
        unit: Unit,
        label: str,
        better: Better | None = usual,
        short: str = "",
        **more: bool,
    ) -> Metric:
        about = {**kind, **more}
        return Metric(name=name, unit=unit, label=label, of=of, better=better, short=short, **about)

    return row


_repetition, _device = _rows("repetition"), _rows("repetition", device=True)
_save, _restore = _rows("save", "less"), _rows("restore", "less")
_load, _request = _rows("load", "less"), _rows("request", "less")
_verdict = _rows("verdict", median=False)

METRICS: tuple[Metric, ...] = (
    _repetition("residency_before", "share", "in the page cache before", median=False),
    _repetition("samples", "count", "samples", median=False),
    _repetition("steps", "count", "steps of all ranks", median=False),
    _repetition("bytes_read", "bytes", "bytes read", median=False),
    _repetition("sample_bytes", "bytes", "stored bytes of the samples", median=False),
    _repetition(
        "samples_per_s", "samples/s", "sample throughput, samples/s", "more", short="samples/s"
    ),
    _repetition("read_bytes_per_s", "bytes/s", "read bandwidth", "more", short="read bandwidth"),
    _repetition("read_amplification", "ratio", "read amplification", "less"),
    _repetition("requests", "count", "reads and opens", median=False),
    _repetition("requests_per_sample", "ratio", "requests for a sample", "less"),
    _repetition(
        "accelerator_utilization_sustained",
        "share",
        "accelerator utilization",
        "more",
        short="utilization",
    ),
    _repetition("accelerator_utilization", "share", "  as MLPerf counts it", "more"),
    _repetition("accelerator_utilization_strict", "share", "  over the whole wall time", "more"),
    _repetition("wall_s", "s", "wall time", "less"),
    _repetition("checkpoint_s", "s", "  of it, saving checkpoints", "less"),
    _repetition("busy_s", "s", "busy time, mean of ranks"),
    _repetition("wait_s", "s", "wait time, mean of ranks", "less"),
    _repetition("sync_s", "s", "waiting for other ranks", "less"),
    _repetition("time_to_first_batch_s", "s", "time to first batch", "less", short="first batch"),
    _repetition("wait_p50_s", "s", "wait for a batch, p50", "less"),
    _repetition("wait_p99_s", "s", "wait for a batch, p99", "less", short="wait, p99"),
    _repetition("cpu_s", "s", "CPU time", "less", short="CPU time"),
    _repetition("throttled_s", "s", "throttled by the CPU quota", "less", median=False),
    _repetition("read_s", "s", "time in reads, all workers", "less", median=False),
    _repetition("late_p99_s", "s", "late wake-ups of the emulation, p99", "less", median=False),
    _repetition("late_left_s", "s", "  not made up for, all epochs", "less", median=False),
    _repetition("retries", "count", "requests sent again", "less", median=False),
    _repetition("throttled", "count", "  of them, asked to slow down", "less", median=False),
    _device("device_utilization_nvml", "share", "time with a kernel running (NVML)"),
    _device("sm_utilization", "share", "SM activity (NVML's GPM)"),
    _device("device_power_w", "W", "power of a GPU"),
    _device("sm_clock_mhz", "MHz", "clock of the SMs"),
    _device("mfu", "share", "model FLOPs utilization (MFU)", "more"),
    _save("blocked_s", "s", "training stands still", short="save blocks"),
    _save("waited_s", "s", "  of it, for the previous save"),
    _save("staged_s", "s", "copied to a buffer"),
    _save("accepted_s", "s", "accepted by the storage"),
    _save("durable_s", "s", "durable", short="save durable"),
    _save("committed_s", "s", "found by a restore"),
    _save("first_done_s", "s", "first rank done"),
    _save("persist_s", "s", "from the copy until durable"),
    _save("cpu_s", "s", "CPU time of a save"),
    _save("extra_memory_bytes", "bytes", "extra memory, worst rank"),
    _save("write_bytes_per_s", "bytes/s", "write bandwidth", "more", "write bandwidth"),
    _restore("restore_s", "s", "restore, cold", short="restore"),
    _restore("restore_skew_s", "s", "  slowest rank after the fastest"),
    _restore("restore_bytes_per_s", "bytes/s", "restore bandwidth", "more", "restore bandwidth"),
    _load("ready_s", "s", "weights are in memory", short="ready"),
    _load("ready_skew_s", "s", "  slowest process after the fastest"),
    _load("load_bytes_per_s", "bytes/s", "bytes of the model", "more", "load bandwidth"),
    _load("load_amplification", "ratio", "bytes read over those of the model"),
    _load("load_cpu_s", "s", "CPU time of a load", short="CPU of a load"),
    _load("load_peak_memory_bytes", "bytes", "peak memory of a process", short="peak memory"),
    _request("latency_p50_s", "s", "latency, p50", short="p50"),
    _request("latency_p99_s", "s", "latency, p99", short="p99"),
    _request("latency_p999_s", "s", "latency, p99.9"),
    _request("latency_max_s", "s", "latency, longest"),
    _request("storage_p99_s", "s", "read of a sample, p99"),
    _request("requests_per_s", "requests/s", "requests answered", "more", "requests/s"),
    _request("reads_per_s", "requests/s", "nodes read", "more", "nodes read"),
    _request("log_commit_p99_s", "s", "answer to the commit of its record, p99", short="commit"),
    _request("log_records_per_s", "requests/s", "records committed", "more"),
    _request("log_at_risk", "count", "records that a crash would lose"),
    _request("log_objects_per_hour", "count", "files or objects of the log in an hour"),
    _request("hit_rate", "share", "tokens found in memory or on the storage", "more", "hits"),
    _request("load_p99_s", "s", "load of a prefix, p99", short="load, p99"),
    _request("load_bytes_per_s", "bytes/s", "bandwidth of a load", "more", "load bandwidth"),
    _request("break_even_bytes_per_s", "bytes/s", "  at which computing takes as long", None),
    _request("accelerators_freed", "count", "accelerators freed", "more"),
    _request("write_bytes_per_s", "bytes/s", "chunks written", None),
    _request("drive_writes_per_day", "ratio", "writes of the capacity in a day"),
    _verdict("headroom", "ratio", "storage over what is demanded", "more"),
    _verdict("contention", "ratio", "step beside the loader over the step alone", "less"),
    _verdict("accelerators_fed", "count", "accelerators that the storage alone could feed", "more"),
    _verdict("predicted_samples_per_s", "samples/s", "predicted", "more"),
    _verdict("measured_samples_per_s", "samples/s", "measured", "more"),
    _verdict("fetch_stall", "share", "fetch stall", "less"),
    _verdict("prep_stall", "share", "prep stall", "less"),
)


def metrics_of(*kinds: Of, median: bool | None = None) -> tuple[Metric, ...]:
    """Return the metrics of these kinds, in the table's order.

    ``median``: only those that have (True) or do not have (False) a median.
    """
    return tuple(
        each for each in METRICS if each.of in kinds and (median is None or each.median is median)
    )


COMPARED: dict[str, Metric] = {
    each.name: each
    for wanted in ("more", "less")
    for each in METRICS
    if each.short and each.better == wanted
}
"""The metrics by which runs are compared; those of which more is better come first."""


def _compared(name: str) -> str:
    if name not in COMPARED:
        raise ValueError(f"'{printable(name, 60)}' is no metric by which runs are compared")
    return name


ComparedMetric = Annotated[str, AfterValidator(_compared)]
"""The name of one of them in a record."""


def check_compared(*names: str) -> None:
    """Raise UnknownNameError for a name that is no metric by which runs are compared."""
    for name in names:
        if name not in COMPARED:
            raise UnknownNameError("metric", name, COMPARED)


BY_NAME: dict[str, Metric] = {each.name: each for each in reversed(METRICS)}
"""The metrics by their names in conditions.

``cpu_s`` is also a metric of saves; the name stands for that of repetitions.
"""
