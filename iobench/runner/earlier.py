"""The plan of an earlier run, made again from its record.

The record may come from somebody else. It may name a directory of this host, which is only read.
Any other location, the options that say how to reach it, and what is run as code
(``settings.code``) must be given again by the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..base.errors import DatasetError, UsageError
from ..base.text import printable
from ..record.run import TrainingRecord
from ..settings.base import apply_overrides, build
from ..settings.code import Named, check_named, code_in, code_of
from ..settings.workload import Workload
from ..storage import is_local
from .plan import Plan, make_plan

_REMEDY = "add --data with the directory or URL of the run's dataset"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What an earlier run was asked to do, and where its data is."""

    workload: Workload
    data: str
    origin: str | None
    accelerators: int
    seed: int


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
    plan = make_plan(
        asked.workload,
        asked.data,
        origin=asked.origin,
        accelerators=asked.accelerators,
        repetitions=repetitions,
        seed=asked.seed,
    )
    check_same_data(doc, plan)
    return plan


def check_same_data(doc: TrainingRecord, plan: Plan) -> None:
    """Raises DatasetError if the plan's dataset is not the one that the run read."""
    known = doc.job.dataset.id
    if known is not None and plan.manifest.header.id != known:
        raise DatasetError(
            f"{plan.data} holds another dataset than the one that run {doc.run_id} read",
            remedy=_REMEDY + ", or run the workload on the new one",
        )


def asked_again(
    doc: TrainingRecord,
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
    facts = doc.job.dataset
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
    place = _allowed("data", data, facts.location)
    if place is None:
        raise UsageError(
            f"the record of run {doc.run_id} does not say where its dataset is", remedy=_REMEDY
        )
    settings = doc.job.workload.model_dump(mode="json")
    if not is_local(place):
        recorded = settings.get("storage") or {}
        own = apply_overrides({}, overrides).get("storage")
        given = dict(own if isinstance(own, dict) else {}) if storage is None else dict(storage)
        if recorded.keys() - given.keys() or (storage is not None and recorded != given):
            raise UsageError(
                f"run {doc.run_id} read its data with other options of the storage, which iobench "
                "does not use only because a file contains them",
                remedy="add --set storage.KEY=VALUE as in that run: "
                + ", ".join(sorted(printable(str(key), 40) for key in {*recorded, *given})),
            )
        settings["storage"] = given
    asked = apply_overrides(settings, overrides)
    said = {**code_in(overrides), **(code or {})}
    check_named(code_of(asked), said, where=f"the record of run {doc.run_id}")
    return Asked(
        workload=build(Workload, asked, where=f"the workload of run {doc.run_id}"),
        data=place,
        origin=_allowed("origin", origin, facts.origin),
        accelerators=doc.job.accelerators,
        seed=doc.job.repetitions[0].seed if doc.job.repetitions else 0,
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
