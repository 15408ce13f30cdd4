"""Bring the page cache into the state that the workload asks for, and watch it during each epoch.

Residency before an epoch shows how the epoch began. During the epoch another process may read the
same files, so the bytes that the storage delivered are compared with the bytes that were read: if
they agree, no cache served the reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..load.layouts import layout_keys
from ..measure import nfs
from ..measure.samples import Sampler
from ..schema.training import Epoch
from .agent import HostAgent
from .loading import Ranks, Tick, Watch, run_phase
from .phase import Outcome, Phase
from .plan import Plan

MAX_DIRECT_KEYS = 256
"""Files that are evicted and looked at where all reads are direct: an open may take 1 ms."""


def run_cached_phase(
    plan: Plan,
    agent: HostAgent,
    phase: Phase,
    *,
    look: Callable[[], None] = lambda: None,
    tick: Tick | None = None,
    watch: Watch | None = None,
    sampler: Sampler | None = None,
    ranks: Ranks | None = None,
) -> Outcome:
    """``run_phase`` over the plan's storage, with the page cache prepared and watched.

    ``look`` is called before each epoch, while all ranks wait.
    """

    def prepare(epoch: int) -> Epoch:
        look()
        return prepare_cache(plan, agent, epoch)

    if plan.workload.cache != "cold":
        return run_phase(
            phase, prepare=prepare, tick=tick, watch=watch, sampler=sampler, ranks=ranks
        )
    counter = agent.fetch_counter(plan.keys, direct=plan.direct)
    before: nfs.MountStats | None = None

    def prepare_cold(epoch: int) -> Epoch:
        nonlocal before
        context = prepare(epoch)
        context.fetched_how = counter.how
        before = agent.mount_counters()
        return context

    def finish(context: Epoch) -> None:
        used = nfs.diff(before, agent.mount_counters())
        if used is not None:
            context.bytes_fetched = used.read_bytes

    phase = replace(phase, counts_fetched=counter.by == "processes")
    outcome = run_phase(
        phase,
        prepare=prepare_cold,
        finish=finish,
        tick=tick,
        watch=watch,
        sampler=sampler,
        ranks=ranks,
    )
    for context in outcome.epochs:
        if context.bytes_fetched is None and counter.by != "nobody":
            context.fetched_how = "not measured: the counter could not be read"
    return outcome


def cached_keys(plan: Plan) -> list[str]:
    """The objects that the loader may read, which the page cache must not keep."""
    return [*plan.keys, *layout_keys(plan.storage, plan.workload.loader.kind)]


def prepare_cache(plan: Plan, agent: HostAgent, epoch: int) -> Epoch:
    """Evict the data for a cold epoch, or read it once for a warm run; return the residency."""
    keys = cached_keys(plan)
    if plan.workload.cache == "cold" and plan.direct and len(keys) > MAX_DIRECT_KEYS:
        # Their reads bypass the cache: nothing has to be dropped, and a part shows what it holds.
        some = keys[:: -(-len(keys) // MAX_DIRECT_KEYS)]
        state = agent.empty_cache(some)
        of = f"of {len(some):,} of the {len(keys):,} files, which are read past the cache"
        state = replace(state, how=f"{state.how}, {of}")
    elif plan.workload.cache == "cold":
        state = agent.empty_cache(keys)
    elif plan.workload.cache == "warm" and epoch == 0:
        state = agent.fill_cache(keys)
    else:
        state = agent.cache_state(keys)
    return Epoch(
        epoch=epoch,
        residency_before=state.ratio,
        residency_how=state.how,
        residencies=list(state.hosts),
    )
