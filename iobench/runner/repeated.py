"""Repetitions of any kind of job, one at a time: what takes turns in ``ab``, and trials of sweeps.

A kind of job is a plan and what repeats it: a training loads its epochs, a server answers a window
of requests, and replicas load a model's weights by one loader. The figure by which repetitions are
compared is the headline of the kind's record.

The plan of an earlier run is made again from its record, which may come from somebody else. It may
name a directory of this host, which is only read. Any other location, the options that say how to
reach it, and what is run as code (``settings.workload``) must be given again by the user.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ..ask.compare.sequential import figures_of
from ..base.errors import DatasetError, IobenchError, UsageError, kept_in, told_after
from ..base.text import printable
from ..load.choose import make_reader
from ..record.run import ModelLoadRecord, RunRecord, ServingRecord, TrainingRecord
from ..serve.logs import log_place
from ..settings.any_workload import MODEL_LOAD, AnyWorkload, LoadSpec
from ..settings.base import apply_overrides, build
from ..settings.scenario import Scenario
from ..settings.workload import Named, Workload, check_named, check_used, code_in, code_of
from ..storage import is_local, open_storage
from ..storage.locks.lock import reading
from .cache import Others
from .estimate import Pilot, Work, demand, expected_repetition_s
from .experiment import RunBegun
from .fit import pilot_of
from .hosts.hosts import Hosts
from .model_load import LoadsBegun, weights_held
from .model_load_plan import LoadPlan, make_load_plan, one_of_each
from .options import Observer, VerbOptions
from .plan import Plan, make_plan
from .repetition import measure, repetition_phase
from .results import (
    add_changes,
    add_loader_facts,
    add_plan,
    failures_recorded,
    run_directory,
)
from .serving import ServingBegun, ServingPlan, make_serving_plan
from .trials import WARM_UP

AnyPlan = Plan | LoadPlan | ServingPlan

NO_ABLATIONS = "variants in turns leave no stage out"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be repeated, and where its data is."""

    workload: AnyWorkload
    data: str
    origin: str | None = None
    accelerators: int = 1
    seed: int = 0

    @property
    def name(self) -> str:
        """Of its workload or scenario."""
        return MODEL_LOAD if isinstance(self.workload, LoadSpec) else self.workload.name


def plan_of(asked: Asked, *, repetitions: int) -> AnyPlan:
    """Decide what each repetition does.

    Of several loaders or numbers of replicas, it has the first loader and the fewest replicas,
    whose figures are those of a run. Raises as ``make_plan`` and its like do.
    """
    work, data, seed = asked.workload, asked.data, asked.seed
    if isinstance(work, LoadSpec):
        one = one_of_each(work, open_storage(data))
        return make_load_plan(data, one.model_copy(update={"repetitions": repetitions}))
    if isinstance(work, Scenario):
        return make_serving_plan(
            work, data, repetitions=repetitions, seed=seed, origin=asked.origin
        )
    return make_plan(
        work,
        data,
        origin=asked.origin,
        accelerators=asked.accelerators,
        repetitions=repetitions,
        seed=seed,
    )


def asked_of(plan: AnyPlan) -> Asked:
    """What a plan does with which data: two plans that were asked for the same do the same.

    Loads of a model have no chance in them, and so no seed.
    """
    if isinstance(plan, LoadPlan):
        return Asked(workload=plan.spec, data=plan.url)
    workload, inner = (
        (plan.workload, plan) if isinstance(plan, Plan) else (plan.scenario, plan.plan)
    )
    return Asked(
        workload=workload,
        data=inner.data,
        origin=inner.origin,
        accelerators=inner.accelerators,
        seed=inner.seed,
    )


RECORDS: dict[type[AnyWorkload], type[RunRecord]] = {
    Workload: TrainingRecord,
    Scenario: ServingRecord,
    LoadSpec: ModelLoadRecord,
}
"""The kind of record that a run writes."""


def expected_s(plan: AnyPlan, *, fewest: bool = False) -> float | None:
    """How long a repetition takes at least; None: not known.

    ``fewest``: with no more steps than can tell the bottleneck.
    """
    if isinstance(plan, LoadPlan):
        return None
    if isinstance(plan, Plan) and fewest and demand(plan):
        work = Work.of(plan, Pilot(), steps_given=False)
        return work.repetition_s(work.needed)
    return expected_repetition_s(plan) if isinstance(plan, Plan) else plan.seconds


