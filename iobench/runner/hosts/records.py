"""What records say of the hosts of a job, and one host's part of a run that has ended early."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...base.errors import InterruptedRun, IobenchError
from ...base.text import quoted
from ...host import timeline
from ...judge.rebuild import rebuild
from ...record.host import JobHost
from ...record.run import EVENTS_FILE, Finding
from ...record.training import Repetition
from ..calibration.bench import Bench
from ..results import begin_record, new_directory, write_document
from .meeting import Meeting


def same_machines(hosts: Sequence[JobHost]) -> list[Finding]:
    """A finding if processes of one machine count as hosts of their own."""
    machines: dict[str, list[int]] = {}
    for number, host in enumerate(hosts):
        machines.setdefault(host.machine or f"unknown {number}", []).append(number)
    shared = [numbers for numbers in machines.values() if len(numbers) > 1]
    if not shared:
        return []
    names = "; ".join(" and ".join(f"host {each}" for each in numbers) for numbers in shared)
    return [
        Finding(
            rule="hosts.same-machine",
            level="warning",
            evidence=f"{names} are the same machine: they share its cores, memory and page cache",
            remedy="start one process on each machine",
        )
    ]


def with_part(
    error: IobenchError, bench: Bench, meeting: Meeting, command: Sequence[str], rules: str
) -> IobenchError:
    """The error, which also says where the part of this host is, if its ranks recorded anything.

    ``rules``: by which the part is judged.
    """
    if not bench.parts:
        return error
    name = f"{bench.plan.workload.name}-host-{meeting.launch.index}"
    try:
        directory = new_directory(bench.directory, name)
        _write(directory, error, bench, meeting, command, rules)
    except IobenchError as failed:
        error.remedy = f"this host's part of the run could not be kept: {failed}"
        return error
    error.remedy = (
        f"this host's part of the run is kept; see it with: iobench report {quoted(str(directory))}"
    )
    return error


def _write(
    directory: Path,
    error: IobenchError,
    bench: Bench,
    meeting: Meeting,
    command: Sequence[str],
    rules: str,
) -> None:
    """Write the events, and a record of what follows from them: the rates of these ranks alone."""
    plan = bench.plan
    path = directory / EVENTS_FILE
    events = timeline.write_events(path, bench.parts)
    doc = begin_record(plan, bench.agent, run_id=directory.name, command=command, rules=rules)
    doc.files = {EVENTS_FILE: events}
    doc.status = "interrupted" if isinstance(error, InterruptedRun) else "failed"
    mine = meeting.hosts[meeting.launch.index]
    doc.error = f"the part of {mine.label} of {len(meeting.hosts)} hosts; {error.what}"
    begun = [number for phase, number, _, _ in bench.parts if phase == "measure"]
    doc.job.repetitions = [
        Repetition(
            seed=plan.seed + number,
            accelerators=len({rank for _, _, rank, _ in bench.parts}),
            sync=plan.workload.accelerator.sync,
            complete=False,
        )
        for number in range(max(begun, default=-1) + 1)
    ]
    write_document(directory, rebuild(doc, timeline.read_events(path)))
