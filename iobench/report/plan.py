"""What a run or a checkpoint study would do, before it is measured."""

from __future__ import annotations

from ..base.units import (
    RESTART_S,
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_share,
)
from ..record.plan import BudgetFigures, CheckpointPlanFigures, PlanFigures, ProbeFigures
from .figures import facts
from .sections import FirstScreen, KeyFigure, Section


def sections(plan: PlanFigures) -> list[Section]:
    """What the run would read and take, and what this host has for it."""
    many, workers = counted(plan.accelerators, "accelerator"), counted(plan.workers, "worker")
    state = "generated" if plan.generated else "not generated yet"
    read, flight = format_bytes(plan.read_bytes_total), counted(plan.reads_in_flight, "read")
    samples = f"{format_count(plan.samples)} samples of {format_bytes(plan.sample_bytes_mean)}"
    shards, steps = counted(plan.shards, "shard"), format_count(plan.steps_per_repetition)
    gauges = (
        KeyFigure("to read", read, f"by {workers}, {flight} in flight"),
        _demand(plan),
        KeyFigure("dataset", format_bytes(plan.bytes), f"({state}): {samples} in {shards}"),
        KeyFigure("free space", _space(plan)),
        KeyFigure("time", _time(plan)),
        *(() if plan.probe is None else (_probe(plan.probe, plan),)),
    )
    first = FirstScreen(job=f"{plan.workload}, {many}", state=f"{read} to read", gauges=gauges)
    steps = f"{steps} per repetition and accelerator, {plan.repetitions} repetitions"
    told = [
        ("batch", f"{plan.batch_size} samples"),
        ("data", f"{plan.dataset}: {plan.format}, {plan.content}, codec {plan.codec}"),
        ("memory", _memory(plan)),
        ("cache", _cache(plan)),
        ("steps", steps),
        ("MLPerf size", _minimum(plan)),
    ]
    return [first, facts("plan", "In detail", told)]


def _time(plan: PlanFigures) -> str:
    if plan.busy_s is None:
        return "as fast as storage allows"
    return f"{format_duration(plan.busy_s)} if accelerators never wait, without calibration"


def _memory(plan: PlanFigures) -> str:
    if plan.memory_multiple is None:
        return "unknown"
    return f"{known(plan.memory_bytes)}; the dataset is {plan.memory_multiple:.2f} x that"


def _cache(plan: PlanFigures) -> str:
    if plan.expected_cache_hit_rate is None:
        return "unknown"
    share = format_percent(plan.expected_cache_hit_rate)
    return f"{share} of reads would hit the page cache if nothing were evicted"


def _probe(probe: ProbeFigures, plan: PlanFigures) -> KeyFigure:
    """How long a read takes alone, and how many in flight the demand needs at least."""
    alone = f"of {format_bytes(probe.request_bytes)}, alone (median of {probe.reads})"
    if probe.concurrency is not None and probe.reads_in_flight is not None:
        enough = probe.reads_in_flight <= plan.reads_in_flight
        asked = f"{plan.reads_in_flight} are asked for"
        alone += (
            f": the demand needs {probe.reads_in_flight} in flight or more, if they take no longer "
            "together (iobench probe measures that); "
            + (asked if enough else f"--set reader.concurrency={probe.concurrency}")
        )
    return KeyFigure("one read", format_duration(probe.latency_p50_s), alone)


def _space(plan: PlanFigures) -> str:
    if plan.free_bytes is None:
        return "unknown (no --data)" if plan.data is None else "unknown (not a local file system)"
    fits = {True: ": the dataset fits", False: ": the dataset DOES NOT FIT", None: ""}[plan.fits]
    return f"{format_bytes(plan.free_bytes)}{fits}"


def _demand(plan: PlanFigures) -> KeyFigure:
    if plan.demanded_bytes_per_s is None or plan.demanded_samples_per_s is None:
        return KeyFigure("demand", "none:", "the accelerator takes whatever comes")
    note = f"({format_count(plan.demanded_samples_per_s)} samples/s) if accelerators never wait"
    return KeyFigure("demand", format_rate(plan.demanded_bytes_per_s), note)


def _minimum(plan: PlanFigures) -> str:
    if plan.mlperf_minimum_samples is None:
        return "unknown"
    reached = "reached" if plan.samples >= plan.mlperf_minimum_samples else "not reached"
    text = f"{format_count(plan.mlperf_minimum_samples)} samples"
    return f"at least {text} ({known(plan.mlperf_minimum_bytes)}): {reached}"


