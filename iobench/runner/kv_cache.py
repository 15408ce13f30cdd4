"""A run of a KV cache: requests with storage, in turns with one stage left out.

What each request finds, loads, writes and deletes is decided before its window begins, by the
window's seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..base import buffers
from ..base.errors import IobenchError, StorageError, UsageError
from ..base.units import format_bytes
from ..host.fio import MAX_REPLAYED
from ..host.tables import RequestColumns
from ..judge.figures.requests import quantile
from ..judge.kv import with_kv_figures
from ..load.engines.base import Extent
from ..record.run import KvCacheRecord
from ..record.serving import KV_COLUMNS, KvCacheRun, KvTrial, KvTrialKind
from ..serve.arrivals import Arrivals
from ..serve.client import Issued, issue
from ..serve.kv.store import KV_CHUNKS, ChunkStore, LeftOut, Written, engine_of, memory_bytes
from ..serve.kv.tiers import WindowPlan, plan_window
from ..serve.kv.traffic import draw_prompts
from ..settings.kv_cache import KvScenario
from ..storage import open_storage
from ..storage.base import MaybeDirect, Storage, innermost, retried
from ..storage.local.storage import LocalStorage
from ..storage.locks.held import Held
from ..storage.locks.lock import Lease
from .budget import Budget
from .checkpoint import unlocked
from .curve.places import Place
from .curve.reader import HostReader
from .options import Observer, VerbOptions
from .plan import check_room
from .requests import MAX_RATE, PART, RateSearch, RequestsPlan, RequestsRun, asked_rate
from .results import Ending, run_directory

MAX_HISTORY_S = 4 * 3600.0
"""So long before a window, requests fill the tiers at most."""

PLAIN_S = 1.0
"""How long chunks are read plainly after each repetition."""

_WITHOUT: dict[KvTrialKind, LeftOut] = {
    "without-reads": "reads",
    "without-writes": "writes",
    "without-lookups": "lookups",
}


@dataclass(frozen=True, kw_only=True)
class KvPlan(RequestsPlan):
    """A run of a KV cache with all decisions made."""

    scenario: KvScenario
    to: str
    price_per_hour: float | None = None

    @property
    def kinds(self) -> Sequence[KvTrialKind]:
        looked = self.scenario.looks_up
        without = [each for each, left in _WITHOUT.items() if looked or left != "lookups"]
        return ["repetition", *without]

    def window_s(self, rate: float) -> float:
        """For which requests arrive in a window at this rate: until a trace ends."""
        trace = self.arrivals.trace
        return self.seconds if trace is None else min(self.seconds, trace.lasts_s(rate))

    def window(self, rate: float, seed: int) -> WindowPlan:
        """What the requests of a window do. Raises UsageError if they are too many."""
        spec, seconds = self.scenario, self.window_s(rate)
        # Until then they bring more than the tiers hold: the median is below the mean.
        chunks_per_s = rate * spec.prompts.new_tokens / spec.chunk_tokens
        history_s = min(MAX_HISTORY_S, (spec.dram_chunks + spec.capacity_chunks) / chunks_per_s)
        prompts = draw_prompts(spec, self.arrivals, rate, seconds, seed, history_s)
        return plan_window(spec, prompts)


def make_kv_plan(
    scenario: KvScenario,
    to: str,
    *,
    find_max: bool = False,
    repetitions: int = 3,
    seed: int = 42,
    price_per_hour: float | None = None,
    budget: Budget | None = None,
) -> KvPlan:
    """Check that the scenario, the rate and the storage fit. Raises UsageError.

    ``budget``: to which the windows are shortened, and with them what has to have room.
    """
    if find_max and scenario.share < 1:
        raise UsageError(
            f"--find-max needs all layers: with {scenario.measured_layers} of "
            f"{scenario.model.layers} a request asks the storage and the accelerators for "
            f"{scenario.share:.3g} of what it takes, so they serve a rate that the model does not",
            remedy="leave layers out",
        )
    arrivals = Arrivals(scenario.arrivals)
    rate = asked_rate(scenario, arrivals, find_max=find_max)
    plan = KvPlan(
        scenario=scenario,
        to=to,
        arrivals=arrivals,
        rate=rate,
        repetitions=repetitions,
        seed=seed,
        price_per_hour=price_per_hour,
    )
    if rate is not None:
        short = plan.fitted(budget or Budget())
        _check_room(short, short.window(rate, seed))
    return plan


def _check_room(plan: KvPlan, window: WindowPlan) -> None:
    """Check that the chunks of a window have room, also in memory. Raises UsageError."""
    needed, free = memory_bytes(plan.scenario, window), buffers.available()
    if needed > free:
        raise UsageError(
            f"the chunks that a window finds in memory take {format_bytes(needed)}, and "
            f"{format_bytes(free)} are available",
            remedy="use fewer layers (--set layers=1), less dram, or --set memory=modelled",
        )
    check_room(
        plan.to,
        window.most * plan.scenario.chunk_bytes,
        "the chunks of a window take",
        "use fewer layers (--set layers=1), a lower --rate or a shorter --duration",
    )


def run_kv(
    plan: KvPlan, options: VerbOptions, *, observer: Observer | None = None
) -> tuple[KvCacheRecord, Path]:
    """Run the plan; return the concluded document and its directory.

    Raises TargetHeldError if another process has the place, and TargetRefusedError if it is
    somebody else's, before anything is written; InterruptedRun or the failure after the document
    was written. Of the chunks nothing stays.
    """
    plan = plan.fitted(options.budget)
    storage = open_storage(plan.to, options=plan.scenario.storage_options())
    with KV_CHUNKS.held(storage, "kv", break_lock=options.break_lock) as lease:
        run: _KvRun | None = None
        try:
            reads = _for_reads(plan, storage)
            with run_directory(options.results, plan.scenario.name) as directory:
                run = _KvRun(plan, directory, options, observer or Observer(), reads, lease)
                return run.run(), directory
        except BaseException:
            if run is None:  # one that has begun removes what it made by itself
                KV_CHUNKS.clean(storage, held=Held(lease))
            raise


def _for_reads(plan: KvPlan, storage: Storage) -> Storage:
    """The storage as chunks are read: with O_DIRECT where that is asked for and works."""
    if plan.scenario.layout == "extents" and not isinstance(storage, LocalStorage):
        raise UsageError(
            f"{storage.url} is no local or mounted file system, so chunks can't be extents of a "
            "file there",
            remedy="use --set layout=files",
        )
    asked, inner = plan.scenario.reader.direct, innermost(storage)
    works = isinstance(inner, MaybeDirect) and inner.supports_direct(KV_CHUNKS.marker)
    if asked is True and not works:
        raise UsageError(
            f"{storage.url} does not support O_DIRECT", remedy="use --set reader.direct=auto"
        )
    if asked is False or not works:
        return storage
    return open_storage(plan.to, direct=True, options=plan.scenario.storage_options())


class _KvRun(RequestsRun[KvCacheRecord]):
    """One call of ``run_kv``, whose place is held."""

    columns = KV_COLUMNS
    whole = "with all"
    plan: KvPlan

    def __init__(
        self,
        plan: KvPlan,
        directory: Path,
        options: VerbOptions,
        observer: Observer,
        storage: Storage,
        lease: Lease,
    ) -> None:
        job = KvCacheRun(
            scenario=plan.scenario,
            rate=plan.rate,
            direct=storage.traits.direct,
            engine=engine_of(plan.scenario, storage),
            price_per_hour=plan.price_per_hour,
            arrivals_together=plan.arrivals_together,
        )
        super().__init__(KvCacheRecord, job, plan, storage, directory, options, observer)
        self.doc.findings = unlocked(lease)
        self.storage, self.held = storage, Held(lease)
        self._planned: tuple[float, int, WindowPlan] | None = None

    def rates(self) -> RateSearch:
        first = self.plan.scenario.arrivals.rate or 1.0
        return RateSearch(least=2 / self.plan.seconds, most=MAX_RATE, first=first)

    def write(self, ending: Ending) -> KvCacheRecord:
        try:
            KV_CHUNKS.clean(self.storage, held=self.held)
        except IobenchError as error:
            ending.failure = ending.failure or error
        return super().write(ending)

    def _plan_of(self, rate: float, seed: int) -> WindowPlan:
        """The plan of a window, which is kept for the same one without a stage."""
        if self._planned is None or self._planned[:2] != (rate, seed):
            window = self.plan.window(rate, seed)
            _check_room(self.plan, window)
            self._planned = rate, seed, window
        return self._planned[2]

    def window(self, kind: KvTrialKind, rate: float, seed: int) -> KvTrial:
        spec, drain_s = self.plan.scenario, self.drain_s
        plain: float | None = None
        with self.budget.trial(PART):
            plan = self._plan_of(rate, seed)
            store = ChunkStore(
                spec,
                self.storage,
                plan,
                window=len(self.windows),
                held=self.held,
                without=_WITHOUT.get(kind),
            )
            try:
                before = store.prepare()
                retried_before = retried(self.storage)
                issued = issue(
                    plan.instants,
                    range(len(plan.instants)),
                    store.readers(),
                    drain_s=drain_s,
                    sequel=store,
                )
                written = store.end(drain_s)
                again = retried(self.storage).since(retried_before)
                plain = self._read_plainly(store.blocks()) if kind == "repetition" else None
            finally:
                store.remove()
        columns = _columns(plan, store, issued)
        trial = KvTrial(
            kind=kind,
            seed=seed,
            rate=rate,
            seconds=self.plan.window_s(rate),
            requests=len(plan.instants),
            bytes=issued.bytes,
            **again._asdict(),
            cpu_share=issued.cpu_s / issued.wall_s if issued.wall_s > 0 else None,
            error=str(issued.failure) if issued.failure is not None else "",
            before_bytes=before,
            plain_bytes_per_s=plain,
            held_bytes=memory_bytes(spec, plan),
            stored_share=min(1.0, plan.stored / spec.capacity_chunks),
            earlier_s=plan.earlier_s,
        )
        trial = with_kv_figures(_with_writes(trial, written, spec), columns, spec)
        self.doc.job.trials.append(trial)
        self.windows.append(columns)
        if issued.failure is not None and trial.failed == trial.requests:
            raise issued.failure
        return trial

    def _read_plainly(self, blocks: Sequence[Extent]) -> float | None:
        """Bytes/s of plain reads of chunks, with as many in flight as one request has."""
        job, storage = self.doc.job, self.storage
        if not blocks:
            return None
        places = [Place(each.key, each.offset, each.length, each.needed) for each in blocks]
        largest, uncached = max(place.length for place in places), storage.traits.uncached
        reader = HostReader(storage, max_bytes=largest, once=False, run_dir=self.directory)
        if not uncached:
            self.agent.empty_cache(sorted({place.key for place in places}))
        in_flight = min(self.plan.scenario.reader.depth, len(places))
        most = MAX_REPLAYED if uncached else len(places)
        try:
            found = reader.read(places, in_flight=in_flight, seconds=PLAIN_S, most=most)
        except StorageError as error:
            job.plain_how = f"not measured: {error.what}"
            return None
        job.plain_how = f"{reader.program}, {in_flight} reads of {format_bytes(largest)} in flight"
        return found.bytes_per_s


def _columns(plan: WindowPlan, store: ChunkStore, issued: Issued) -> RequestColumns:
    """The requests of a window, after those before it, of which only what they find is known."""

    def of(name: str) -> np.ndarray:
        return np.array([getattr(each, name) for each in plan.requests], np.int64)

    columns = {
        **issued.columns,
        "waited_ns": store.waited,
        "looked_ns": store.looked,
        "copied_ns": store.copied,
        "tokens": of("tokens"),
        "memory_tokens": of("in_memory"),
        "loaded_tokens": of("loaded"),
        "chunks": np.array([len(each.loads) for each in plan.requests], np.int64),
        "lookups": of("lookups"),
    }
    earlier = {name: np.full(len(plan.earlier), -1) for name in columns}
    earlier |= {name: np.zeros(len(plan.earlier), np.int64) for name in _NOT_TIMES}
    earlier |= dict(zip(_KNOWN_EARLIER, plan.earlier.T, strict=True))
    return {name: np.concatenate([earlier[name], each]) for name, each in columns.items()}


_NOT_TIMES = ("failed", "chunks", "lookups")

_KNOWN_EARLIER = ("intended_ns", "tokens", "memory_tokens", "loaded_tokens")


def _with_writes(trial: KvTrial, written: Written, spec: KvScenario) -> KvTrial:
    """The window with what became of its writes."""
    until_s = max(trial.seconds, written.end_s + (written.flush_s or 0.0))
    per_s = written.bytes / until_s

    def at(values: list[float], share: float) -> float | None:
        return quantile(np.array(values), share) if values else None

    return trial.model_copy(
        update={
            "chunks_written": written.chunks,
            "written_bytes": written.bytes,
            "writes_failed": written.failed,
            "writes_left": written.left,
            "write_error": str(written.failure) if written.failure is not None else "",
            "write_bytes_per_s": per_s if written.chunks else None,
            "write_p50_s": at(written.write_s, 0.5),
            "write_p99_s": at(written.write_s, 0.99),
            "behind_p99_s": at(written.behind_s, 0.99),
            "flush_s": written.flush_s,
            "chunks_deleted": written.deleted,
            "delete_p99_s": at(written.delete_s, 0.99),
            "drive_writes_per_day": per_s * 86_400 / (spec.capacity * spec.share),
        }
    )
