"""What a run or a checkpoint study would do, before it is measured."""

from __future__ import annotations

from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_share,
)
from ..record.plan import BudgetFigures, CheckpointPlanFigures, PlanFigures, ProbeFigures
from .figures import facts_of
from .sections import Facts, Headline, Section


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
    facts = facts_of(rows)
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


def checkpoint_sections(plan: CheckpointPlanFigures) -> list[Section]:
    """The plan of a model's checkpoint as facts."""
    ranks, layout = plan.ranks, plan.parallelism
    each = " to ".join(
        dict.fromkeys(format_bytes(size) for size in (plan.rank_bytes_min, plan.rank_bytes_max))
    )
    cut = (
        f"tensor {layout['tensor']} x pipeline {layout['pipeline']} x data {layout['data']}, "
        f"ZeRO {layout['zero']}"
    )
    scaled = "".join(f"; {key} {old} -> {new}" for key, (old, new) in plan.scaling.changed.items())
    how = "at the published rate of failures" if plan.mtbf_published else "as stated"
    rows = [
        (
            "model",
            f"{plan.model} ({plan.summary}): {format_count(plan.parameters)} parameters{scaled}",
        ),
        (
            "checkpoint",
            f"{format_bytes(plan.bytes)}: parameters {format_bytes(plan.model_bytes)}, "
            f"optimizer {format_bytes(plan.optimizer_bytes)}",
        ),
        ("ranks", f"{format_count(ranks)} ({cut}): {each} each, in {counted(plan.files, 'file')}"),
        ("tensors", format_count(plan.tensors)),
        (
            "memory",
            (
                f"all ranks on this host: {format_bytes(plan.bytes)} of "
                f"{known(plan.memory_available_bytes)} available"
            ),
        ),
        ("free space", _room(plan)),
        (
            "failures",
            (
                f"every {format_duration(plan.mtbf_s)} on "
                f"{counted(plan.accelerators, 'accelerator')}, {how}"
            ),
        ),
    ]
    if plan.restore_s is not None:
        rows.append(
            (
                "restore",
                f"{format_duration(plan.restore_s)} at least: {format_bytes(plan.restored_bytes)} "
                "at the storage's stated limit",
            )
        )
    rows += [
        (f"{each.stall_budget * 100:g} % stalled", _budget(plan, each)) for each in plan.budgets
    ]
    facts = facts_of(rows)
    title = f"Checkpoint of {plan.model}, {counted(ranks, 'rank')}: {format_bytes(plan.bytes)}"
    return [Headline(id="answer", title=title), Facts(id="checkpoint-plan", facts=facts)]


def _budget(plan: CheckpointPlanFigures, budget: BudgetFigures) -> str:
    """The write rate for one budget, of the storage and of each host, and what is still lost."""
    each = ""
    if budget.write_bytes_per_s_of_host is not None and plan.hosts_writing is not None:
        each = (
            f", {format_rate(budget.write_bytes_per_s_of_host)} by each of "
            f"{counted(plan.hosts_writing, 'host')}"
        )
    limit = ""
    if plan.storage_write_bytes_per_s is not None:
        against = "within" if budget.within_limit else "MORE than"
        rate = format_rate(plan.storage_write_bytes_per_s)
        limit = f" ({against} the storage's stated limit of {rate})"
    without = "the restart" if plan.restore_s is not None else "restart and restore"
    return (
        f"{format_rate(budget.write_bytes_per_s)} of durable writes by all hosts together{limit}"
        f"{each}: a save of {format_duration(budget.longest_save_s)} every "
        f"{format_duration(budget.interval_s)}; {format_share(budget.waste)} lost with "
        f"interruptions, without {without}"
    )


def _room(plan: CheckpointPlanFigures) -> str:
    need = f"{format_bytes(plan.needed_bytes)}, for the one before stays until the next is complete"
    if not plan.target:
        return f"unknown: name a target with --to; needed are {need}"
    if plan.fits is None:
        return f"unknown (not a local file system); needed are {need}"
    return (
        f"{known(plan.free_bytes)} at {plan.target}: {'enough' if plan.fits else 'NOT ENOUGH'}, "
        f"needed are {need}"
    )
