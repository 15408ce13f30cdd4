"""``iobench plan``: what a run would do. What is not known is marked as unknown."""

from __future__ import annotations

from ..schema.plan import PlanFigures, ProbeFigures
from ..units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from .sections import Fact, Facts, Headline, Section


def sections(plan: PlanFigures) -> list[Section]:
    """The plan of a run as facts."""
    state = "generated" if plan.generated else "not generated yet"
    multiple = plan.memory_multiple
    rows = [
        (
            "workload",
            (
                f"{plan.workload}, {plan.accelerators} "
                f"accelerator{'s' if plan.accelerators != 1 else ''}, batch {plan.batch_size}"
            ),
        ),
        (
            "dataset",
            f"{plan.dataset} ({state}): {plan.format}, {plan.content}, codec {plan.codec}",
        ),
        (
            "size",
            f"{format_bytes(plan.bytes)}: {format_count(plan.samples)} samples of "
            f"{format_bytes(plan.sample_bytes_mean)} "
            f"in {counted(plan.shards, 'shard')}",
        ),
        (
            "memory",
            "unknown"
            if multiple is None
            else f"{known(plan.memory_bytes)}; the dataset is {multiple:.2f} x that",
        ),
        (
            "cache",
            "unknown"
            if plan.expected_cache_hit_rate is None
            else f"{format_percent(plan.expected_cache_hit_rate)} of reads would hit the page "
            "cache "
            "if nothing were evicted",
        ),
        ("free space", _space(plan)),
        (
            "steps",
            (
                f"{format_count(plan.steps_per_repetition)} per repetition and accelerator, "
                f"{plan.repetitions} repetitions"
            ),
        ),
        (
            "reads",
            (
                f"{format_bytes(plan.read_bytes_total)} in all; {counted(plan.workers, 'worker')}, "
                f"{counted(plan.reads_in_flight, 'read')} in flight"
            ),
        ),
        ("demand", _demand(plan)),
        (
            "time",
            "as fast as storage allows"
            if plan.busy_s is None
            else (
                f"{format_duration(plan.busy_s)} if accelerators never wait, without calibration"
            ),
        ),
        ("MLPerf size", _minimum(plan)),
    ]
    if plan.probe is not None:
        rows.append(("probe", _probe(plan.probe, plan)))
    facts = tuple(Fact(label=name, text=text) for name, text in rows)
    job = f"{plan.workload}, {counted(plan.accelerators, 'accelerator')}"
    title = f"{job}: {format_bytes(plan.read_bytes_total)} to read"
    return [Headline(id="answer", title=title), Facts(id="plan", facts=facts)]


def _probe(probe: ProbeFigures, plan: PlanFigures) -> str:
    took = (
        f"{format_duration(probe.latency_p50_s)} for one read of "
        f"{format_bytes(probe.request_bytes)} (median of {probe.reads})"
    )
    if probe.concurrency is None or probe.reads_in_flight is None:
        return took
    if probe.reads_in_flight <= plan.reads_in_flight:
        return (
            f"{took}: the demand needs {probe.reads_in_flight} in flight or more, "
            f"{plan.reads_in_flight} are asked for"
        )
    return (
        f"{took}: the demand needs at least {probe.reads_in_flight} in flight: --set "
        f"reader.concurrency={probe.concurrency}"
    )


def _space(plan: PlanFigures) -> str:
    if plan.free_bytes is None:
        return "unknown (no --data)" if plan.data is None else "unknown (not a local file system)"
    text = format_bytes(plan.free_bytes)
    return (
        text
        if plan.fits is None
        else f"{text}: the dataset {'fits' if plan.fits else 'DOES NOT FIT'}"
    )


def _demand(plan: PlanFigures) -> str:
    if plan.demanded_bytes_per_s is None or plan.demanded_samples_per_s is None:
        return "none: the accelerator takes whatever comes"
    samples = format_count(plan.demanded_samples_per_s)
    return (
        f"{format_rate(plan.demanded_bytes_per_s)}, {samples} samples/s, if the accelerators "
        "never wait"
    )


def _minimum(plan: PlanFigures) -> str:
    if plan.mlperf_minimum_samples is None:
        return "unknown"
    enough = plan.samples >= plan.mlperf_minimum_samples
    text = (
        f"{format_count(plan.mlperf_minimum_samples)} samples ({known(plan.mlperf_minimum_bytes)})"
    )
    return f"at least {text}: {'reached' if enough else 'not reached'}"


def known(size: int | None) -> str:
    """A number of bytes, or "unknown"."""
    return "unknown" if size is None else format_bytes(size)
