"""How long a model's weights take into memory: every loader and number of replicas in turns.

Each trial starts its processes anew, as a start of replicas does: they take their memory and
import what they need, wait for one another, and load at one instant. Before that the parent has
brought the page cache into the state that was asked for, and has looked at it. Afterwards, off the
clock, each process compares its tensors with what they should be. In every round the storage is
also read plainly, and loads are made without one stage, so that a drift changes all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from ..base.errors import DatasetError, IobenchError
from ..base.units import counted, format_bytes
from ..host import nfs
from ..judge.model_load import first_trials, least
from ..record.model_load import (
    LoadStage,
    LoadTrial,
    LocalCopy,
    ModelLoadRun,
    PlainReads,
)
from ..record.run import ModelLoadRecord
from ..serve.check import Checksums, expected_checksums
from ..serve.loaders import MODEL_LOADERS
from ..serve.loaders.direct import DirectLoader
from ..serve.loaders.exchange import Exchange
from ..serve.share import RankShare, Sharing
from ..serve.weights import WEIGHTS, require_room
from ..storage.base import Files
from ..storage.locks.lock import shared
from .agent import CacheState, FetchCounter, HostAgent
from .conductor import Script, Scripted, conduct
from .copied_files import CopiedFiles
from .crew import ForkedCrew
from .curve.reader import HostReader
from .facts import failures_recorded, new_directory, new_record, storage_facts
from .messages import CheckLoaded, LoadNow, PartLoaded
from .model_load_plan import LoadPlan, memory_needed, options_of
from .options import LoadOptions, VerbOptions
from .progress import Observer
from .tasks.model_load import LoadPart, ModelLoad
from .trials import rotated, rounds, take_turns

HEAD_START_NS = 5_000_000
"""From a command to the common start, so that every rank has received it by then."""

PLAIN_S = 2.0
"""How long the storage is read plainly, for each number of reads in flight of a round."""


@dataclass(kw_only=True)
class LoadVariant:
    """What is measured once a round."""

    name: str
    measure: Callable[[int], None]
    active: bool = True


class LoadPlace:
    """Where files are read from, their storage or a copy, and what this host says of it."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan, self.agent = plan, HostAgent(plan.storage)

    @cached_property
    def counter(self) -> FetchCounter:
        return self.agent.fetch_counter(self.plan.keys, direct=False)


@contextmanager
def weights_held(plan: LoadPlan, *, verb: str) -> Iterator[None]:
    """Nobody writes or removes the weights meanwhile. Raises TargetHeldError where others do."""
    if plan.weights.made is None:
        yield
        return
    with shared(plan.storage, WEIGHTS.marker, verb=verb):
        yield


def run_loads(
    plan: LoadPlan, options: LoadOptions, observer: Observer | None = None
) -> tuple[ModelLoadRecord, Path]:
    """Measure all loaders in turns; return the concluded document and its directory.

    Raises InterruptedRun or the failure after the document was written, and TargetHeldError where
    another process writes or removes the weights.
    """
    with weights_held(plan, verb="load"), CopiedFiles.claimed(plan, options.copy_to) as copy:
        directory = new_directory(options.results, f"model-load-{plan.model}")
        begun = LoadsBegun(plan, directory, options, observer or Observer(), copy)
        return begun.run(), directory


