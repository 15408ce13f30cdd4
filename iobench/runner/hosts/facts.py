"""What a record says of the hosts of its job."""

from __future__ import annotations

from collections.abc import Sequence

from ...record.host import JobHost
from ...record.run import Finding
from .control import Control


def known_hosts(control: Control, ranks: int) -> list[JobHost]:
    """The hosts in their order, if there are so many ranks, and what is known of their clocks."""
    found = []
    for host, share in zip(control.meeting.hosts, control.share(ranks), strict=True):
        known = JobHost(
            name=host.name, first_rank=share.start, ranks=len(share), machine=host.machine
        )
        clock = control.peers[host.index - 1].clock if host.index else None
        if clock is not None and clock.known:
            known.offset_s = clock.known[-1].offset_ns / 1e9
            known.offset_error_s = clock.error_ns / 1e9
            known.offsets, known.drift = len(clock.known), clock.drift
        found.append(known)
    return found


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
