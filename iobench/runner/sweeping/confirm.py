"""Go on with a sweep from its ``sweep.json``: resume it, or test its advice.

Advice is tested on fresh data and with new seeds: the advised settings against today's.

The file may come from somebody else. It may name a directory of this host, below which datasets are
generated and removed after the usual checks of ownership. Any other location, the options that say
how to reach it, and what is run as code must be given again by the user; the file only has to
agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...ask.compare.claims import MIN_RUNS
from ...ask.compare.comparison import compare
from ...ask.compare.runs import Group, usable
from ...ask.tuning.points import same, settings_text
from ...ask.tuning.recommend import Recommendation, SweepConfirmation, recommend, sweep_confirmation
from ...ask.tuning.sweepfolder import read_sweep
from ...base.errors import UsageError
from ...base.text import printable
from ...record.run import load_training
from ...record.sweep import (
    SWEEP_FILE,
    Setting,
    Sweep,
    SweepPoint,
    describe,
    load_sweep,
    save_sweep,
    setting_text,
)
from ...settings.any_workload import is_known, read_any_workload
from ...settings.base import apply_overrides, head
from ...settings.tags import tags
from ...settings.workload import (
    check_given_again,
    check_named,
    code_in,
    code_of,
    option_texts,
)
from ...storage import is_local, open_storage
from ..hosts.hosts import Hosts
from ..options import Observer, SweepOptions
from ..results import new_directory
from .plan import code_named, with_own_places, workload_of
from .run import run_sweep

_STORAGE = "storage"


@dataclass(frozen=True, kw_only=True)
class GivenAgain:
    """What the user gave again, as for a new sweep; None or empty: not given."""

    workload: str | None = None
    data_root: str | None = None
    data: str | None = None
    overrides: Sequence[str] = ()
    axes: Mapping[str, Sequence[Setting]] = field(default_factory=dict)


def take_up(directory: Path, given: GivenAgain) -> Sweep:
    """Load the sweep of a directory, with each point's data below its ``data_root``.

    Raises IobenchError if it is no sweep; UsageError if something was given that differs from the
    sweep, or if the sweep is on a URL, or names code, that was not given again.
    """
    sweep = load_sweep(directory)
    named = code_named(sweep)
    _check_given(sweep, given, named)
    _check_code(named, given, directory / SWEEP_FILE)
    place = sweep.data or sweep.data_root
    if not is_local(place):
        _check_confirmed(sweep, given, directory / SWEEP_FILE)
    open_storage(place)  # raises an error for an unusable URL; nothing is contacted
    return with_own_places(sweep)


def _check_given(sweep: Sweep, given: GivenAgain, named: Mapping[str, list[object]]) -> None:
    for flag, now, then in (
        (
            "the workload",
            None if given.workload == sweep.preset else given.workload,
            sweep.workload,
        ),
        ("--to", given.data_root, sweep.data_root),
        ("--data", given.data, sweep.data),
    ):
        if now is not None and now != then:
            raise UsageError(
                f"{flag} is '{printable(now, 100)}', but was '{printable(then, 100)}' in the sweep",
                remedy="leave it out, or begin a new sweep",
            )
    keys = [*(text.partition("=")[0].strip() for text in given.overrides), *given.axes]
    check_given_again(
        keys,
        _said(given, own={}),
        named,
        what="the sweep",
        when="a sweep is resumed or confirmed",
        remedy="leave it out, or begin a new sweep",
    )


def _check_code(named: Mapping[str, list[object]], given: GivenAgain, path: Path) -> None:
    """Raise UsageError unless the user has named all that the sweep would run as code."""
    # A name of a workload is no statement of the user's: it may be that of a file which lies in
    # the current directory.
    own = {} if given.workload is None else read_any_workload(given.workload)
    said = _said(given, own=own)
    for key, values in named.items():
        for value in values:
            known = {key: value} if value in said.get(key, []) else {}
            check_named({key: value}, known, where=str(path))


def _said(given: GivenAgain, *, own: Mapping[str, object]) -> dict[str, list[object]]:
    """What the user names as code by arguments, and by a workload whose content is ``own``."""
    axes = [
        f"{key}={setting_text(value)}" for key, values in given.axes.items() for value in values
    ]
    said: dict[str, list[object]] = {}
    for found in (code_of(own), code_in(given.overrides), *(code_in([text]) for text in axes)):
        for key, value in found.items():
            said.setdefault(key, []).append(value)
    return said


def _check_confirmed(sweep: Sweep, given: GivenAgain, path: Path) -> None:
    """Raise UsageError unless the user has said where requests go, and how."""
    allowed = list(_storages(sweep, given))
    flag = "--data" if sweep.data else "--to"
    said = given.data == sweep.data if sweep.data else given.data_root == sweep.data_root
    if said and all(
        workload_of(sweep, point.settings).storage_options() in allowed for point in sweep.points
    ):
        return
    place = printable(sweep.data or sweep.data_root, 100)
    raise UsageError(
        f"{path} names the data at '{place}', but iobench does not use an address only because a "
        "file contains it",
        remedy=f"if that is your data, give {flag} again, and also the workload's file, "
        "--set storage.KEY=VALUE and --sweep storage.KEY=A,B if the sweep had them",
    )


def _storages(sweep: Sweep, given: GivenAgain) -> Iterator[dict[str, str]]:
    """Yield the storage options that the user's own arguments and files allow."""
    own: object = {}
    # A name is looked up among the user's and the built-in workloads. A path stands only in the
    # file, so it is not trusted unless the user gave it again.
    if is_known(sweep.workload) or given.workload is not None:
        own = read_any_workload(sweep.workload).get(_STORAGE) or {}
    for values in itertools.product(*given.axes.values()):
        axes = [f"{key}={value}" for key, value in zip(given.axes, values, strict=True)]
        found = apply_overrides({_STORAGE: own}, [*given.overrides, *axes])[_STORAGE]
        if isinstance(found, dict):
            yield option_texts(found)


