"""``iobench plan``: what a model's checkpoint is, before anything is written."""

from __future__ import annotations

from ..schema.plan import BudgetFigures, CheckpointPlanFigures
from ..units import counted, format_bytes, format_count, format_duration, format_rate, format_share
from .plan import known
from .sections import Fact, Facts, Headline, Section


def sections(plan: CheckpointPlanFigures) -> list[Section]:
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
    facts = tuple(Fact(label=name, text=text) for name, text in rows)
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