def known(size: int | None) -> str:
    """A number of bytes, or "unknown"."""
    return "unknown" if size is None else format_bytes(size)


def checkpoint_sections(plan: CheckpointPlanFigures) -> list[Section]:
    """The bytes of a model's checkpoint, and the write rates that save it in time."""
    layout, size = plan.parallelism, format_bytes(plan.bytes)
    least, most = format_bytes(plan.rank_bytes_min), format_bytes(plan.rank_bytes_max)
    each = least if least == most else f"{least} to {most}"
    cut = f"tensor {layout['tensor']} x pipeline {layout['pipeline']} x data {layout['data']}, "
    cut += f"ZeRO {layout['zero']}"
    scaled = "".join(f"; {key} {old} -> {new}" for key, (old, new) in plan.scaling.changed.items())
    how = "as stated"
    if plan.mtbf_published:
        many = counted(plan.accelerators, "accelerator")
        how = f"on {many}, at the published rate of failures; --accelerators states your number"
    ranks, files = counted(plan.ranks, "rank"), counted(plan.files, "file")
    restore = ""
    if plan.restore_s is not None:
        took, read = format_duration(plan.restore_s), format_bytes(plan.restored_bytes)
        restore = f"{took} at least: {read} at the storage's stated limit"
    gauges = (
        KeyFigure("checkpoint", size, f"in {files}, {each} by each rank"),
        KeyFigure("interruption", f"every {format_duration(plan.mtbf_s)}", how),
        *(_budget(plan, one) for one in plan.budgets),
        KeyFigure("free space", _room(plan)),
    )
    first = FirstScreen(job=f"Checkpoint of {plan.model}, {ranks}", state=size, gauges=gauges)
    parameters = format_count(plan.parameters)
    held, state = format_bytes(plan.model_bytes), format_bytes(plan.optimizer_bytes)
    whole, changed = size, ""
    if plan.state_bytes is not None:
        whole, share = format_bytes(plan.state_bytes), format_share(plan.bytes / plan.state_bytes)
        changed = f"{share} of the whole state of {whole}, which is saved once"
    memory = f"{whole} of {known(plan.memory_available_bytes)} available"
    told = [
        ("model", f"{plan.model} ({plan.summary}): {parameters} parameters{scaled}"),
        ("bytes", f"parameters {held}, optimizer {state}"),
        ("what changes", changed),
        ("ranks", f"{format_count(plan.ranks)} ({cut})"),
        ("tensors", format_count(plan.tensors)),
        ("memory", f"all ranks on this host: {memory}"),
        ("restore", restore),
    ]
    return [first, facts("checkpoint-plan", "In detail", told)]


def _budget(plan: CheckpointPlanFigures, budget: BudgetFigures) -> KeyFigure:
    """The write rate of one budget, of the storage and of each host, and what is lost."""
    each = limit = ""
    if budget.write_bytes_per_s_of_host is not None and plan.hosts_writing is not None:
        of_host = format_rate(budget.write_bytes_per_s_of_host)
        each = f", {of_host} by each of {counted(plan.hosts_writing, 'host')}"
    if plan.storage_write_bytes_per_s is not None:
        against = "within" if budget.within_limit else "MORE than"
        rate = format_rate(plan.storage_write_bytes_per_s)
        limit = f" ({against} the storage's stated limit of {rate})"
    restart = f"with {format_duration(RESTART_S)} to restart"
    restart += "" if plan.restore_s is not None else ", and without the restore"
    save, every = format_duration(budget.longest_save_s), format_duration(budget.interval_s)
    lost = f"{format_share(budget.waste)} of the time is lost, interruptions included"
    told = f"of durable writes by all hosts together{limit}{each}: a save takes {save}, one every "
    told += f"{every}. {lost}, {restart}"
    label = f"to stall {budget.stall_budget * 100:g} %"
    return KeyFigure(label, format_rate(budget.write_bytes_per_s), told)


def _room(plan: CheckpointPlanFigures) -> str:
    need = f"{format_bytes(plan.needed_bytes)} are needed, "
    need += "with the whole state, " if plan.state_bytes is not None else ""
    need += "because the last checkpoint stays until the next one is complete"
    if not plan.target:
        return f"unknown: name a target with --to; {need}"
    if plan.fits is None:
        return f"unknown (not a local file system); {need}"
    enough = "enough" if plan.fits else "NOT ENOUGH"
    return f"{known(plan.free_bytes)} at {plan.target}, {enough}: {need}"