class LoadsBegun:
    """Loads of a model while they are measured.

    ``run_id``: by default the name of the directory.
    """

    def __init__(
        self,
        plan: LoadPlan,
        directory: Path,
        options: VerbOptions,
        observer: Observer,
        copy: CopiedFiles | None = None,
        *,
        run_id: str = "",
    ) -> None:
        self.plan, self.directory, self.observer, self.copy = plan, directory, observer, copy
        self.budget = options.budget
        self.origin = LoadPlace(plan)
        self.job = ModelLoadRun(
            model=plan.model,
            location=plan.location,
            bytes=plan.weights.nbytes,
            tensors=len(plan.weights.tensors),
            shards=len(plan.weights.shards),
            classes=plan.classes(),
            spec=plan.spec,
            budget_s=self.budget.seconds,
            copied=LocalCopy(to=copy.url) if copy else None,
        )
        self.doc = new_record(
            ModelLoadRecord,
            run_id or directory.name,
            options.command,
            rules=options.rules,
            hosts=self.origin.agent.describe_all(),
            storage=storage_facts(plan.storage),
            job=self.job,
        )
        self.checksums: list[Checksums] = []  # by the rank of a replica
        self.whole: Checksums = {}  # of a rank that has the whole model
        self.variants: list[LoadVariant] = []
        self.failure: IobenchError | None = None  # the first one of a variant

    def run(self) -> ModelLoadRecord:
        doc = self.doc
        with failures_recorded(doc, self.directory) as ending:
            self.prepare()
            self.variants = self._variants()
            take_turns(
                self.variants,
                self._measure,
                rounds(self.plan.spec.repetitions),
                order=self._order,
                is_active=lambda variant: variant.active,
                fail=self._fail,
            )
            if not first_trials(self.job) and self.failure is not None:
                raise self.failure
        return ending.write(doc, self.directory)

    def prepare(self) -> None:
        """Learn what the tensors must hold, and how the bytes of the storage are counted."""
        plan, spec = self.plan, self.plan.spec
        self.observer.phase(f"checksums of {counted(len(plan.weights.tensors), 'tensor')}")

        def expected(share: RankShare) -> Checksums:
            return expected_checksums(plan.direct, plan.weights, share)

        self.whole = expected(RankShare())
        self.checksums = [self.whole] * spec.tensor_parallel
        if spec.share == "sliced":
            ranks = range(spec.tensor_parallel)
            shares = [RankShare("sliced", rank, spec.tensor_parallel) for rank in ranks]
            self.checksums = [expected(share) for share in shares]

    def repetition(self, number: int) -> LoadTrial:
        """One load by the first loader with the fewest replicas. Raises IobenchError."""
        self._trial(self.plan.spec.loaders[0], least(self.job), number)
        return first_trials(self.job)[-1]

    # What is measured in a round

    def _variants(self) -> list[LoadVariant]:
        """All of them. The ablations are made with the fewest replicas."""
        spec, counts = self.plan.spec, sorted(self.plan.spec.replicas)
        found = [self._variant(loader, count) for count in counts for loader in spec.loaders]
        found += [
            self._variant(loader, count, one_read=True)
            for count in counts[1:]
            for loader in spec.loaders
            if "exchange" in MODEL_LOADERS.load(loader).sharing
        ]
        found.append(self._variant(DirectLoader.name, counts[0], without="assembly"))
        if spec.device != "cpu":
            found += [
                self._variant(loader, counts[0], without="device")
                for loader in spec.loaders
                if "device" in MODEL_LOADERS.load(loader).can_leave_out
            ]
        for count in counts:
            measure = partial(self._read_plainly, count)
            found.append(LoadVariant(name=f"plain reads, {count} x", measure=measure))
        if self.copy is not None:
            place = LoadPlace(self.plan.at(self.copy.url))
            measure = partial(self._from_copy, self.copy, place)
            found.append(LoadVariant(name=f"copy to {self.copy.url}", measure=measure))
        return found

    def _variant(
        self,
        loader: str,
        count: int,
        *,
        without: LoadStage | None = None,
        one_read: bool = False,
    ) -> LoadVariant:
        more = f" without {without}" if without else ", one read" if one_read else ""
        measure = partial(self._trial, loader, count, without=without, one_read=one_read)
        return LoadVariant(name=f"{loader}, {counted(count, 'replica')}{more}", measure=measure)

    def _order(self, number: int, active: Sequence[LoadVariant]) -> Iterable[LoadVariant]:
        """In turns, as far as there is time: the first trial is always made."""
        for variant in rotated(number, active):
            expected = self.budget.mean_s(variant.name)
            if expected is None:
                expected = self.budget.longest_s("trial")
            if self.job.trials and not self.budget.fits(expected):
                if not self.budget.trials(variant.name):
                    self.job.left_out[variant.name] = "there was no time for it"
                continue
            yield variant

    def _measure(self, variant: LoadVariant, number: int) -> None:
        of = self.plan.spec.repetitions
        self.observer.phase(f"round {number + 1} of {of}: {variant.name}")
        began = time.monotonic()
        with self.budget.trial(variant.name):
            variant.measure(number)
        took = time.monotonic() - began
        self.budget.took("trial", took)
        self.doc.timings["measure"] = self.budget.spent_s("trial")
        left = of * len(self.variants) - self.budget.trials("trial")
        self.observer.expect(left * (self.budget.mean_s("trial") or 0.0))

    def _fail(self, variant: LoadVariant, error: IobenchError) -> None:
        """A variant that can't be measured is left out; wrong tensors end the run."""
        if isinstance(error, DatasetError):
            raise error
        self.failure = self.failure or error
        variant.active = False
        self.job.left_out[variant.name] = str(error)

    # One trial

    def _trial(
        self,
        loader: str,
        count: int,
        number: int,
        *,
        without: LoadStage | None = None,
        one_read: bool = False,
        copied: tuple[LoadPlace, float] | None = None,
    ) -> None:
        """Start the processes of ``count`` replicas, load, and record it.

        With the fewest replicas, they load once more without the storage: what the load before has
        read is still there, in the loader's memory or in the page cache. ``copied``: they load from
        a copy, which took so many seconds.
        """
        place, kind = copied[0] if copied else self.origin, MODEL_LOADERS.load(loader)
        base = LoadTrial(
            round=number,
            loader="" if without == "assembly" else loader,
            replicas=count,
            left_out=without,
            one_read=one_read,
            copy_s=copied[1] if copied else None,
            buffered=kind.buffered and isinstance(place.plan.storage, Files),
            ready_s=0.0,
            first_ready_s=0.0,
        )
        again = count == least(self.job) and (without, one_read, copied) == (None, False, None)
        needed = memory_needed(self.plan.spec, self.plan.weights, loader, count, one_read=one_read)
        require_room(needed, f"{counted(count, 'replica')} by {loader}")
        with self._parts(place.plan, loader, count, one_read=one_read) as parts:
            task = ModelLoad(parts.__getitem__)
            conduct(ForkedCrew(len(parts), task), Scripted(self._script(place, base, again=again)))

    def _script(self, place: LoadPlace, base: LoadTrial, *, again: bool) -> Script:
        keys, agent, counter = self.plan.keys, place.agent, place.counter
        cold = self.plan.spec.state == "cold"
        before = agent.empty_cache(keys) if cold else agent.fill_cache(keys)
        mount = agent.mount_counters()
        points = yield lambda: LoadNow(time.monotonic_ns() + HEAD_START_NS, base.left_out)
        used = nfs.diff(mount, agent.mount_counters())
        after = agent.cache_state(keys)
        trial = _recorded(base, points, before, after)
        trial.fetched_how = counter.how
        if counter.by != "processes":
            trial.fetched_bytes = used.read_bytes if used is not None else None
        if base.left_out is None:
            yield CheckLoaded
        self.job.trials.append(trial)
        if not again:
            return
        keeps = "storage" in MODEL_LOADERS.load(base.loader).can_leave_out
        if keeps or (base.buffered and after.ratio == 1):
            stage: LoadStage | None = "storage" if keeps else None
            points = yield lambda: LoadNow(time.monotonic_ns() + HEAD_START_NS, stage)
            left_out = base.model_copy(update={"left_out": "storage"})
            self.job.trials.append(_recorded(left_out, points, after, after))

    @contextmanager
    def _parts(
        self, plan: LoadPlan, loader: str, count: int, *, one_read: bool
    ) -> Iterator[list[LoadPart]]:
        """What each rank of the replicas loads; where they exchange, they meet in shared memory."""
        spec = plan.spec
        of_replica = spec.tensor_parallel
        world = count * of_replica
        meeting = world if one_read else of_replica  # ranks that exchange with each other
        how: Sharing = "exchange" if one_read else spec.share
        with ExitStack() as held:
            found: list[LoadPart] = []
            exchange: Exchange | None = None
            for rank in range(world):
                if how == "exchange" and rank % meeting == 0:
                    exchange = Exchange(plan.weights, meeting)
                    held.callback(exchange.close)
                whole = how != "sliced"
                found.append(
                    LoadPart(
                        storage=plan.read_by(loader),
                        weights=plan.weights,
                        share=RankShare(how, rank % meeting, meeting),
                        loader=loader,
                        checksums=self.whole if whole else self.checksums[rank % of_replica],
                        options=options_of(spec, loader),
                        device=spec.device,
                        exchange=exchange,
                    )
                )
            yield found

    def _from_copy(self, copy: CopiedFiles, place: LoadPlace, number: int) -> None:
        """Copy the files, and load from there."""
        took = copy.make()
        self._trial(self.plan.spec.loaders[0], least(self.job), number, copied=(place, took))

    def _read_plainly(self, count: int, number: int) -> None:
        """Read the files with as many reads in flight as so many replicas have."""
        plan = self.plan
        places, in_flight = plan.plain_reads(count, seed=number)
        reader = HostReader(
            plan.direct, max_bytes=places.max_bytes, once=False, run_dir=self.directory
        )
        if not plan.direct.traits.uncached:
            self.origin.agent.empty_cache(plan.keys)
        taken = places.take(len(places), enough=1).places
        found = reader.read(taken, in_flight=in_flight, seconds=PLAIN_S, most=len(taken))
        self.job.plain.append(
            PlainReads(
                round=number, replicas=count, in_flight=in_flight, bytes_per_s=found.bytes_per_s
            )
        )
        self.job.plain_how = f"{reader.program}, reads of {format_bytes(places.max_bytes)}"


def _recorded(
    base: LoadTrial, points: Sequence[object], before: CacheState, after: CacheState
) -> LoadTrial:
    """The trial with what its ranks reported."""
    parts = [point for point in points if isinstance(point, PartLoaded)]
    memory = [part.peak_memory_bytes for part in parts if part.peak_memory_bytes is not None]
    names = sorted({name for part in parts for name in part.class_s})
    return base.model_copy(
        update={
            "ready_s": max(part.ready_s for part in parts),
            "first_ready_s": min(part.ready_s for part in parts),
            "late_s": max(part.late_s for part in parts),
            "read_bytes": _sum(part.bytes_read for part in parts),
            "fetched_bytes": _sum(part.fetched for part in parts),
            "cpu_s": sum(part.cpu_s for part in parts),
            "peak_memory_bytes": max(memory, default=None),
            "residency_before": before.ratio,
            "residency_after": after.ratio,
            "residency_how": before.how,
            "class_s": {name: max(part.class_s.get(name, 0.0) for part in parts) for name in names},
        }
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)
