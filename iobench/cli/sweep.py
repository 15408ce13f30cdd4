"""``iobench sweep``: measure a workload with combinations of settings, in rounds."""

from __future__ import annotations

from pathlib import Path

from ..base.errors import UsageError
from ..record.sweep import Setting, Sweep, parse_axis, save_sweep, setting_text
from ..report.advise import confirmation_sections
from ..runner.hosts.hosts import Hosts
from ..runner.options import SweepOptions
from ..runner.repeated import RECORDS
from ..runner.sweeping.confirm import GivenAgain, confirm, take_up
from ..runner.sweeping.plan import (
    groups_within,
    new_sweep,
    overrides_of,
    plan_sweep,
    plan_walk,
    sized,
)
from ..runner.sweeping.run import check_hosts, run_sweep
from ..settings.any_workload import kind_of
from ..settings.base import build, head
from ..settings.instances import find_instance
from ..settings.walk import WalkSpec, find_walk
from ..settings.workload import Workload
from ..storage import open_storage
from .hosts import trials
from .live import Live
from .printing import finish_sweep, print_report
from .verbs import SweepRequest

_REPEAT, _CALIBRATION_S, _SEED = 5, 1.0, 42


def run(request: SweepRequest) -> int:
    walk = _walk(request)
    axes = _axes(request).items()
    return trials(
        request,
        lambda hosts: _measure(request, walk, hosts),
        workloads=[request.workload if walk is None else walk.workload],
        overrides=[
            *request.overrides,
            *(f"{key}={setting_text(value)}" for key, values in axes for value in values),
        ],
        places=[request.data, request.to],
    )


def _measure(request: SweepRequest, walk: WalkSpec | None, hosts: Hosts) -> int:
    options = request.made(
        SweepOptions, data_bytes=request.data_budget, drop=request.confirm is None
    )
    with Live(quiet=request.quiet) as live:
        if request.confirm is not None:
            return _confirm(request, request.confirm, options, live, hosts)
        sweep, directory = _begin(request, options, walk, live, hosts)
        sweep = run_sweep(sweep, directory, options, observer=live, hosts=hosts)
    return finish_sweep(request, sweep, directory, new=True)


def _confirm(
    request: SweepRequest, place: Path, options: SweepOptions, live: Live, hosts: Hosts
) -> int:
    found = confirm(
        place,
        given=_given(request),
        options=options,
        repetitions=_REPEAT if request.repeat is None else request.repeat,
        observer=live,
        hosts=hosts,
    )
    live.close()
    print_report(request, found, confirmation_sections(found))
    return 0 if found.confirmed else 4


def _price(request: SweepRequest) -> float | None:
    """The price of this host for one hour, if one was asked for. Raises UsageError."""
    if (stated := request.host_price_per_hour) is not None:
        return stated
    if request.instance is None:
        return None
    price = find_instance(request.instance).usd_per_hour
    if price is None:
        raise UsageError(
            f"the price of {request.instance} is not known", remedy="give --host-price-per-hour"
        )
    return price


def _axes(request: SweepRequest) -> dict[str, list[Setting]]:
    axes: dict[str, list[Setting]] = {}
    for text in request.sweep:
        key, values = parse_axis(text)
        if key in axes:
            raise UsageError(
                f"--sweep {key} is given twice", remedy="give all its values in one --sweep"
            )
        axes[key] = values
    return axes


def _given(request: SweepRequest) -> GivenAgain:
    """Return the arguments that the user repeated for a sweep that is continued."""
    return request.made(GivenAgain, data_root=request.to, axes=_axes(request))


def _walk(request: SweepRequest) -> WalkSpec | None:
    """The walk that the user named; None: a workload, whose settings are given by --sweep."""
    new = request.workload is not None and request.resume is None and request.confirm is None
    found = find_walk(request.workload) if request.workload and new and not request.sweep else None
    if found is None and request.time_s is not None and new:
        raise UsageError(
            "--time is for a walk, such as cpu-training",
            remedy="leave it out, or say how long a trial is with --set max_steps=N",
        )
    return found


def _check_new(request: SweepRequest, walk: WalkSpec | None) -> None:
    """Raise UsageError if a new sweep lacks something."""
    place = request.data or request.to or ""

    for value, what in (
        (request.workload, "the name of a workload"),
        (place, "--to DIR or --data DIR"),
        (request.sweep or walk, "at least one --sweep KEY=A,B,C"),
    ):
        if not value:
            raise UsageError(f"a new sweep needs {what}", remedy="see: iobench sweep --help")
    open_storage(place)  # refuses a wrong URL before anything is written


def _begin(
    request: SweepRequest, options: SweepOptions, walk: WalkSpec | None, live: Live, hosts: Hosts
) -> tuple[Sweep, Path]:
    if request.resume is not None:
        found = take_up(request.resume, _given(request))
        if found.walk:
            refuse_axes(request, found.preset)
        return found, request.resume
    _check_new(request, walk)
    if walk is not None:
        refuse_axes(request, walk.name)
    calibration_s = _CALIBRATION_S if walk is None else 0.0
    if request.calibration_s is not None:
        calibration_s = request.calibration_s
    name = (request.workload or "") if walk is None else walk.workload
    if kind_of(name) is not Workload:
        request.check_of_training(name, "accelerators", "calibration_s")
    given = {
        "workload": name,
        "metric": RECORDS[kind_of(name)].headline,
        "data_root": request.to or "",
        "data": request.data or "",
        "overrides": list(request.overrides)
        if walk is None
        else overrides_of(walk, request.data, request.overrides),
        "samples": request.samples,
        "size_bytes": request.size,
        "seed": _SEED if request.seed is None else request.seed,
        "repetitions": _REPEAT if request.repeat is None else request.repeat,
        "calibration_s": calibration_s,
        "accelerators": max(request.accelerators or 1, hosts.count),
        "hosts": hosts.count,
        "axes": _axes(request),
        "usd_per_hour": _price(request),
        "instance": request.instance or "",
    }

    # The plan is made before the directory, so that a sweep that is refused leaves no files.
    asked = build(Sweep, head(()) | given, where="the sweep")
    check_hosts(asked, hosts.count)
    if walk is not None:
        planned = sized(plan_walk(asked, walk), request.overrides, request.time_s, live.note)
    else:
        planned = plan_sweep(asked, one_at_a_time=request.one_at_a_time)
        groups_within(planned.model_copy(deep=True), options.data_bytes)
    sweep, directory = new_sweep(request.results, list(request.command), planned)
    save_sweep(directory, sweep)
    return sweep, directory


def refuse_axes(request: SweepRequest, walk: str) -> None:
    """Raise UsageError for flags that choose points, since the walk has its own."""
    if flag := request.first_of(["one_at_a_time", "data_budget"]):
        raise UsageError(
            f"{flag} can't be used with the walk '{walk}', which varies one setting after the "
            "other",
            remedy=f"leave {flag} out, or vary settings of your own with --sweep KEY=A,B,C",
        )
