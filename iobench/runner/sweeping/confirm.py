"""Test advice: compare the advised settings with today's, on fresh data and with new seeds."""

from __future__ import annotations

from pathlib import Path

from ...ask.compare.claims import MIN_RUNS
from ...ask.compare.comparison import compare
from ...ask.compare.runs import Group, usable
from ...ask.tuning.points import same, settings_text
from ...ask.tuning.recommend import (
    Recommendation,
    SweepConfirmation,
    recommend,
    sweep_confirmation,
)
from ...ask.tuning.sweepfolder import read_sweep
from ...base.errors import UsageError
from ...record.run import load_training
from ...record.sweep import (
    Sweep,
    SweepPoint,
    describe,
    save_sweep,
    setting_text,
)
from ...settings.base import head
from ...settings.tags import tags
from ..facts import new_directory
from ..hosts.hosts import Hosts
from ..options import Observer, SweepOptions
from .run import run_sweep
from .takeup import Given, take_up

MIN_TRIALS = 5
"""Runs of each side. With fewer than 4, an exact test cannot find a difference (its two-sided p is
0.1 or more); 5 allow one run to be far from the others.
"""

_SEED_STEP = 1_000_003
"""Distance between the seeds of a sweep and of its confirmation; no sweep has so many trials."""


def confirm(
    folder: Path,
    *,
    given: Given,
    options: SweepOptions,
    repetitions: int = MIN_TRIALS,
    observer: Observer | None = None,
    hosts: Hosts | None = None,
) -> SweepConfirmation:
    """Try both points in turns, and compare their runs.

    ``given``: what the user states again for a sweep on a URL. Raises UsageError if there is
    nothing to confirm, or if too few trials succeed for a comparison.
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
    # All points of one sweep read the same samples; only the way they are stored differs.
    found = compare(
        *groups,
        across=("dataset", *sweep.axes),
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