def check_same_data(doc: RunRecord, plan: AnyPlan) -> None:
    """Raise DatasetError if the plan's data is not what the run read."""
    if isinstance(plan, LoadPlan):
        assert isinstance(doc, ModelLoadRecord)
        same = (doc.job.bytes, doc.job.tensors) == (plan.weights.nbytes, len(plan.weights.tensors))
    else:
        assert isinstance(doc, TrainingRecord | ServingRecord)
        known, inner = doc.job.dataset.id, plan if isinstance(plan, Plan) else plan.plan
        same = known is None or inner.manifest.header.id == known
    if not same:
        raise DatasetError(
            f"{asked_of(plan).data} holds other data than what run {doc.run_id} read",
            remedy="add --data with the directory or URL of the run's data, or measure the new one",
        )


class Repeated(Protocol):
    """A run of which one repetition after the other is measured."""

    @property
    def doc(self) -> RunRecord:
        """Its record, which grows."""

    def prepare(self, title: str) -> None:
        """What is done once, before the first repetition. ``title``: of the run."""

    def warm_up(self) -> None:
        """Measure a repetition that is not counted."""

    def measure(self, number: int) -> None:
        """Measure a repetition. Raises IobenchError if it has not done all it should."""

    def figures(self) -> Mapping[str, float]:
        """What the last repetition tells, by the names of metrics."""

    def end(self, *, stopped: bool) -> RunRecord:
        """Write the run, and return its concluded record. ``stopped``: it was cut short."""


Begin = Callable[[Path, str, VerbOptions, Observer], Repeated]
"""Begins a run in a directory, with this id."""


def hold(plan: AnyPlan, held: ExitStack, hosts: Hosts, *, verb: str, break_lock: bool) -> Begin:
    """Hold what the plan reads, together with other readers; return what begins its run.

    Nothing is written yet. Raises UsageError for data that the plan can't read, and for loads and
    requests on several hosts; TargetHeldError.
    """
    if isinstance(plan, Plan):
        return _training(plan, held, hosts, verb=verb, break_lock=break_lock)
    hosts.only_one(asked_of(plan).name, "start it on one host, or on each of them by itself")
    if isinstance(plan, LoadPlan):
        held.enter_context(weights_held(plan, verb=verb))
        loads = plan
        return lambda place, run_id, options, observer: LoadsBegun(
            loads, place, options, observer, run_id=run_id
        )
    requests, inner = plan, plan.plan
    lease = held.enter_context(
        reading(inner.home, inner.manifest, verb=verb, break_dead=break_lock)
    )
    return lambda place, run_id, options, observer: ServingBegun(
        requests, place, options, observer, Others(lease), None, run_id=run_id
    )


def repeat_once(
    plan: AnyPlan, options: VerbOptions, observer: Observer, hosts: Hosts, *, verb: str
) -> tuple[RunRecord, Path]:
    """A run of one repetition, without ceilings; return its record and its directory.

    Raises as ``hold``, and the failure or InterruptedRun after the record was written.
    """
    with ExitStack() as held:
        begin = hold(plan, held, hosts, verb=verb, break_lock=options.break_lock)
        directory = held.enter_context(run_directory(options.results, asked_of(plan).name))
        run = begin(directory, directory.name, options, observer)
        with failures_recorded(run.doc) as ending:
            run.prepare("")
            run.measure(0)
        with told_after(ending.failure):
            doc = run.end(stopped=ending.failure is not None)
    if ending.failure is not None:
        raise kept_in(ending.failure, directory)
    return doc, directory


def _training(plan: Plan, held: ExitStack, hosts: Hosts, *, verb: str, break_lock: bool) -> Begin:
    # This refuses what the data can't provide, before anything is written.
    make_reader(plan.manifest, plan.storage, plan.workload.reader)
    lease = held.enter_context(reading(plan.home, plan.manifest, verb=verb, break_dead=break_lock))
    others, there = Others(lease), hosts.of(plan, held)
    return lambda place, run_id, options, observer: RepeatedTraining(
        RunBegun(plan, place, options, others, observer, held, there, run_id=run_id),
        break_lock=break_lock,
    )


