"""What a checkpoint study will do, before it writes anything: shares, bytes, memory, space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial

from ..base.errors import NoRoomError, UsageError
from ..base.filesystem import free_bytes, nearest_existing
from ..base.memory import available_bytes
from ..base.units import RESTART_S, format_bytes
from ..checkpoint import WRITERS, make_writer
from ..checkpoint.base import State
from ..checkpoint.models import Parallelism, StateModel, find_model, scale
from ..checkpoint.sharding import Share, changing, layout, shares
from ..judge.checkpoint_meaning import (
    best_s,
    longest_save_at_best_s,
    longest_save_s,
    published_mtbf_s,
    restored_bytes,
    waste,
)
from ..record.checkpoint import CheckpointSpec, Scaling, Training
from ..record.plan import BudgetFigures, CheckpointPlanFigures
from ..storage import open_storage
from ..storage.base import local_root

_BESIDE = 512 << 20
"""Memory that must stay free besides the states: for the processes and the writers' buffers."""


OPTIONS = {"concurrency", "block_size"}
"""Keys of a spec that are options of the writer: not every writer has them."""


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """A study with all decisions made: what each rank holds, and how large it is."""

    spec: CheckpointSpec
    url: str
    model: StateModel  # scaled
    full: StateModel
    scaling: Scaling
    parallelism: Parallelism
    shares: list[Share]
    saved: list[Share]  # what a save has of them: all, or what changes
    training: Training  # input of the analysis: time between interruptions, prices ...
    here: range | None = None  # the ranks of this host; None: all of them

    @property
    def partial(self) -> bool:
        """Whether saves have only what changes of the state, after one of the whole state."""
        return self.spec.changed_share < 1

    @property
    def bytes(self) -> int:
        """Of the whole state."""
        return sum(share.nbytes for share in self.shares)

    @property
    def saved_bytes(self) -> int:
        return sum(share.nbytes for share in self.saved)

    @property
    def full_saved_bytes(self) -> int:
        """Bytes of a save at scale 1."""
        full, saved, state = self.full.state_bytes, self.saved_bytes, self.bytes
        return full if saved == state else full * saved // state

    @property
    def needed_bytes(self) -> int:
        """Of a target: a checkpoint stays until the next is complete, and the base always does."""
        return (self.spec.keep + 1) * self.saved_bytes + (self.bytes if self.partial else 0)

    @property
    def bytes_here(self) -> int:
        """Of the states of this host's ranks."""
        shares = self.shares if self.here is None else [self.shares[rank] for rank in self.here]
        return sum(share.nbytes for share in shares)

    def builder(self, rank: int) -> Callable[[], State]:
        """Return a function that builds the rank's state; it is called in the rank's process."""
        return partial(_build, self.shares[rank], self.spec.seed, rank)


def _build(share: Share, seed: int, rank: int) -> State:
    from ..checkpoint.leaves import build_state

    return build_state(share, seed=seed, rank=rank)


def _study_plan(
    spec: CheckpointSpec, url: str, training: Training, ranks: int | None, here: range | None = None
) -> StudyPlan:
    """A plan of which nothing is checked. Raises UsageError, UnknownNameError."""
    whole = find_model(spec.model)
    full = whole.weights() if spec.weights_only else whole
    model, scaling = scale(full, float(spec.share))
    parallelism = layout(full, ranks, spec.parallelism)
    state, part = shares(model, parallelism), spec.changed_share
    accelerators = training.accelerators or max(full.layout.ranks, parallelism.ranks)
    return StudyPlan(
        spec=spec,
        url=url,
        model=model,
        full=full,
        scaling=Scaling.model_validate(scaling),
        parallelism=parallelism,
        shares=state,
        saved=state if part == 1 else [changing(one, part, seed=spec.seed) for one in state],
        training=training.model_copy(update={"accelerators": accelerators}),
        here=here,
    )


def make_study_plan(
    spec: CheckpointSpec, url: str, training: Training, here: range | None = None
) -> StudyPlan:
    """Compute the shares, and refuse a study that can't work.

    ``here``: the ranks of this host, by default all. Raises UsageError for too little memory or
    space, UnknownNameError.
    """
    asked = {option: getattr(spec, option) for option in OPTIONS & spec.model_fields_set}
    given = {option: value for option, value in asked.items() if value is not None}
    if given:  # the writer knows which of them it has, and which values they can take
        make_writer(spec.writer, options=given).close()
    plan = _study_plan(spec, url, training, spec.ranks, here)
    check_memory(plan)
    check_space(plan)
    return plan


def at_scale(plan: StudyPlan, scale: str) -> StudyPlan:
    """The plan of a study of the whole state at this scale, without training, on the same hosts.

    At its own scale it is ``plan`` itself. Raises as ``make_study_plan``.
    """
    if scale == plan.spec.scale:
        return plan
    spec = plan.spec.model_copy(update={"scale": scale, "changed": "1", "steps": 0})
    return make_study_plan(spec, plan.url, plan.training, plan.here)


STALL_BUDGETS = (0.01, 0.05)


