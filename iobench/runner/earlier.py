"""The plan of an earlier run, made again from its record.

The record may come from somebody else. It may name a directory of this host, which is only read.
Any other location, the options that say how to reach it, and what is run as code
(``settings.workload``) must be given again by the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..base.errors import UsageError
from ..base.text import printable
from ..record.run import ModelLoadRecord, RunRecord, ServingRecord, TrainingRecord
from ..settings.any_workload import AnyWorkload
from ..settings.base import apply_overrides, build
from ..settings.model_load import LoadSpec
from ..settings.scenario import Scenario
from ..settings.workload import Named, Workload, check_named, code_in, code_of
from ..storage import is_local
from .plan import Plan
from .repeated import Asked, check_same_data, plan_of

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
    return Asked(
        workload=build(then.kind, asked, where=f"the workload of run {doc.run_id}"),
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