class RepeatedTraining:
    """``warm_up_s``: the longest warm-up, after which ``work`` tells what any repetition takes."""

    warm_up_s: float | None = None
    work: Work

    def __init__(self, begun: RunBegun, *, break_lock: bool) -> None:
        self.begun, self.doc, self.break_lock = begun, begun.doc, break_lock
        self.doc.job.no_ablations = NO_ABLATIONS

    def prepare(self, title: str) -> None:
        self.begun.prepare(proof=True, name=title)

    def warm_up(self) -> None:
        bench, began = self.begun.bench, time.monotonic()
        phase = repetition_phase(bench.plan, WARM_UP, name="warm-up")
        outcome = measure(
            bench,
            replace(phase, repetition=0, limit_s=self.warm_up_s),
            lambda _: None,
            keep_interrupted=False,
        )
        pilot = pilot_of(outcome, time.monotonic() - began, demand(bench.plan))
        self.work = Work.of(bench.plan, pilot, steps_given=False)
        add_loader_facts(self.doc, outcome.loader)

    def shorten(self, steps: int) -> None:
        """Let each repetition have so many steps of a rank, for want of time."""
        bench, asked = self.begun.bench, self.begun.bench.plan
        workload = asked.workload.model_copy(update={"max_steps": steps})
        bench.plan = replace(asked, workload=workload)
        add_plan(self.doc, bench.plan, asked=asked)

    def measure(self, number: int) -> None:
        bench, kept = self.begun.bench, self.doc.job.repetitions
        # Runs that take turns may name one place for their logs.
        spec = bench.plan.workload.log
        with log_place(spec, "run", break_lock=self.break_lock) as bench.log:
            outcome = measure(bench, repetition_phase(bench.plan, number), kept.append)
        self.begun.others.look()
        if not outcome.complete:
            raise IobenchError("the repetition delivered no complete epoch")

    def figures(self) -> Mapping[str, float]:
        return figures_of(self.doc.job.repetitions[-1])

    def end(self, *, stopped: bool) -> RunRecord:
        if not stopped:
            add_changes(self.doc, self.begun.bench.plan, self.begun.versions)
        return self.begun.end(stopped=stopped)


_REMEDY = "add --data with the directory or URL of the run's data"


def plan_again(
    doc: TrainingRecord,
    *,
    data: str | None = None,
    origin: str | None = None,
    storage: Mapping[str, object] | None = None,
    code: Named | None = None,
    repetitions: int,
) -> Plan:
    """The plan of a run, for another number of repetitions.

    ``data``, ``origin``, ``storage`` (options of the storage) and ``code`` are what the user gave
    again. Raises UsageError if the run is INVALID, or if its record does not have what is needed
    or names an address or code that the user did not; DatasetError if the dataset is not the one
    that the run read; and as ``make_plan``.
    """
    if doc.validity == "invalid":
        rules = [finding.rule for finding in doc.findings if finding.level == "invalid"]
        raise UsageError(
            f"run {doc.run_id} is INVALID ({', '.join(rules)}), so its advice promises nothing",
            remedy="run it again, with --confirm",
        )
    asked = asked_again(doc, data=data, origin=origin, storage=storage or {}, code=code)
    plan = plan_of(asked, repetitions=repetitions)
    assert isinstance(plan, Plan)  # as it is that of a training
    check_same_data(doc, plan)
    return plan


@dataclass(frozen=True, kw_only=True)
class RecordedWork:
    """What a record says of what was asked for: its settings, and where the data was."""

    kind: type[AnyWorkload]
    settings: dict[str, object]
    data: str | None
    origin: str | None = None
    accelerators: int = 1
    seed: int = 0


