"""How long a model's weights take into memory: every loader and number of replicas in turns.

Each trial starts its processes anew, as a start of replicas does: they take their memory and
import what they need, wait for one another, and load at one instant. Before that the parent has
brought the page cache into the state that was asked for, and has looked at it. Afterwards, off the
clock, each process compares its tensors with what they should be. In every round the storage is
also read plainly, and loads are made without one stage, so that a drift changes all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from ..base.errors import DatasetError, IobenchError, StorageError, WorkerError
from ..base.units import counted, format_bytes
from ..host import nfs
from ..judge.model_load import MEASURED, first_trials, least, value_of
from ..judge.statistics import of_all
from ..record.model_load import HostLoad, LoadStage, LoadTrial, LocalCopy, ModelLoadRun, PlainReads
from ..record.run import ModelLoadRecord
from ..serve.loaders import MODEL_LOADERS
from ..serve.loaders.direct import DirectLoader
from ..serve.weights import WEIGHTS
from ..storage.base import Files
from ..storage.locks.lock import shared
from .agent import CacheState, FetchCounter, HostAgent
from .conductor import Script, Scripted, conduct
from .hosts.hosts import Hosts
from .messages import CheckLoaded, LoadNow, PartLoaded
from .model_load_plan import CopiedFiles, LoadPlan
from .options import LoadOptions, Observer, VerbOptions
from .results import (
    Ending,
    changes_since,
    failures_recorded,
    new_record,
    run_directory,
    storage_facts,
    versions_of,
)
from .tasks.model_load import LoadOrder, LoadParts
from .trials import WARM_UP, rotated, rounds, take_turns

MAX_FAILED = 2
"""After so many failures one after the other a variant is measured no more: one is an accident."""

HEAD_START_NS = 5_000_000
"""From a command to the common start, so that every rank has received it by then."""

PLAIN_S = 2.0
"""How long the storage is read plainly, for each number of reads in flight of a round."""

MORE = 4
"""So many times as many reads in flight show what a storage that answers late still has."""


@dataclass(kw_only=True)
class LoadVariant:
    """What is measured once a round.

    ``round``: the last one that was begun. ``failed``: in so many, one after the other.
    """

    name: str
    measure: Callable[[int], None]
    active: bool = True
    round: int = 0
    failed: int = 0


class LoadPlace:
    """Where files are read from, their storage or a copy, and what the hosts say of it."""

    def __init__(self, parts: LoadParts, agent: HostAgent) -> None:
        self.parts, self.agent = parts, agent

    @property
    def plan(self) -> LoadPlan:
        return self.parts.plan

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
    plan: LoadPlan,
    options: LoadOptions,
    observer: Observer | None = None,
    hosts: Hosts | None = None,
) -> tuple[ModelLoadRecord, Path]:
    """Measure all loaders in turns; return the concluded document and its directory.

    ``hosts``: on each of which the replicas start; by default this one.

    Raises InterruptedRun or the failure after the document was written, and TargetHeldError where
    another process writes or removes the weights.
    """
    hosts = hosts or Hosts()
    if options.copy_to is not None:
        hosts.only_one(
            "whether a copy pays",
            "leave out --copy-to, or start it on one host (--hosts here)",
        )
    with (
        weights_held(plan, verb="load"),
        CopiedFiles.claimed(plan, options.copy_to) as copy,
        run_directory(options.results, f"model-load-{plan.model}") as directory,
    ):
        begun = LoadsBegun(plan, directory, options, observer or Observer(), copy, hosts)
        return begun.run(), directory


@dataclass
class LoadsBegun:
    """Loads of a model while they are measured.

    ``run_id``: by default the name of the directory. ``failure``: the first one of a variant.
    """

    plan: LoadPlan
    directory: Path
    options: VerbOptions
    observer: Observer
    copy: CopiedFiles | None = None
    hosts: Hosts = field(default_factory=Hosts)
    run_id: str = ""
    variants: list[LoadVariant] = field(default_factory=list)
    versions: dict[str, str] | str = ""
    failure: IobenchError | None = None

    def __post_init__(self) -> None:
        plan, options, copy = self.plan, self.options, self.copy
        self.budget = options.budget
        self.origin = LoadPlace(LoadParts(plan), self.hosts.agent(plan.storage))
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
            self.run_id or self.directory.name,
            options.command,
            rules=options.rules,
            hosts=self.origin.agent.describe_all(),
            storage=storage_facts(plan.storage),
            job=self.job,
        )

    def run(self) -> ModelLoadRecord:
        doc = self.doc
        with failures_recorded(doc) as ending:
            self.hosts.begin(doc, self._ranks(least(self.job)))
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
            self._add_changes()
        self.hosts.end(doc, self._ranks(least(self.job)))
        return ending.write(doc, self.directory)

    def _ranks(self, replicas: int) -> int:
        """Of all hosts."""
        return replicas * self.plan.spec.tensor_parallel * self.hosts.count

    # One repetition after the other, see ``Repeated``

    def prepare(self, title: str = "") -> None:
        """Learn on all hosts what the tensors must hold."""
        self.versions = self._versions()
        self.observer.phase(f"checksums of {counted(len(self.plan.weights.tensors), 'tensor')}")
        self.origin.parts.prepare()
        self.hosts.prepare()

    def warm_up(self) -> None:
        self.measure(WARM_UP)
        self.job.trials.clear()

    def measure(self, number: int) -> None:
        """One load by the first loader with the fewest replicas. Raises IobenchError."""
        self._trial(self.plan.spec.loaders[0], least(self.job), number)
        self.last = first_trials(self.job)[-1]

    def figures(self) -> Mapping[str, float]:
        found = {each.name: value_of(self.job, self.last, each) for each in MEASURED}
        return {name: float(value) for name, value in found.items() if value is not None}

    def end(self, *, stopped: bool) -> ModelLoadRecord:
        made = len({each.round for each in self.job.trials})
        self.job.spec = self.job.spec.model_copy(update={"repetitions": made})
        if not stopped:
            self._add_changes()
        return Ending().write(self.doc, self.directory)

    def _versions(self) -> dict[str, str] | str:
        return versions_of(self.plan.keys, self.plan.storage)

    def _add_changes(self) -> None:
        for name, value in changes_since(self.versions, self._versions).items():
            setattr(self.job, name, value)

    # What is measured in a round

    def _variants(self) -> list[LoadVariant]:
        """All of them. The ablations, and loads of one host alone, have the fewest replicas."""
        spec, counts = self.plan.spec, sorted(self.plan.spec.replicas)
        found = [self._variant(loader, count) for count in counts for loader in spec.loaders]
        if self.job.hosts:
            found += [self._variant(loader, counts[0], alone=True) for loader in spec.loaders]
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
        if spec.state == "cold" and self._can_read_more(counts[0]):
            measure = partial(self._read_plainly, counts[0], more=MORE)
            found.append(LoadVariant(name=f"plain reads, {MORE} x in flight", measure=measure))
        if self.copy is not None:
            there = self.origin.parts.at(self.plan.at(self.copy.url))
            place = LoadPlace(there, HostAgent(there.plan.storage))
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
        alone: bool = False,
    ) -> LoadVariant:
        more = f" without {without}" if without else ", one read" if one_read else ""
        more += " on one host" if alone else ""
        measure = partial(
            self._trial, loader, count, without=without, one_read=one_read, alone=alone
        )
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
        began, variant.round = time.monotonic(), number
        with self.budget.trial(variant.name):
            variant.measure(number)
        variant.failed = 0
        took = time.monotonic() - began
        self.budget.took("trial", took)
        self.doc.timings["measure"] = self.budget.spent_s("trial")
        left = of * len(self.variants) - self.budget.trials("trial")
        self.observer.expect(left * (self.budget.mean_s("trial") or 0.0))

    def _fail(self, variant: LoadVariant, error: IobenchError) -> None:
        """One that can't be measured, or fails again, is left out; wrong tensors end the run."""
        if isinstance(error, DatasetError):
            raise error
        self.failure = self.failure or error
        if not isinstance(error, StorageError | WorkerError):
            variant.active, self.job.left_out[variant.name] = False, str(error)
            return
        self.job.failed[f"{variant.name} (round {variant.round + 1})"] = str(error)
        variant.failed += 1
        variant.active = variant.failed < MAX_FAILED

    # One trial

    def _trial(
        self,
        loader: str,
        count: int,
        number: int,
        *,
        without: LoadStage | None = None,
        one_read: bool = False,
        alone: bool = False,
        copied: tuple[LoadPlace, float] | None = None,
    ) -> None:
        """Start the processes of ``count`` replicas on each host, load, and record it.

        With the fewest replicas, they load once more without the storage: what the load before has
        read is still there, in the loader's memory or in the page cache. ``copied``: they load from
        a copy, which took so many seconds.
        """
        place, kind = copied[0] if copied else self.origin, MODEL_LOADERS.load(loader)
        base = LoadTrial(
            round=number,
            loader="" if without == "assembly" else loader,
            replicas=count,
            alone=alone,
            left_out=without,
            one_read=one_read,
            copy_s=copied[1] if copied else None,
            buffered=kind.buffered and isinstance(place.plan.storage, Files),
            ready_s=0.0,
            first_ready_s=0.0,
        )
        whole = (without, one_read, alone, copied) == (None, False, False, None)
        order = LoadOrder(loader=loader, replicas=count, one_read=one_read)
        script = self._script(place, base, again=whole and count == least(self.job))
        with self.hosts.replicas(place.parts, order, alone=alone) as crew:
            conduct(crew, Scripted(script))

    def _script(self, place: LoadPlace, base: LoadTrial, *, again: bool) -> Script:
        keys, agent, counter = self.plan.keys, place.agent, place.counter
        head_start_ns = self.hosts.head_start_ns(HEAD_START_NS)
        shares = () if base.alone else self.hosts.share(self._ranks(base.replicas))
        cold = self.plan.spec.state == "cold"
        before = agent.empty_cache(keys) if cold else agent.fill_cache(keys)
        mount = agent.mount_counters()
        points = yield lambda: LoadNow(time.monotonic_ns() + head_start_ns, base.left_out)
        used = nfs.diff(mount, agent.mount_counters())
        after = agent.cache_state(keys)
        trial = _recorded(base, points, before, after, shares)
        trial.fetched_how = counter.how
        if counter.by != "processes":
            trial.fetched_bytes = used.read_bytes if used is not None else None
        if base.left_out is None:
            yield CheckLoaded
        self.job.trials.append(trial)
        if not again:
            return
        keeps = "storage" in MODEL_LOADERS.load(base.loader).can_leave_out
        if keeps or (base.buffered and set(after.hosts or [after.ratio]) == {1}):
            stage: LoadStage | None = "storage" if keeps else None
            points = yield lambda: LoadNow(time.monotonic_ns() + head_start_ns, stage)
            left_out = base.model_copy(update={"left_out": "storage"})
            self.job.trials.append(_recorded(left_out, points, after, after, shares))

    def _from_copy(self, copy: CopiedFiles, place: LoadPlace, number: int) -> None:
        """Copy the files, and load from there."""
        took = copy.make()
        self._trial(self.plan.spec.loaders[0], least(self.job), number, copied=(place, took))

    def _can_read_more(self, count: int) -> bool:
        """Whether plain reads can have more in flight than so many replicas on each host have."""
        of_all = count * self.hosts.count
        (_, usual), (_, most) = (
            self.plan.plain_reads(of_all, seed=0, more=more) for more in (1, MORE)
        )
        return most > usual

    def _read_plainly(self, count: int, number: int, *, more: int = 1) -> None:
        """Read the files with as many reads in flight as so many replicas on each host have.

        ``more``: with so many times as many.
        """
        plan, name = self.plan, f"plain reads of {counted(count, 'replica')}"
        places, in_flight = plan.plain_reads(count * self.hosts.count, seed=number, more=more)
        places.once = False
        reader = self.hosts.reader(plan.direct, places, name=name, run_dir=self.directory)
        if not plan.direct.traits.uncached:
            self.origin.agent.empty_cache(plan.keys)
        taken = places.take(len(places), enough=1).places
        found = reader.read(taken, in_flight=in_flight, seconds=PLAIN_S, most=len(taken))
        self.job.plain.append(
            PlainReads(
                round=number,
                replicas=count,
                more=more > 1,
                in_flight=in_flight,
                bytes_per_s=found.bytes_per_s,
            )
        )
        self.job.plain_how = f"{reader.program}, reads of {format_bytes(places.max_bytes)}"


