"""The page cache and the other readers of a dataset: brought into the asked state, and watched.

Residency before an epoch shows how the epoch began. During the epoch another process may read the
same files, so the bytes that the storage delivered are compared with the bytes that were read: if
they agree, no cache served the reads.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace

from ..base.errors import StorageError
from ..base.memory import total_bytes
from ..base.units import format_bytes, format_percent
from ..host import nfs
from ..host.samples import Sampler
from ..load.layouts import layout_keys
from ..record.run import Finding
from ..record.training import CacheUse, Epoch
from ..storage.local_cache import local_cache
from ..storage.locks.lock import Lease
from .agent import FetchCounter, HostAgent
from .loading import PhaseContext, run_phase
from .phase import Outcome, Phase
from .plan import Plan

MAX_DIRECT_KEYS = 256
"""Files that are evicted and looked at where all reads are direct: an open may take 1 ms."""


def run_cached_phase(
    plan: Plan,
    agent: HostAgent,
    phase: Phase,
    context: PhaseContext | None = None,
    *,
    sampler: Sampler | None = None,
) -> Outcome:
    """``run_phase`` over the plan's storage, with the page cache prepared and watched."""
    context = context or PhaseContext()
    counter: FetchCounter | None = None
    before: nfs.MountStats | None = None
    cache = plan.cache
    used: CacheUse | None = None
    if plan.workload.cache == "cold":
        counter = agent.fetch_counter(plan.keys, direct=plan.direct)
        phase = replace(phase, counts_fetched=counter.by == "processes")

    def prepare(epoch: int) -> Epoch:
        nonlocal before, used
        context.look()
        found = prepare_cache(plan, agent, epoch)
        if cache is not None:
            if epoch == 0:
                cache.empty()
            used = cache.counted()
            if plan.workload.cache == "cold" and not cache.files.direct:
                used.residency_before = cache.forget_pages()
        if counter is not None:
            found.fetched_how = counter.how
            before = agent.mount_counters()
        return found

    def finish(epoch: Epoch) -> None:
        if cache is not None and used is not None:
            epoch.local_cache = cache.counted().since(used)
        traffic = nfs.diff(before, agent.mount_counters()) if counter is not None else None
        if traffic is not None and phase.evaluation is None:  # which reads after the epoch
            epoch.bytes_fetched = traffic.read_bytes

    try:
        outcome = run_phase(phase, context, prepare=prepare, finish=finish, sampler=sampler)
    finally:
        if cache is not None and not cache.keep:
            cache.empty()  # another variant of the run may have one in the same place
    if counter is not None and counter.by != "nobody":
        evaluates = counter.by == "mount" and phase.evaluation is not None
        why = (
            "evaluation reads from the mount, too" if evaluates else "the counter could not be read"
        )
        for epoch in outcome.epochs:
            if epoch.bytes_fetched is None:
                epoch.fetched_how = f"not measured: {why}"
    return outcome


def with_local_cache(plan: Plan, held: ExitStack) -> Plan:
    """The plan with its local cache, if it asks for one, until ``held`` is closed."""
    spec, wanted = plan.workload.local_cache, plan.workload.reader.direct
    if spec is None:
        return plan
    sizes = dict(zip(plan.keys, plan.manifest.shards["size"].tolist(), strict=True))
    direct = wanted is True or (wanted == "auto" and plan.workload.cache == "cold")
    made = local_cache(spec, plan.storage, sizes, direct=direct)
    return replace(plan, cache=held.enter_context(made))


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


_MAX_SHARE = 0.5
"""Share of the memory that the dataset may take, so that the page cache keeps it."""

_MIN_RESIDENT = 0.98


def why_not_warm(plan: Plan) -> str:
    """Why the dataset can't be read from the page cache; empty if it can."""
    memory, size = total_bytes(), plan.manifest.header.stored_bytes
    if not plan.storage.traits.page_cache:
        return "this host's page cache keeps nothing of this storage"
    if memory is None or size > _MAX_SHARE * memory:
        had = "an unknown amount" if memory is None else format_bytes(memory)
        return (
            f"the dataset has {format_bytes(size)}, too much for the page cache of a host with "
            f"{had} of memory"
        )
    return ""


def fill_cache(plan: Plan, agent: HostAgent) -> str:
    """Read the dataset once, so that the page cache has it; return why it has not, or empty."""
    if why := why_not_warm(plan):
        return why
    state = agent.fill_cache(plan.keys)
    if state.ratio is not None and state.ratio < _MIN_RESIDENT:
        return f"the page cache keeps only {format_percent(state.ratio)} of the dataset"
    return ""


_SHOWN = 3


class Others:
    """Collects the other readers that were seen. Call ``look`` while no rank reads."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._seen: dict[str, None] = {}  # in the order of their first sighting
        self.look()

    def look(self) -> None:
        """Record the current readers.

        Raises TargetLostError if another process has taken the dataset over.
        """
        self._lease.check()
        # Without a listing, others are not seen. The run's own reads report real errors.
        with suppress(StorageError):
            self._seen.update(dict.fromkeys(self._lease.others()))

    def findings(self) -> list[Finding]:
        found = []
        if self._seen:
            shown = list(self._seen)[:_SHOWN]
            more = len(self._seen) - len(shown)
            names = ", ".join(shown) + (f" and {more} more" if more else "")
            found.append(
                Finding(
                    rule="storage.shared",
                    level="warning",
                    evidence=f"other iobench processes read this dataset at the same time: {names}",
                    remedy="run again when they have ended: they compete for the storage, "
                    "and each may have warmed the cache for the other",
                )
            )
        if self._lease.unregistered:
            found.append(
                Finding(
                    rule="storage.unlocked",
                    level="info",
                    evidence="no lock could be written next to the dataset, so nobody was "
                    "kept from changing it, and other readers were not seen: "
                    f"{self._lease.unregistered}",
                )
            )
        return found