def recorded_of(doc: RunRecord) -> RecordedWork:
    """Raises UsageError for a run that can't be repeated from its record."""
    if isinstance(doc, ModelLoadRecord):
        return RecordedWork(
            kind=LoadSpec, settings=doc.job.spec.model_dump(mode="json"), data=doc.job.location
        )
    if isinstance(doc, ServingRecord):
        settings = doc.job.scenario.model_dump(mode="json")
        settings["arrivals"]["rate"] = doc.job.rate
        if settings["log"].pop("to") is not None:
            raise UsageError(
                f"run {doc.run_id} wrote a log, and iobench writes nowhere only because a record "
                "names a place",
                remedy="name the dataset, the scenario with --workload, and --set log.to=PLACE",
            )
        kind: type[AnyWorkload] = Scenario
    elif isinstance(doc, TrainingRecord):
        settings, kind = doc.job.workload.model_dump(mode="json"), Workload
        _refuse_unrepeatable(doc)
    else:
        raise UsageError(
            f"{doc.run_id} is a {doc.job.kind} run, which can't be repeated from its record",
            remedy="name a run of iobench run, serve or load",
        )
    done = doc.job.repetitions
    return RecordedWork(
        kind=kind,
        settings=settings,
        data=doc.job.dataset.location,
        origin=doc.job.dataset.origin,
        accelerators=doc.job.accelerators if isinstance(doc, TrainingRecord) else 1,
        seed=done[0].seed if done else 0,
    )


def _refuse_unrepeatable(doc: TrainingRecord) -> None:
    if doc.job.saves is not None:
        raise UsageError(
            f"run {doc.run_id} saved checkpoints while it loaded, which can't be repeated from its "
            "record",
            remedy="run the workload again, with --checkpoint",
        )
    if doc.job.subject.watched:
        raise UsageError(
            f"run {doc.run_id} is a training that was watched, which can't be repeated from its "
            "record",
            remedy="measure the same loader with: iobench run --loader MODULE:FUNCTION",
        )


def asked_again(
    doc: RunRecord,
    *,
    data: str | None = None,
    origin: str | None = None,
    storage: Mapping[str, object] | None = None,
    code: Named | None = None,
    overrides: Sequence[str] = (),
) -> Asked:
    """What a run was asked to do, with ``overrides`` as by ``--set``.

    ``data``, ``origin``, ``storage`` and ``code`` are what the user gave again. Without
    ``storage``, the options of a remote storage are those of ``overrides``, which may differ from
    the run's. What ``overrides`` name as code is given by them. Raises UsageError if the record
    does not have what is needed, or names an address, an option or code that the user did not;
    SpecError.
    """
    then = recorded_of(doc)
    place = _allowed("data", data, then.data)
    if place is None:
        raise UsageError(
            f"the record of run {doc.run_id} does not say where its data is", remedy=_REMEDY
        )
    settings = then.settings
    if not is_local(place):
        found = settings.get("storage")
        recorded = found if isinstance(found, dict) else {}
        own = apply_overrides({}, overrides).get("storage")
        given = dict(own if isinstance(own, dict) else {}) if storage is None else dict(storage)
        if recorded.keys() - given.keys() or (storage is not None and recorded != given):
            raise UsageError(
                f"run {doc.run_id} read its data with other options of the storage, which iobench "
                "does not use only because a file contains them",
                remedy="add --set storage.KEY=VALUE as in that run: "
                + ", ".join(sorted(printable(str(key), 40) for key in {*recorded, *given})),
            )
        if recorded or given:
            settings = {**settings, "storage": given}
    asked = apply_overrides(settings, overrides)
    said = {**code_in(overrides), **(code or {})}
    check_named(code_of(asked), said, where=f"the record of run {doc.run_id}")
    where = f"the workload of run {doc.run_id}"
    workload = build(then.kind, asked, where=where)
    if isinstance(workload, Workload):
        check_used(workload, apply_overrides({}, overrides), where=where)
    return Asked(
        workload=workload,
        data=place,
        origin=_allowed("origin", origin, then.origin),
        accelerators=then.accelerators,
        seed=then.seed,
    )


def _allowed(flag: str, given: str | None, recorded: str | None) -> str | None:
    """What the user gave, or what the record names if that is a directory of this host."""
    if given is not None or recorded is None or is_local(recorded):
        return given or recorded
    raise UsageError(
        f"the record names the data at '{printable(recorded, 100)}', but iobench does not use an "
        "address only because a file contains it",
        remedy=f"if that is your data, add --{flag} with its URL",
    )
