"""``iobench whatif``: predict a recorded run with changed storage or settings, or more hosts."""

from __future__ import annotations

from pathlib import Path

from ..ask.capacity.ceilings import Change
from ..ask.capacity.hosts import HostsChange
from ..ask.capacity.loads import loads_at
from ..ask.capacity.requests import served_if
from ..ask.capacity.scaling import Barrier
from ..ask.capacity.whatif import what_if
from ..base.errors import UsageError
from ..host.tables import read_requests
from ..host.timeline import read_events
from ..judge.figures.events import Events
from ..judge.rebuild import conclude, rebuild, served_again
from ..record.run import (
    EVENTS_FILE,
    ModelLoadRecord,
    ServingRecord,
    TrainingRecord,
    load_run,
    load_training,
)
from ..report.glance import resting_on
from ..report.serving import what_if_sections as served_sections
from ..report.size_serving import loads_at_sections
from ..report.whatif import sections
from ..settings.instances import network_of
from .flags import names_of
from .printing import print_report
from .verbs import WhatifRequest


def run(request: WhatifRequest) -> int:
    if request.hosts is None:
        _refuse_several(request)
        named = Path(request.directories[0])
        doc = load_run(named)
        if isinstance(doc, ModelLoadRecord):
            return _loads(request, doc)
        change = _change(request)
        if isinstance(doc, ServingRecord):
            rows = read_requests(_events(named))
            predicted = served_if(served_again(doc, rows), rows, change)
            shown = resting_on([predicted.before], served_sections(predicted))
            print_report(request, predicted, shown)
            return 0
        runs: list[tuple[TrainingRecord, Events]] = [(conclude(load_training(named)), {})]
    else:
        change = Change(more=_more_hosts(request, request.hosts))
        runs = [_with_events(Path(each)) for each in request.directories]
    found = what_if(runs, change)
    print_report(request, found, resting_on((doc for doc, _ in runs), sections(found)))
    return 0


def _change(request: WhatifRequest) -> Change:
    """What changes on the run's own hosts. Raises UsageError."""
    network = None
    if request.instance is not None:
        network = network_of(request.instance, instead="--storage-bandwidth")
    return request.made(
        Change,
        network_bytes_per_s=network,
        network_of=request.instance or "",
        cache_bytes=request.cache,
        pinned=request.cache_kind == "pinned",
    )


def _refuse_several(request: WhatifRequest) -> None:
    """Raise UsageError for more than one run without ``--hosts``."""
    if len(request.directories) > 1:
        raise UsageError(
            "several runs tell how a job scales, but no number of hosts was given",
            remedy="add e.g. --hosts 64, or name one run",
        )


def _more_hosts(request: WhatifRequest, hosts: int) -> HostsChange:
    """The job on more hosts. Raises UsageError for flags that do not go together."""
    network = request.nic
    if request.instance is not None:
        network = network_of(request.instance, instead="--nic")
    barrier = Barrier(*request.barrier) if request.barrier else None
    return request.made(
        HostsChange,
        hosts=hosts,
        host_network_bytes_per_s=network,
        cache_bytes=request.cache,
        barrier=barrier,
    )


def _loads(request: WhatifRequest, doc: ModelLoadRecord) -> int:
    """Loads of a model with another bandwidth of their storage."""
    bandwidth = request.storage_bandwidth
    others = {*names_of(WhatifRequest)} - {"details", "directories", "storage_bandwidth"}
    if bandwidth is None or (flag := request.first_of(sorted(others))):
        raise UsageError(
            "of loads of a model, the bandwidth of the storage can change"
            + ("" if bandwidth is None else f", and {flag} can't"),
            remedy="use --storage-bandwidth alone, e.g. --storage-bandwidth 2x",
        )
    doc = conclude(doc)
    found = loads_at(doc.job, bandwidth)
    print_report(request, found, resting_on([doc], loads_at_sections(found)))
    return 0


def _events(named: Path) -> Path:
    return (named.parent if named.is_file() else named) / EVENTS_FILE


def _with_events(named: Path) -> tuple[TrainingRecord, Events]:
    """A recorded run, computed again from its events, and these; empty if it has none."""
    doc, file = load_training(named), _events(named)
    if not file.is_file():
        return conclude(doc), {}
    events = read_events(file)
    return rebuild(doc, events), events
