"""What is particular to the record of a training that ``iobench.watch`` measured."""

from __future__ import annotations

from collections.abc import Iterator

from ...schema.record import Finding, TrainingRecord
from ...units import counted, format_percent

UNTESTED = (
    "a training that is watched runs once, as it is; iobench run --loader measures each stage alone"
)
NOT_IN_RATE = "waits for other ranks are inside of your training's step, and are not seen"


def watch_findings(doc: TrainingRecord) -> list[Finding]:
    """Findings about what was watched; none for another run."""
    return [*_found(doc)] if doc.job.watched is not None else []


def _found(doc: TrainingRecord) -> Iterator[Finding]:
    facts = doc.job.watched
    assert facts is not None
    here = len(facts.ranks)
    if here < facts.world:
        yield Finding(
            rule="watch.ranks",
            level="info",
            evidence=f"the record has {counted(here, 'rank')} of {facts.world}: the others ran on "
            "other hosts, were not watched, or ended before they left their figures",
            remedy="put iobench.watch around the loader of each rank",
        )
    if facts.lost:
        yield Finding(
            rule="watch.lost",
            level="warning",
            evidence=f"the counters failed, so later batches are not in the record: {facts.lost}",
            remedy="report this as a defect",
        )
    gpus = [gpu for host in doc.hosts for gpu in (host.model_extra or {}).get("gpus") or ()]
    if gpus and not facts.synchronized:
        yield Finding(
            rule="watch.device",
            level="info",
            evidence="busy is the time between batches as the training process saw it: work that "
            "the device went on with while the process waited for a batch counts as waiting",
            remedy="watch(..., synchronize=True) awaits the device, which makes steps longer",
        )
    if facts.resident_after is not None:
        yield Finding(
            rule="watch.residency",
            level="info",
            evidence=f"at the end, {format_percent(facts.resident_after)} of the files were in the "
            f"page cache ({facts.resident_how})",
        )
