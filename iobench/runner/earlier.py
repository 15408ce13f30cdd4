"""The plan of an earlier run, made again from its record.

The record may come from somebody else. It may name a directory of this host, which is only read.
Any other location, and the options that say how to reach it, must be given again by the user.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import DatasetError, UsageError
from ..schema.base import build
from ..schema.record import TrainingRecord
from ..schema.workload import Workload
from ..storage import is_local
from ..text import printable
from .plan import Plan, make_plan

_REMEDY = "add --data with the directory or URL of the run's dataset"


def plan_again(
    doc: TrainingRecord,
    *,
    data: str | None = None,
    origin: str | None = None,
    storage: Mapping[str, object] | None = None,
    repetitions: int,
) -> Plan:
    """The plan of a run, for another number of repetitions.

    ``data``, ``origin`` and ``storage`` (options of the storage) are what the user gave again.
    Raises UsageError if the run is INVALID, or if its record does not have what is needed or names
    an address that the user did not; DatasetError if the dataset is not the one that the run read;
    and as ``make_plan``.
    """
    facts = doc.job.dataset
    if doc.validity == "invalid":
        rules = [finding.rule for finding in doc.findings if finding.level == "invalid"]
        raise UsageError(
            f"run {doc.run_id} is INVALID ({', '.join(rules)}), so its advice promises nothing",
            remedy="run it again, with --confirm",
        )
    if doc.job.saves is not None:
        raise UsageError(
            f"run {doc.run_id} saved checkpoints while it loaded, which can't be repeated from its "
            "record",
            remedy="run it again, with --checkpoint and --confirm",
        )
    place = _allowed("data", data, facts.location)
    if place is None:
        raise UsageError(
            f"the record of run {doc.run_id} does not say where its dataset is", remedy=_REMEDY
        )
    settings = doc.job.workload.model_dump(mode="json")
    if not is_local(place):
        recorded, given = settings.get("storage") or {}, dict(storage or {})
        if recorded != given:
            raise UsageError(
                f"run {doc.run_id} read its data with other options of the storage, which iobench "
                "does not use only because a file contains them",
                remedy="add --set storage.KEY=VALUE as in that run: "
                + ", ".join(sorted(printable(str(key), 40) for key in {*recorded, *given})),
            )
        settings["storage"] = given
    plan = make_plan(
        build(Workload, settings, where=f"the workload of run {doc.run_id}"),
        place,
        origin=_allowed("origin", origin, facts.origin),
        accelerators=doc.job.accelerators,
        repetitions=repetitions,
        seed=doc.job.repetitions[0].seed if doc.job.repetitions else 0,
    )
    if facts.id is not None and plan.manifest.header.id != facts.id:
        raise DatasetError(
            f"{place} holds another dataset than the one that run {doc.run_id} read",
            remedy=_REMEDY + ", or run the workload on the new one",
        )
    return plan


def _allowed(flag: str, given: str | None, recorded: str | None) -> str | None:
    """What the user gave, or what the record names if that is a directory of this host."""
    if given is not None or recorded is None or is_local(recorded):
        return given or recorded
    raise UsageError(
        f"the record names the data at '{printable(recorded, 100)}', but iobench does not use an "
        "address only because a file contains it",
        remedy=f"if that is your data, add --{flag} with its URL",
    )
