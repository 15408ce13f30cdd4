"""The record of a training that was watched, from what each of its ranks on this host measured."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from ... import __version__
from ...analyse.figures.metrics import repetition_metrics, uncounted_reads
from ...analyse.verdict.rebuild import conclude
from ...analyse.verdict.user_loader import user_findings
from ...analyse.verdict.watched import NOT_IN_RATE, UNTESTED, watch_findings
from ...measure.samples import write_samples
from ...measure.timeline import Columns, write_events
from ...schema.host import Host
from ...schema.job import (
    LoaderFacts,
    LoaderSettings,
    UserFacts,
    WorkloadFacts,
)
from ...schema.record import EVENTS_FILE, SAMPLES_FILE, TrainingRecord
from ...schema.subject import USER_LOADER, subject_of
from ...schema.tags import tags
from ...schema.training import Ceiling, Epoch, Repetition, TrainingRun
from ...schema.watched import WATCHED
from ...schema.workload import AcceleratorSpec
from ..facts import write_document
from .place import PHASE, Part

Ended = Literal["ok", "failed", "interrupted"]

CEILINGS = ("storage_raw", "fetch", "prep", "harness")
"""Ceilings that take runs of their own, which a training that is watched does not make."""


def merged(directory: Path, parts: Sequence[Part]) -> TrainingRecord:
    """The record of these ranks, concluded. At least one rank is there."""
    first = parts[0].rank
    leader = next((part for part in parts if part.rank.host.recorded), parts[0]).rank
    epochs, steps = epochs_of(parts), steps_of(parts)
    user = UserFacts.together([part.rank.user for part in parts])
    sizes = [part.rank.batch_size for part in parts if part.rank.batch_size]
    missing = {"sync_s": NOT_IN_RATE} | uncounted_reads(subject_of(USER_LOADER, watched=True))
    known = [each.residency_before for each in epochs if each.residency_before is not None]
    cpu = [part.rank.cpu_s for part in parts]
    context = Repetition(
        seed=0,
        accelerators=len(parts),
        sync="none",
        epochs=epochs,
        cpu_s=sum(filter(None, cpu)) if all(each is not None for each in cpu) else None,
        resources=leader.resources,
        nfs=leader.nfs,
        throttled_s=leader.resources.throttled_s if leader.resources else None,
        residency_before=max(known) if known and len(known) == len(epochs) else None,
        not_measured=missing,
    )
    repetition = repetition_metrics(_together(steps), context, round_steps=max(1, user.workers))
    if not any(len(columns["step"]) for columns in steps):
        repetition = repetition.model_copy(update={"complete": False})
    stopped = [part.rank for part in parts if part.rank.status != "ok"]
    facts = first.facts.model_copy(
        update={
            "ranks": [part.rank.rank for part in parts],
            "between_s": float(np.mean([part.rank.facts.between_s or 0.0 for part in parts])),
            "lost": next((part.rank.facts.lost for part in parts if part.rank.facts.lost), ""),
            "resident_after": leader.facts.resident_after,
            "resident_how": leader.facts.resident_how,
        }
    )
    doc = TrainingRecord(
        iobench_version=__version__,
        run_id=directory.name,
        created=min(part.rank.created for part in parts),
        command=["iobench.watch"],
        tags=tags(),
        status=_status([rank.status for rank in stopped]),
        error=stopped[0].error if stopped else "",
        validity="unknown",
        hosts=[leader.host if leader.host.recorded else Host()],
        storage=leader.storage,
        timings={"watched": max(part.rank.wall_s for part in parts)},
        job=TrainingRun(
            accelerators=len(parts),
            workload=WorkloadFacts(
                name=first.name,
                accelerator=AcceleratorSpec(kind=WATCHED, name="your training", sync="none"),
                batch_size=max(sizes, key=sizes.count) if sizes else None,
                epochs=max(1, len(epochs)),
                cache="any",
                loader=LoaderSettings(
                    kind=USER_LOADER,
                    workers=user.workers,
                    prefetch_factor=first.prefetch_factor,
                ),
            ),
            dataset=leader.dataset,
            loader=LoaderFacts(kind=USER_LOADER, workers=user.workers, user=user),
            ceilings={name: Ceiling(not_measured=UNTESTED) for name in CEILINGS}
            | {"accelerator": _demand(steps)},
            repetitions=[repetition],
            no_knock_outs=UNTESTED,
            watched=facts,
        ),
    )
    doc.findings += user_findings(doc) + watch_findings(doc)
    return conclude(doc)


def epochs_of(parts: Sequence[Part]) -> list[Epoch]:
    """The epochs of all ranks.

    Starting workers is not left out of the times, as it is in a run of iobench: a training waits
    for it like for any other part of its loader.
    """
    found: dict[int, Epoch] = {}
    for part in parts:
        for own in part.rank.epochs:
            epoch = found.setdefault(own.epoch, Epoch(epoch=own.epoch))
            if own.residency_before is not None or not epoch.residency_how:
                epoch.residency_before = own.residency_before
                epoch.residency_how = own.residency_how
    return [found[number] for number in sorted(found)]


def steps_of(parts: Sequence[Part]) -> list[Columns]:
    """The steps of each rank; in a record, the ranks of a host are numbered from 0."""
    return [
        {**part.steps, "rank": np.full(len(part.steps["step"]), place)}
        for place, part in enumerate(parts)
    ]


def _together(steps: Sequence[Columns]) -> Columns:
    """The steps of all ranks in one table."""
    names = set.intersection(*(set(columns) for columns in steps)) - {"phase", "repetition"}
    return {name: np.concatenate([columns[name] for columns in steps]) for name in sorted(names)}


def _demand(steps: Sequence[Columns]) -> Ceiling:
    """The samples/s that the training would take if it never waited."""
    rates = []
    for columns in steps:
        busy = float(columns["busy_ns"].astype(np.int64).sum()) / 1e9
        samples = float(columns["samples"].astype(np.int64).sum())
        rates += [samples / busy] if busy > 0 else []
    if not rates or len(rates) < len(steps):
        return Ceiling(not_measured="no step was recorded")
    return Ceiling(
        by="computed",
        samples_per_s=sum(rates),
        how="samples over the time in which the training did not wait for batches",
    )


def _status(found: Sequence[Ended]) -> Ended:
    return "failed" if "failed" in found else found[0] if found else "ok"


def write(directory: Path, doc: TrainingRecord, parts: Sequence[Part]) -> None:
    """Write the run directory; what fewer ranks of this run have written there is replaced.

    Raises IobenchError.
    """
    token = secrets.token_hex(4)
    events = directory / f".events-{token}.parquet"
    keep = [
        (PHASE, 0, place, {name: columns[name] for name in columns if name not in _CONSTANT})
        for place, columns in enumerate(steps_of(parts))
    ]
    doc.files = {EVENTS_FILE: write_events(events, keep)}
    events.replace(directory / EVENTS_FILE)
    samples = next((part.samples for part in parts if part.samples is not None), None)
    if samples is not None:
        path = directory / f".samples-{token}.parquet"
        doc.files[SAMPLES_FILE] = write_samples(path, [(PHASE, 0, samples)])
        path.replace(directory / SAMPLES_FILE)
    write_document(directory, doc)


_CONSTANT = ("phase", "repetition", "rank")