def describe_checkpoint(
    spec: CheckpointSpec,
    url: str | None,
    *,
    ranks: int | None,
    training: Training,
    budgets: Sequence[float] = STALL_BUDGETS,
) -> CheckpointPlanFigures:
    """Compute the size of one checkpoint of a model, and the bandwidth that its storage needs.

    Nothing is built or written; the target is only asked for its free space. Without an interval in
    ``training``, each of the stall budgets gets the interval that is best for it.
    """
    plan = _study_plan(spec, url or "", training, ranks)
    sizes, size = [share.nbytes for share in plan.saved], plan.full_saved_bytes
    count = plan.training.accelerators or 1
    mtbf = training.mtbf_s or published_mtbf_s(count)
    hosts, limit = training.hosts_writing, training.storage_write_bytes_per_s
    read = restored_bytes(size + (plan.full.state_bytes if plan.partial else 0), training)
    restore = (
        read / training.storage_read_bytes_per_s if training.storage_read_bytes_per_s else None
    )
    rows = []
    for budget in budgets:
        longest = (
            longest_save_at_best_s(budget, mtbf)
            if training.interval_s is None
            else longest_save_s(budget, training.interval_s)
        )
        interval = training.interval_s or best_s(longest, mtbf)
        rate = size / longest
        rows.append(
            BudgetFigures(
                stall_budget=budget,
                longest_save_s=longest,
                interval_s=interval,
                write_bytes_per_s=rate,
                write_bytes_per_s_of_host=rate / hosts if hosts else None,
                within_limit=None if limit is None else rate <= limit,
                waste=waste(interval, longest, mtbf, RESTART_S + (restore or 0.0)),
            )
        )
    root = local_root(open_storage(url)) if url else None
    free = None if root is None else free_bytes(root.absolute())
    return CheckpointPlanFigures(
        model=spec.model,
        summary=plan.full.summary,
        parameters=plan.model.parameter_count,
        bytes=plan.saved_bytes,
        full_bytes=size,
        state_bytes=plan.bytes if plan.partial else None,
        model_bytes=plan.model.parameter_bytes,
        optimizer_bytes=plan.bytes - plan.model.parameter_bytes,
        scaling=plan.scaling,
        ranks=plan.parallelism.ranks,
        parallelism=asdict(plan.parallelism),
        rank_bytes_min=min(sizes),
        rank_bytes_max=max(sizes),
        tensors=sum(share.tensors for share in plan.saved),
        files=sum(1 for size in sizes if size),
        memory_available_bytes=available_bytes(),
        target=url,
        free_bytes=free,
        needed_bytes=plan.needed_bytes,
        fits=None if free is None else plan.needed_bytes <= free,
        accelerators=count,
        mtbf_s=mtbf,
        mtbf_published=training.mtbf_s is None,
        hosts_writing=hosts,
        storage_write_bytes_per_s=limit,
        restored_bytes=read,
        restore_s=restore,
        budgets=rows,
    )


def check_memory(plan: StudyPlan) -> None:
    """Check that the states of this host's ranks, and copies of them, fit into memory."""
    free = available_bytes()
    if free is None:
        return
    copies = 2 if WRITERS.load(plan.spec.writer).asynchronous else 1
    needed = copies * plan.bytes_here + _BESIDE
    if needed > free:
        share = Fraction(plan.bytes_here, max(plan.bytes, 1))
        fitting = Fraction(max(free - _BESIDE, 0)) / (
            copies * max(plan.full.state_bytes, 1) * max(share, Fraction(1, 4096))
        )
        remedy = f"use --scale {_share_below(fitting)}" if fitting else "free some memory"
        what = "state and its copy take" if copies > 1 else "state takes"
        raise UsageError(
            f"{plan.spec.model}'s {what} {format_bytes(copies * plan.bytes_here)} of memory, "
            f"{format_bytes(free)} are available",
            remedy=remedy,
        )


def check_space(plan: StudyPlan) -> None:
    """Check that ``keep`` checkpoints, the next one and their base fit on a local target."""
    root = local_root(open_storage(plan.url))
    if root is None:
        return
    there = nearest_existing(root.absolute())
    free = free_bytes(there)
    needed = plan.needed_bytes
    if needed > free:
        fitting = Fraction(free * plan.bytes, needed * max(plan.full.state_bytes, 1))
        what = f"{plan.spec.keep + 1} checkpoints of {format_bytes(plan.saved_bytes)}"
        what += f" and one of {format_bytes(plan.bytes)}" if plan.partial else ""
        raise NoRoomError(
            f"{what} don't fit into the {format_bytes(free)} that are free at {there}",
            remedy=f"use --scale {_share_below(fitting)}"
            if fitting > _LEAST_SHARE
            else "make some room there, or name another directory",
        )


_LEAST_SHARE = Fraction(1, 1 << 20)
"""Of a smaller share of a model nothing can be told, so that none is advised."""


def _share_below(share: Fraction) -> str:
    """The largest of 1/2, 1/4 ... that is at most 90 % of ``share``, as text."""
    half = 2
    while Fraction(1, half) > share * Fraction(9, 10) and half < 1 << 30:
        half *= 2
    return f"1/{half}"
