"""What this host's NFS client counts for a mount, from ``/proc/self/mountstats``.

Source: Linux ``fs/nfs/super.c`` (nfs_show_stats) and ``net/sunrpc/stats.c`` (rpc_clnt_show_stats),
statvers 1.1; mountstats.py of nfs-utils. Times are sums in whole milliseconds, as the kernel keeps
them. The counters are of the mount, for all of its users. Only ``read`` looks at this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..base.cgroup import read_text
from ..base.filesystem import NFS, parse_options, unescape
from ..record.host import NfsOperation, NfsTraffic


class Operation(NamedTuple):
    """One kind of RPC (READ, GETATTR ...), summed up since the mount."""

    ops: int  # completed
    transmissions: int  # more than ops if requests were sent again
    timeouts: int  # "major" time-outs: after all retransmissions
    bytes_sent: int  # RPC headers included
    bytes_received: int
    queue_ms: int  # waiting to be sent
    rtt_ms: int  # from sending to the answer
    execute_ms: int  # from request to completion: queue, RTT and the client's own work
    errors: int | None  # None before statvers 1.1


class MountStats(NamedTuple):
    """One NFS mount at one moment."""

    source: str
    point: str
    fs_type: str
    options: dict[str, str]  # vers, rsize, proto ... in force; a flag has the value ''
    age_s: int
    read_bytes: int  # by READ, without headers
    written_bytes: int  # by WRITE
    connections: int  # transports: nconnect, and trunking
    operations: dict[str, Operation]


def parse_mountstats(text: str) -> list[MountStats]:
    """The NFS mounts in ``/proc/self/mountstats``, in order; unknown lines are skipped."""
    mounts = []
    for section in re.split(r"^(?=device )", text, flags=re.MULTILINE):
        head, _, body = section.partition("\n")
        match = re.match(r"device (\S+) mounted on (\S+) with fstype (\S+)", head)
        if match and match[3] in NFS:
            mounts.append(_mount(unescape(match[1]), unescape(match[2]), match[3], body))
    return mounts


def _mount(source: str, point: str, fs_type: str, body: str) -> MountStats:
    options: dict[str, str] = {}
    operations: dict[str, Operation] = {}
    age = connections = 0
    counted: list[int] = []
    in_operations = False
    for line in body.splitlines():
        name, colon, rest = line.strip().partition(":")
        numbers = [int(field) for field in rest.split()] if re.fullmatch(r"[\d\s]+", rest) else []
        if name == "per-op statistics":
            in_operations = True
        elif in_operations and colon and len(numbers) >= 8:
            operations[name] = Operation._make(
                [*numbers[:8], numbers[8] if len(numbers) > 8 else None]
            )
        elif name == "opts":
            options = parse_options(rest.strip())
        elif name == "age" and numbers:
            age = numbers[0]
        elif name == "bytes":
            counted = numbers
        elif name == "xprt":
            connections += 1
    # "bytes" has read() and write() buffered, both with O_DIRECT, then the bytes of READ and WRITE.
    read, written = (counted[4], counted[5]) if len(counted) >= 6 else (0, 0)
    return MountStats(source, point, fs_type, options, age, read, written, connections, operations)


def find(point: str, mounts: Iterable[MountStats]) -> MountStats | None:
    """The mount at a mount point; of several the last one, which is on top."""
    return next((mount for mount in reversed(list(mounts)) if mount.point == point), None)


def read(point: str) -> MountStats | None:
    """The counters of the NFS mount at ``point`` on this machine; None if there is none."""
    return find(point, parse_mountstats(read_text(Path("/proc/self/mountstats")) or ""))


def diff(before: MountStats | None, after: MountStats | None) -> NfsTraffic | None:
    """What the mount did between two moments, with means over that time.

    None if one of the two is missing, or if it was mounted again in between.
    """
    if (
        before is None
        or after is None
        or (before.source, before.point) != (after.source, after.point)
        or after.age_s < before.age_s
    ):
        return None
    changed = {
        name: used
        for name, now in after.operations.items()
        if (used := _minus(now, before.operations.get(name))).ops or used.transmissions
    }
    every = changed.values()
    moved = (after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes)
    counts = (number for used in every for number in used if number is not None)
    if min((*moved, *counts)) < 0:
        return None  # the counters began anew in between
    errors = [used.errors for used in every]
    return NfsTraffic(
        mount_point=after.point,
        read_ops=changed["READ"].ops if "READ" in changed else 0,
        read_bytes=moved[0],
        read_rtt_ms=_mean("rtt_ms", changed.get("READ")),
        read_execute_ms=_mean("execute_ms", changed.get("READ")),
        written_bytes=moved[1],
        retransmits=sum(max(0, used.transmissions - used.ops) for used in every),
        timeouts=sum(used.timeouts for used in every),
        errors=None if None in errors else sum(error for error in errors if error is not None),
        operations={
            name: NfsOperation(
                ops=used.ops,
                retransmits=max(0, used.transmissions - used.ops),
                rtt_ms=_mean("rtt_ms", used),
                execute_ms=_mean("execute_ms", used),
            )
            for name, used in sorted(changed.items(), key=lambda item: -item[1].ops)
        },
    )


def _minus(after: Operation, before: Operation | None) -> Operation:
    if before is None:
        return after
    errors = None if after.errors is None or before.errors is None else after.errors - before.errors
    return Operation._make(
        [*(now - then for now, then in zip(after[:8], before[:8], strict=True)), errors]
    )


def _mean(name: str, used: Operation | None) -> float | None:
    return getattr(used, name) / used.ops if used is not None and used.ops else None