def _recorded(
    base: LoadTrial,
    points: Sequence[object],
    before: CacheState,
    after: CacheState,
    shares: Sequence[range],
) -> LoadTrial:
    """The trial with what its ranks reported. ``shares``: those of each host, if it has several."""
    parts = [point for point in points if isinstance(point, PartLoaded)]
    memory = [part.peak_memory_bytes for part in parts if part.peak_memory_bytes is not None]
    names = sorted({name for part in parts for name in part.class_s})
    hosts = [
        _measured(parts[share.start : share.stop], before.hosts[host], after.hosts[host])
        for host, share in enumerate(shares)
    ]
    return base.model_copy(
        update={
            **_measured(parts, before.ratio, after.ratio),
            "first_ready_s": min(part.ready_s for part in parts),
            "cpu_s": sum(part.cpu_s for part in parts),
            "retries": sum(part.retries for part in parts),
            "throttled": sum(part.throttled for part in parts),
            "peak_memory_bytes": max(memory, default=None),
            "residency_how": before.how,
            "class_s": {name: max(part.class_s.get(name, 0.0) for part in parts) for name in names},
            "hosts": [HostLoad.model_validate(host) for host in hosts],
        }
    )


def _measured(
    parts: Sequence[PartLoaded], before: float | None, after: float | None
) -> dict[str, float | None]:
    """What is known of a trial, and of each host in it."""
    return {
        "ready_s": max(part.ready_s for part in parts),
        "late_s": max(part.late_s for part in parts),
        "read_bytes": of_all(sum, (part.bytes_read for part in parts)),
        "fetched_bytes": of_all(sum, (part.fetched for part in parts)),
        "residency_before": before,
        "residency_after": after,
    }