MIN_TRIALS = 5
"""Runs of each side. With fewer than 4, an exact test cannot find a difference (its two-sided p is
0.1 or more); 5 allow one run to be far from the others.
"""

_SEED_STEP = 1_000_003
"""Distance between the seeds of a sweep and of its confirmation; no sweep has so many trials."""


def confirm(
    folder: Path,
    *,
    given: GivenAgain,
    options: SweepOptions,
    repetitions: int = MIN_TRIALS,
    observer: Observer | None = None,
    hosts: Hosts | None = None,
) -> SweepConfirmation:
    """Try both points in turns, and compare their runs.

    ``given``: what the user states again for a sweep on a URL. Raises UsageError if there is
    nothing to confirm, if too few trials succeed for a comparison, or if they are not comparable.
    """
    sweep = take_up(folder, given)
    advice = recommend(read_sweep(folder))
    today, advised = _sides(sweep, advice)
    fresh = sweep.model_copy(
        update={
            **head(options.command),
            "points": [today, advised],
            "default": today.settings,
            "seed": sweep.seed + _SEED_STEP,
            "repetitions": max(repetitions, MIN_TRIALS),
            "calibration_s": 0.0,
            "planned": [],
            "preset": "",
            "walk": [],
            "walked": 0,
            "tags": tags() or sweep.tags,
        }
    )
    directory = new_directory(options.results, f"confirm-{Path(sweep.workload).stem}")
    save_sweep(directory, fresh)
    fresh = run_sweep(fresh, directory, options, observer=observer, hosts=hosts)
    groups = [_trials(point, directory) for point in fresh.points]
    # All points of one sweep read the same samples; only the way they are stored differs, and the
    # number of steps in which a walk takes them.
    found = compare(
        *groups,
        across=("dataset", "max_steps", *sweep.axes),
        metrics=("samples_per_s", "time_to_first_batch_s", "cpu_s"),
        corrected=False,  # the first one decides; the others are shown
    )
    return sweep_confirmation(advice, found, str(directory), tuple(fresh.left_out))


def _trials(point: SweepPoint, directory: Path) -> Group:
    """Load the point's usable runs, by the same rule as ``advise``.

    Raises UsageError if they are too few to find a difference.
    """
    group, broken = Group(describe(point.settings)), ""
    for name in point.runs:
        doc = load_training(directory / name)
        if why := usable(doc, name):
            broken = why
        else:
            group.runs.append(doc)
    count = len(group.values("samples_per_s"))
    if count < MIN_RUNS:
        why = point.failed or broken or "there was no time left"
        raise UsageError(
            f"the advice could not be confirmed: {group.label} has {count} of the "
            f"{MIN_RUNS} runs that are necessary: {why}",
            remedy=f"see {directory}",
        )
    return group


def _sides(sweep: Sweep, advice: Recommendation) -> tuple[SweepPoint, SweepPoint]:
    """Today's settings and the advised ones, as points without trials."""
    if sweep.default is None:
        raise UsageError(
            "this sweep does not record the settings in use today, to compare the advice with"
        )
    sides = []
    for wanted in (
        {key: setting_text(value) for key, value in sweep.default.items()},
        dict(advice.settings),
    ):
        point = next(
            (
                point
                for point in sweep.points
                if all(
                    same(setting_text(point.settings.get(key)), value)
                    for key, value in wanted.items()
                )
            ),
            None,
        )
        if point is None:
            raise UsageError(
                f"no point of this sweep has the settings {settings_text(wanted)}",
                remedy="its sweep.json is incomplete: run the sweep again",
            )
        sides.append(
            SweepPoint(settings=point.settings, data=point.data, dataset_bytes=point.dataset_bytes)
        )
    if sides[0].settings == sides[1].settings:
        raise UsageError(
            "the advice is to keep the settings in use today, so there is nothing to confirm"
        )
    return sides[0], sides[1]
