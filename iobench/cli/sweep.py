"""``iobench sweep``: measure a workload with combinations of settings, in rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .. import __version__
from ..base.errors import UsageError
from ..base.units import counted, format_duration
from ..data.dataset import find_dataset
from ..record.sweep import Setting, Sweep, parse_axis, save_sweep, setting_text
from ..record.tags import tags
from ..report.tried import sections
from ..runner.budget import Budget
from ..runner.options import SweepOptions
from ..runner.plan import make_plan
from ..runner.sweeping.confirm import confirm
from ..runner.sweeping.plan import (
    expected_trials,
    groups_within,
    new_sweep,
    plan_sweep,
    plan_walk,
    samples_within,
    workload_of,
)
from ..runner.sweeping.run import run_sweep
from ..runner.sweeping.takeup import Given, take_up
from ..settings.base import build
from ..settings.instances import find_instance
from ..settings.walk import WalkSpec, find_walk
from ..settings.workload import Workload, load_workload
from ..storage import open_storage
from .hosts import check_one_host
from .live import Live
from .printing import finish_sweep, print_report
from .verbs import SweepRequest

_REPEAT, _CALIBRATION_S, _SEED = 5, 1.0, 42


def run(request: SweepRequest) -> int:
    check_one_host("sweep")
    walk = _walk(request)
    options = SweepOptions(
        results=request.results,
        command=request.command,
        budget=Budget(seconds=request.budget_s, began_s=request.began_s),
        data_bytes=request.data_budget,
        keep_data=request.keep_data,
        drop=request.confirm is None,
        break_lock=request.break_lock,
    )
    live = Live(quiet=request.quiet or request.json, lines=True)
    try:
        return (
            _confirm(request, request.confirm, options, live)
            if request.confirm is not None
            else _sweep(request, *_begin(request, options, walk, live), options, live)
        )
    finally:
        live.close()


def _sweep(
    request: SweepRequest, sweep: Sweep, directory: Path, options: SweepOptions, live: Live
) -> int:
    sweep = run_sweep(sweep, directory, options, observer=live)
    live.close()
    return finish_sweep(sweep, directory, kind=request.format, new=True)


def _confirm(request: SweepRequest, place: Path, options: SweepOptions, live: Live) -> int:
    found = confirm(
        place,
        given=_given(request),
        options=options,
        repetitions=_REPEAT if request.repeat is None else request.repeat,
        observer=live,
    )
    live.close()
    print_report(request.format, found, sections(found))
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


def _given(request: SweepRequest) -> Given:
    """Return the arguments that the user repeated for a sweep that is continued."""
    return Given(
        workload=request.workload,
        data_root=request.to,
        data=request.data,
        overrides=list(request.overrides),
        axes=_axes(request),
    )


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
    request: SweepRequest, options: SweepOptions, walk: WalkSpec | None, live: Live
) -> tuple[Sweep, Path]:

    if request.resume is not None:
        return take_up(request.resume, _given(request)), request.resume
    _check_new(request, walk)
    if walk is not None:
        refuse_axes(request, walk)
    calibration_s = _CALIBRATION_S if walk is None else 0.0
    if request.calibration_s is not None:
        calibration_s = request.calibration_s
    given = {
        "workload": request.workload if walk is None else walk.workload,
        "data_root": request.to or "",
        "data": request.data or "",
        "overrides": list(request.overrides) if walk is None else overrides_of(request, walk),
        "samples": request.samples,
        "size_bytes": request.size,
        "seed": _SEED if request.seed is None else request.seed,
        "repetitions": _REPEAT if request.repeat is None else request.repeat,
        "calibration_s": calibration_s,
        "accelerators": request.accelerators or 1,
        "axes": _axes(request),
        "tags": tags(),
        "usd_per_hour": _price(request),
        "instance": request.instance or "",
    }

    # The plan is made before the directory, so that a sweep that is refused leaves no files.
    head = {"iobench_version": __version__, "created": "", "command": []}
    asked = build(Sweep, head | given, where="the sweep")
    if walk is not None:
        planned = sized(plan_walk(asked, walk), request, live.note)
    else:
        planned = plan_sweep(asked, one_at_a_time=request.one_at_a_time)
        groups_within(planned.model_copy(deep=True), options.data_bytes)
    sweep, directory = new_sweep(request.results, list(request.command), planned)
    save_sweep(directory, sweep)
    return sweep, directory


TRIAL_S = 10.0
"""About how long each trial trains where ``--time`` says nothing."""

_TRIAL_S = 3.0
_START_S = 2.0
"""The process of a trial begins, and opens the dataset and the model in about this time."""

_WARM_UP_STEPS = 7
"""A warm-up takes about so many steps of the baseline."""


def refuse_axes(request: SweepRequest, spec: WalkSpec) -> None:
    """Raise UsageError for flags that choose points, since the walk has its own."""
    for flag, given in (
        ("--one-at-a-time", request.one_at_a_time),
        ("--data-budget", request.data_budget),
    ):
        if given:
            raise UsageError(
                f"{flag} can't be used with the walk '{spec.name}', which varies one setting after "
                "the other",
                remedy=f"leave {flag} out, or vary settings of your own with --sweep KEY=A,B,C",
            )


def overrides_of(request: SweepRequest, spec: WalkSpec) -> list[str]:
    """The settings of the walk's workload: its own, what data and model need, and the user's.

    Raises what ``find_dataset`` and ``sample_bytes_of`` raise.
    """
    found = [f"{key}={setting_text(value)}" for key, value in spec.set.items()]
    asked = load_workload(spec.workload, [*found, *request.overrides])
    given = {text.partition("=")[0].strip() for text in request.overrides}
    if request.data and "dataset" not in given:
        manifest, _ = find_dataset(request.data, asked.storage_options())
        found.append(f"dataset={manifest.spec.name}")
    accelerator = asked.accelerator
    if accelerator.kind == "model" and accelerator.model is not None:
        if "accelerator.name" not in given:
            found.append(f"accelerator.name={accelerator.model}")
        if "reader.crop" not in given:
            from ..accelerate.model import sample_bytes_of

            found.append(f"reader.crop={sample_bytes_of(accelerator.model)}")
    return [*found, *request.overrides]


def sized(sweep: Sweep, request: SweepRequest, tell: Callable[[str], None]) -> Sweep:
    """The walk with the samples of each trial, after its model was tried; tell how long it takes.

    ``--set max_steps=N`` says it in steps, which are then the same whatever the batch size is.
    Raises what ``make_plan`` and ``mean_step`` raise.
    """
    workload = workload_of(sweep, {})
    if workload.accelerator.kind != "model":
        return sweep
    from ..accelerate.recording import mean_step

    if sweep.data:  # refuses data that the beginning can't read, before the model is tried
        ranks = sweep.accelerators
        make_plan(workload, sweep.data, accelerators=ranks, repetitions=1, seed=sweep.seed)
    tell(f"trying {workload.accelerator.model} with batches of {workload.batch_size} ...")
    step_s = mean_step(workload.accelerator, workload.batch_size, seconds=_TRIAL_S)
    if not any(text.partition("=")[0].strip() == "max_steps" for text in request.overrides):
        seconds = TRIAL_S if request.time_s is None else request.time_s
        samples = samples_within(seconds, step_s, workload.batch_size * sweep.accelerators)
        sweep = sweep.model_copy(update={"samples_per_trial": samples})
    tell(_announced(sweep, workload_of(sweep, {}), step_s, expected_trials(sweep)))
    return sweep


def _announced(sweep: Sweep, workload: Workload, step_s: float, trials: int) -> str:
    steps = workload.max_steps or 1
    warm_up_s = min(_WARM_UP_STEPS * step_s, max(workload.accelerator.warm_up, 3 * step_s))
    trial_s = steps * step_s + warm_up_s + _START_S
    trained = steps * workload.batch_size * sweep.accelerators
    return (
        f"a step takes {format_duration(step_s)} with batches of {workload.batch_size}; each trial "
        f"trains on {counted(trained, 'sample')} and takes {format_duration(trial_s)}, and there "
        f"are at most {counted(trials, 'trial')}: up to {format_duration(trials * trial_s)}, and "
        "less where the settings are faster (--budget ends it earlier, --resume continues)"
    )
