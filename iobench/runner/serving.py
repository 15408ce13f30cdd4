"""A serving run: requests for samples, or of searches, with storage and in turns without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..base.errors import StorageError
from ..host.tables import RequestColumns
from ..judge.figures.requests import SUMMARISED, Accelerators, with_served_figures
from ..judge.statistics import mean_interval
from ..record.run import ServingRecord
from ..record.serving import SERVED_COLUMNS, IndexFacts, ServedTrial, ServingRun, TrialKind
from ..record.training import Epoch
from ..serve.arrivals import Arrivals, Instants
from ..serve.client import Issued
from ..serve.lance import LanceIndex, LanceSearches, check_vectors
from ..serve.logs import Log, Logged, LogPlace, log_place
from ..serve.sample import SampleReaders
from ..serve.walk import UNKNOWN_RECALL, Searches, check_index
from ..settings.scenario import Scenario
from ..storage import open_storage
from ..storage.base import Storage, retried
from ..storage.locks.lock import reading
from .budget import Budget
from .cache import Others, prepare_cache
from .calibration.bench import MAX_COPY_BYTES, choose_shards, copy_to_memory
from .checkpoint import unlocked
from .options import Observer, VerbOptions
from .plan import Plan, check_room, make_plan
from .requests import FIRST_RATE, MAX_RATE, PART, RateSearch, RequestsPlan, RequestsRun, asked_rate
from .results import (
    Ending,
    add_changes,
    dataset_facts,
    location_of,
    run_directory,
    shard_versions,
    storage_facts,
)
from .trials import WARM_UP, seed_of

FRESH = 0.1
"""Share of the nodes of an index that the searches of a cold window may read, where the page cache
could serve a second read: few are read twice then."""


@dataclass(frozen=True, kw_only=True)
class ServingPlan(RequestsPlan):
    """A serving run with all decisions made."""

    scenario: Scenario
    plan: Plan

    @property
    def kinds(self) -> Sequence[TrialKind]:
        found: list[TrialKind] = ["repetition", "without-storage"]
        return found if self.scenario.log.to is None else [*found, "without-log"]

    @property
    def most(self) -> int | None:
        """Requests of a cold window: one of each sample where the page cache may serve a second."""
        if self.scenario.cache != "cold" or self.plan.uncached or self.scenario.engine is not None:
            return None
        samples, walk = self.plan.manifest.sample_count, self.scenario.walk
        return samples if walk is None else max(1, int(FRESH * samples / walk.reads))


def make_serving_plan(
    scenario: Scenario,
    data: str,
    *,
    find_max: bool = False,
    repetitions: int = 5,
    seed: int = 42,
    origin: str | None = None,
    budget: Budget | None = None,
) -> ServingPlan:
    """Check that data, scenario and rate fit.

    ``budget``: to which the windows are shortened, and with them the log that has to have room.
    Raises UsageError, also where no rate is known and none is to be found; DatasetError as
    ``make_plan``.
    """
    arrivals = Arrivals(scenario.arrivals)
    rate = asked_rate(
        scenario,
        arrivals,
        find_max=find_max,
        other="; where several runs are compared, set arrivals.rate",
    )
    workload = scenario.workload()
    plan = make_plan(
        workload, data, accelerators=1, repetitions=repetitions, seed=seed, origin=origin
    )
    if scenario.walk is not None:
        check_index(plan.manifest)
    if scenario.engine is not None:
        check_vectors(plan.manifest, plan.home, scenario.engine)
    serving = ServingPlan(
        scenario=scenario,
        plan=plan,
        arrivals=arrivals,
        rate=rate,
        repetitions=repetitions,
        seed=seed,
    )
    if rate is None:
        return serving
    seconds = serving.fitted(budget or Budget()).seconds
    arrivals.window(rate, seconds, seed)  # refuses what no record holds
    if scenario.log.to is not None:
        each = scenario.log.record + plan.manifest.mean_stored_bytes * scenario.log.inputs
        check_room(
            scenario.log.to,
            rate * seconds * each,
            "the log of a window takes",
            "use a smaller log.record, a lower --rate or a shorter --duration",
        )
    return serving


def run_serving(
    plan: ServingPlan, options: VerbOptions, *, observer: Observer | None = None
) -> tuple[ServingRecord, Path]:
    """Run the plan; return the concluded document and its directory.

    Raises TargetHeldError if another process writes the dataset or to the place of the log, and
    TargetRefusedError if that is somebody else's, before anything is written; InterruptedRun or the
    failure after the document was written. Of the log nothing stays.
    """
    plan = plan.fitted(options.budget)
    inner = plan.plan
    with (
        reading(inner.home, inner.manifest, verb="serve", break_dead=options.break_lock) as lease,
        log_place(plan.scenario.log, "serve", break_lock=options.break_lock) as log,
        run_directory(options.results, plan.scenario.name) as directory,
    ):
        begun = ServingBegun(plan, directory, options, observer or Observer(), Others(lease), log)
        return begun.run(), directory


class ServingBegun(RequestsRun[ServingRecord]):
    """A serving run while it is measured: its dataset and the place of its log are held."""

    columns = SERVED_COLUMNS
    whole = "with storage"
    plan: ServingPlan

    def __init__(
        self,
        plan: ServingPlan,
        directory: Path,
        options: VerbOptions,
        observer: Observer,
        others: Others,
        log: LogPlace | None,
        *,
        run_id: str = "",
    ) -> None:
        inner, to = plan.plan, plan.scenario.log.to
        job = ServingRun(
            scenario=plan.scenario,
            dataset=dataset_facts(inner.manifest, location=location_of(inner), origin=inner.origin),
            rate=plan.rate,
            direct=inner.direct and plan.scenario.engine is None,
            log=None if to is None else storage_facts(open_storage(to)),
            not_measured={"recall": UNKNOWN_RECALL} if plan.scenario.walk is not None else {},
            arrivals_together=plan.arrivals_together,
        )
        super().__init__(
            ServingRecord, job, plan, inner.storage, directory, options, observer, run_id=run_id
        )
        self.others = others
        self.versions: dict[str, str] | str = ""
        self.index: LanceIndex | None = None
        self.copies: tuple[Storage, np.ndarray] | None = None
        self.use_log(log)

    def use_log(self, log: LogPlace | None) -> None:
        """Write logs there from now on, if anywhere."""
        self.log = log
        found = [] if log is None else unlocked(log.lease)
        self.doc.findings += [each for each in found if each not in self.doc.findings]

    def begin(self) -> None:
        self.prepare("")
        self._curve()

    def rates(self) -> RateSearch:
        most = min(MAX_RATE, self.plan.scenario.most_per_s)
        return RateSearch(least=2 / self.plan.seconds, most=most, first=FIRST_RATE)

    def repeat(self, rate: float) -> None:
        if self.index is None:
            self.copies = self._copies()
        super().repeat(rate)

    def write(self, ending: Ending) -> ServingRecord:
        if ending.failure is None:
            add_changes(self.doc, self.plan.plan, self.versions)
        self.doc.findings += self.others.findings()
        return super().write(ending)

    # One repetition after the other, see ``Repeated``

    def prepare(self, title: str) -> None:
        self.versions = shard_versions(self.plan.plan)
        self._open_index()

    def warm_up(self) -> None:
        self.measure(WARM_UP)
        self.doc.job.trials.clear()
        self.windows.clear()

    def measure(self, number: int) -> None:
        assert self.rate is not None
        # Runs that take turns may name one place for their logs.
        spec = self.plan.scenario.log
        with log_place(spec, "serve", break_lock=self.break_lock) as log:
            self.use_log(log)
            self.last = self.window("repetition", self.rate, self.seed(number))

    def figures(self) -> Mapping[str, float]:
        found = {name: getattr(self.last, name) for name in SUMMARISED}
        return {name: float(value) for name, value in found.items() if value is not None}

    def end(self, *, stopped: bool) -> ServingRecord:
        return self.write(Ending())

    def _open_index(self) -> None:
        """The index of a real engine, which is built if there is none."""
        spec = self.plan.scenario.engine
        if spec is None or self.index is not None:
            return
        inner = self.plan.plan
        self.index = LanceIndex.of(
            inner.manifest, inner.home, spec, lambda: self.observer.phase("building the index")
        )
        layout = self.index.layout
        self.doc.job.index = IndexFacts(
            package=layout.package,
            bytes=layout.bytes,
            built_s=layout.seconds if self.index.built else None,
        )

    def _curve(self) -> None:
        """Recall of the engine, and what it costs, at each setting of the curve."""
        if self.index is None:
            return
        spec = self.index.spec
        for number, (nprobes, refine) in enumerate(spec.curve):
            part = f"recall with {nprobes} of {spec.partitions} partitions, refined {refine} x"
            self.observer.phase(f"{part}, {number + 1} of {len(spec.curve)}")
            self._point(self.index, number, nprobes, refine)

    def _point(self, index: LanceIndex, number: int, nprobes: int, refine: int) -> None:
        """A point of the curve: fresh queries, each of which follows another one."""
        spec, seed = index.spec, seed_of(self.plan.seed, "recall", number)
        in_flight = min(self.plan.scenario.reader.concurrency, spec.queries)
        with (
            self.budget.trial("recall"),
            closing(index.searches(seed, spec.queries, in_flight, nprobes, refine)) as searches,
        ):
            state = Epoch(epoch=number)

            def prepare() -> None:
                nonlocal state
                state = self._prepared_index(index, number, warm=False)

            instants = np.zeros(spec.queries, np.int64)
            issued = searches.issue(
                instants, np.arange(spec.queries), drain_s=3600.0, prepare=prepare
            )
            if issued.failure is not None:
                raise issued.failure
            shares = index.recall(searches)
        low, high = mean_interval(shares)
        self._keep(
            ServedTrial(
                kind="recall",
                seed=seed,
                rate=0.0,
                seconds=1e-6,
                requests=spec.queries,
                bytes=issued.bytes,
                nprobes=nprobes,
                refine=refine,
                recall=float(np.mean(shares)),
                recall_low=max(0.0, low),
                recall_high=min(1.0, high),
                residency_before=state.residency_before,
                residency_how=state.residency_how,
            ),
            {
                **issued.columns,
                "intended_ns": issued.issued_ns,
                "logged_ns": np.full(spec.queries, -1),
            },
        )

    def _prepared_index(self, index: LanceIndex, epoch: int, *, warm: bool) -> Epoch:
        """The files of the index, dropped from the page cache or read into it, as is asked for."""
        keys, cache = [*index.keys, *self.plan.plan.keys], self.plan.scenario.cache
        if warm or cache == "warm":
            state = self.agent.fill_cache(index.keys)
        else:
            state = self.agent.cache("empty" if cache == "cold" else "state", keys)
        return Epoch(epoch=epoch, residency_before=state.ratio, residency_how=state.how)

    def _copies(self) -> tuple[Storage, np.ndarray]:
        """Some shards in memory, and the numbers of the samples in them."""
        self.observer.phase("copying samples to memory")
        inner = self.plan.plan
        shards = choose_shards(inner, MAX_COPY_BYTES // 8)
        storage, _ = copy_to_memory(inner, shards)
        firsts, counts = (inner.manifest.shards[name][shards] for name in ("first", "samples"))
        ranges = zip(firsts.tolist(), counts.tolist(), strict=True)
        samples = np.concatenate([np.arange(first, first + count) for first, count in ranges])
        return storage, samples

    def window(self, kind: TrialKind, rate: float, seed: int) -> ServedTrial:
        plan, inner = self.plan, self.plan.plan
        copies = self.copies if kind == "without-storage" else None
        with self.budget.trial(PART):
            self.others.look()
            instants = plan.arrivals.window(rate, plan.seconds, seed, plan.most)
            asked = seed
            if self.index is not None and kind == "without-storage":
                asked = seed_of(seed, "pilot")  # queries that the engine has not had
            samples, sizes, readers = self._readers(len(instants), asked, copies)
            state = Epoch(epoch=len(self.windows), residency_how="the bytes come from memory")

            def prepare() -> None:
                nonlocal state
                if self.index is not None:
                    warm = kind == "without-storage"
                    state = self._prepared_index(self.index, state.epoch, warm=warm)
                elif copies is None:
                    state = prepare_cache(inner, self.agent, state.epoch)

            with closing(readers):
                log = self._log(sizes) if kind != "without-log" else None
                before = retried(inner.storage)
                issued, logged = self._issue(readers, instants, samples, prepare, log)
                again = retried(inner.storage).since(before)
        seconds = plan.seconds
        if len(instants) == plan.most:  # the samples are used up before the time is
            seconds = max(1e-6, int(instants[-1]) / 1e9)
        trial = ServedTrial(
            kind=kind,
            seed=seed,
            rate=rate,
            seconds=seconds,
            requests=len(instants),
            bytes=issued.bytes,
            **again._asdict(),
            reads=readers.reads,
            cpu_share=self._cpu_share(issued),
            residency_before=state.residency_before,
            residency_how=state.residency_how,
            error=str(issued.failure) if issued.failure is not None else "",
        )
        if logged is not None:
            trial = trial.model_copy(
                update={
                    "logged": True,
                    "log_bytes": logged.bytes,
                    "log_commits": logged.commits,
                    "log_objects": logged.objects,
                    "log_at_risk": logged.at_risk,
                    "log_volatile": logged.volatile,
                }
            )
        columns: RequestColumns = {
            **issued.columns,
            "logged_ns": np.full(len(instants), -1) if logged is None else logged.logged_ns,
        }
        trial = self._keep(trial, columns)
        if issued.failure is not None and trial.failed == trial.requests:
            raise issued.failure
        return trial

    def _cpu_share(self, issued: Issued) -> float | None:
        """Of one core, by what issues requests; an engine computes in the same process."""
        known = issued.wall_s > 0 and self.index is None
        return issued.cpu_s / issued.wall_s if known else None

    def _keep(self, trial: ServedTrial, columns: RequestColumns) -> ServedTrial:
        trial = with_served_figures(trial, columns, self.plan.scenario)
        self.doc.job.trials.append(trial)
        self.windows.append(columns)
        return trial

    def _readers(
        self, count: int, seed: int, copies: tuple[Storage, np.ndarray] | None
    ) -> tuple[np.ndarray, np.ndarray, SampleReaders | Searches | LanceSearches]:
        """What so many requests ask for, the stored bytes of each, and the readers.

        They ask for samples by their numbers, or, of an index, with random queries.
        """
        inner, scenario = self.plan.plan, self.plan.scenario
        manifest, spec = inner.manifest, inner.workload.reader
        storage = inner.storage if copies is None else copies[0]
        most = min(scenario.reader.concurrency, max(1, count))
        if self.index is not None:
            nprobes, refine = self.index.spec.nprobes, self.index.spec.refine
            engine = self.index.searches(seed, count, most, nprobes, refine)
            return np.arange(count), np.zeros(count, np.int64), engine
        if scenario.walk is not None:
            queries = np.random.default_rng(seed).integers(1 << 62, size=count)
            nodes = None if copies is None else copies[1]
            searches = Searches(manifest, storage, scenario.walk, most, nodes)
            return queries, np.zeros(count, np.int64), searches
        samples = _drawn(manifest.sample_count, count, seed)
        if copies is not None:
            samples = copies[1][samples % len(copies[1])]
        sizes = manifest.samples["stored"][samples]
        largest = int(sizes.max()) if count else 0
        return samples, sizes, SampleReaders(manifest, storage, spec, most, largest)

    def _log(self, stored: np.ndarray) -> Log | None:
        """A log for the requests of a window, whose samples have these sizes."""
        if self.log is None:
            return None
        scenario = self.plan.scenario
        sizes = scenario.log.record + (stored if scenario.log.inputs else np.zeros_like(stored))
        steps = Accelerators(
            servers=scenario.accelerators,
            batch_size=scenario.batch_size,
            batch_delay=scenario.batch_delay * 1e9,
            step=scenario.step_time * 1e9,
        )
        return Log(
            scenario.log,
            self.log.storage,
            window=len(self.windows),
            sizes=sizes.tolist(),
            steps=steps,
            seconds=self.plan.seconds,
        )

    def _issue(
        self,
        readers: SampleReaders | Searches | LanceSearches,
        instants: Instants,
        samples: np.ndarray,
        prepare: Callable[[], None],
        log: Log | None,
    ) -> tuple[Issued, Logged | None]:
        """Issue the requests of a window, and write their records."""
        drain_s, place = self.drain_s, self.log
        try:
            issued = readers.issue(instants, samples, drain_s=drain_s, prepare=prepare, sequel=log)
            return issued, log.end(drain_s) if log is not None else None
        finally:
            if log is not None and place is not None:
                with suppress(StorageError):  # what stays is removed at the end, or told then
                    log.remove(place.held)


def _drawn(samples: int, count: int, seed: int) -> np.ndarray:
    """The samples of so many requests, in random order: each once before any comes again."""
    generator = np.random.default_rng(seed)
    few = min(samples, count)
    drawn = generator.choice(samples, few, replace=False)
    return np.resize(drawn, count)
