"""``iobench whatif``: predict a recorded run with changed storage or settings, or more hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..ask.capacity.ceilings import Change, Quantity
from ..ask.capacity.hosts import HostsChange
from ..ask.capacity.scaling import Barrier
from ..ask.capacity.whatif import what_if
from ..base.errors import UsageError, in_option
from ..base.units import parse_duration, parse_size
from ..host.timeline import read_events
from ..judge.figures.events import Events
from ..judge.rebuild import conclude, rebuild
from ..record.run import EVENTS_FILE, TrainingRecord, load_training
from ..report.whatif import sections
from ..settings.instances import network_of
from .printing import print_report
from .verbs import WhatifRequest


def run(request: WhatifRequest) -> int:
    if request.hosts is None:
        _refuse_several(request)
        change = _change(request)
        runs: list[tuple[TrainingRecord, Events]] = [(_recorded(Path(request.directories[0])), {})]
    else:
        change = Change(more=_more_hosts(request, request.hosts))
        runs = [_with_events(Path(each)) for each in request.directories]
    found = what_if(runs, change)
    print_report(request.format, found, sections(found), details=request.details)
    return 0


def _change(request: WhatifRequest) -> Change:
    """What changes on the run's own hosts. Raises UsageError."""
    return Change(
        network_bytes_per_s=None
        if request.instance is None
        else network_of(request.instance, instead="--storage-bandwidth"),
        network_of=request.instance or "",
        storage_bandwidth=_quantity(
            request.storage_bandwidth,
            "--storage-bandwidth",
            lambda text: parse_size(text.removesuffix("/s")),
        ),
        latency=_quantity(request.latency, "--latency", parse_duration),
        concurrency=_quantity(request.concurrency, "--concurrency", _number),
        cache_bytes=request.cache,
        pinned=request.cache_kind == "pinned",
        workers=_quantity(request.workers, "--workers", _number),
        accelerators=_quantity(request.accelerators, "--accelerators", _number),
        step_time=_quantity(request.step_time, "--step-time", parse_duration),
    )


def _quantity(text: str | None, flag: str, parse: Callable[[str], float]) -> Quantity | None:
    """Parse a factor such as ``2x``, or else a value. Raises UsageError."""
    if text is None:
        return None
    if not text.strip().lower().endswith("x"):
        return Quantity(float(in_option(flag, parse, text)))
    factor = in_option(flag, _number, text.strip()[:-1])
    if not 0 < factor <= 1e6:
        raise UsageError(
            f"{flag} is '{text}', but a factor must be more than 0", remedy="write it like 2x"
        )
    return Quantity(factor, relative=True)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < 1e9:
        raise UsageError(
            f"'{text}' is not a number of 0 or more",
            remedy="write it like 16, or as a factor like 2x",
        )
    return value


def _refuse_several(request: WhatifRequest) -> None:
    """Raise UsageError for more than one run without ``--hosts``."""
    if len(request.directories) > 1:
        raise UsageError(
            "several runs tell how a job scales, but no number of hosts was given",
            remedy="add e.g. --hosts 64, or name one run",
        )


def _more_hosts(request: WhatifRequest, hosts: int) -> HostsChange:
    """The job on more hosts. Raises UsageError for flags that do not go together."""
    if request.cache_kind != "page":
        raise UsageError(
            "--hosts knows page caches alone", remedy="leave out --cache-kind, or --hosts"
        )
    return HostsChange(
        hosts=hosts,
        per_host=request.accelerators_per_host,
        storage_bytes_per_s=request.storage_limit,
        host_network_bytes_per_s=_network(request),
        cache_bytes=request.cache,
        barrier=_barrier(request.barrier),
        checkpoint_bytes=request.checkpoint_bytes,
        host_write_bytes_per_s=request.host_write,
        storage_write_bytes_per_s=request.storage_write_limit,
        mtbf_s=request.mtbf_s,
        anyway=request.anyway,
    )


def _recorded(named: Path) -> TrainingRecord:
    if not named.exists():
        raise UsageError(
            f"{named}: no such file or directory",
            remedy="name a run directory, e.g. results/<run>",
        )
    return load_training(named)


def _with_events(named: Path) -> tuple[TrainingRecord, Events]:
    """A recorded run, computed again from its events, and these; empty if it has none."""
    doc = _recorded(named)
    file = (named.parent if named.is_file() else named) / EVENTS_FILE
    if not file.is_file():
        return conclude(doc), {}
    events = read_events(file)
    return rebuild(doc, events), events


def _network(request: WhatifRequest) -> float | None:
    """Of one host, in bytes/s: as stated, or that of the instance type."""
    if request.instance is None:
        return request.nic
    return network_of(request.instance, instead="--nic")


def _barrier(text: str | None) -> Barrier | None:
    if text is None:
        return None
    base, comma, more = text.partition(",")
    try:
        found = Barrier(parse_duration(base), parse_duration(more) if comma else 0.0)
    except UsageError:
        found = Barrier(-1.0, 0.0)
    if min(found) < 0:
        raise UsageError(
            f"--barrier is '{text}', but must be one time or two, of 0 or more",
            remedy="write it like 0.7ms,0.2ms",
        )
    return found
