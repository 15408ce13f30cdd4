"""The two sides of ``iobench ab``: what A and B name, datasets or runs that are repeated."""

from __future__ import annotations

from pathlib import Path

from ..base.errors import UsageError
from ..record.ab import AB_FILE
from ..record.job import DatasetFacts
from ..record.run import RUN_FILE, TrainingRecord, load_training
from ..record.sweep import SWEEP_FILE
from ..runner.ab import SideAsked, naming
from ..runner.earlier import Asked, asked_again, check_same_data
from ..runner.plan import make_plan
from ..settings.workload import load_workload
from .requests.measure import AbRequest

SEED, ACCELERATORS = 42, 1
"""Where neither a flag nor a run that is repeated says so."""


def sides_of(request: AbRequest) -> tuple[SideAsked, SideAsked]:
    """Make the plans of both sides. Raises UsageError, and as ``make_plan``, with the side."""
    places = (request.a, request.a if request.b is None else request.b)
    runs = []
    for name, place in zip("AB", places, strict=True):
        with naming(name):
            runs.append(_run_of(place))
    known = next((doc for doc in runs if doc is not None), None)
    if known is None and request.workload is None:
        raise UsageError(
            "it is not known which workload to run on the data",
            remedy="add --workload NAME (iobench list workloads), or name a run directory for A",
        )
    if request.workload is not None and all(doc is not None for doc in runs):
        raise UsageError(
            "--workload can't be used with run directories, which have a workload",
            remedy="leave it out, or name the datasets",
        )
    if request.data is not None and known is None:
        raise UsageError(
            "--data is for run directories, but A and B are datasets", remedy="leave it out"
        )
    found = []
    for name, place, doc in zip("AB", places, runs, strict=True):
        with naming(name):
            found.append(_side(request, name.lower(), place, doc, known))
    a, b = found
    if a.plan.workload.name != b.plan.workload.name:
        raise UsageError(
            f"A runs the workload '{a.plan.workload.name}', but B '{b.plan.workload.name}', so "
            "that their rates can't be compared",
            remedy="name two runs of one workload, or two datasets and --workload",
        )
    return a, b


def _run_of(place: str) -> TrainingRecord | None:
    """The record of a run directory; None for a dataset."""
    path = Path(place)
    for file, kind in ((AB_FILE, "comparison in turns"), (SWEEP_FILE, "sweep")):
        if (path / file).is_file():
            raise UsageError(
                f"{place} is a {kind}, not one run", remedy="name the directory of a run below it"
            )
    if path.name == RUN_FILE and path.is_file():
        return load_training(path)
    return load_training(path) if (path / RUN_FILE).is_file() else None


def _side(
    request: AbRequest,
    name: str,
    place: str,
    doc: TrainingRecord | None,
    known: TrainingRecord | None,
) -> SideAsked:
    """The plan of a side: of a run (``doc``), or of a dataset with a workload.

    ``known``: the run whose workload a dataset without --workload gets. Its seed is that of both
    sides.
    """
    own = tuple(getattr(request, f"set_{name}"))
    overrides = [*request.overrides, *own]
    origin = getattr(request, f"origin_{name}") or request.origin
    if doc is not None:
        asked = asked_again(doc, data=request.data, origin=origin, overrides=overrides)
    elif request.workload is None:
        assert known is not None  # or ``sides_of`` has refused it
        elsewhere = known.with_job(dataset=DatasetFacts(location=None))
        asked = asked_again(elsewhere, data=place, origin=origin, overrides=overrides)
    else:
        asked = Asked(
            workload=load_workload(request.workload, overrides),
            data=place,
            origin=origin,
            accelerators=known.job.accelerators if known is not None else ACCELERATORS,
            seed=SEED,
        )
    seed = SEED
    if request.seed is not None:
        seed = request.seed
    elif known is not None and known.job.repetitions:
        seed = known.job.repetitions[0].seed
    plan = make_plan(
        asked.workload,
        asked.data,
        origin=asked.origin,
        accelerators=request.accelerators
        if request.accelerators is not None
        else asked.accelerators,
        repetitions=request.max_turns,
        seed=seed,
    )
    if doc is not None and request.data is None:
        check_same_data(doc, plan)
    return SideAsked(plan=plan, settings=own, repeats=doc.run_id if doc is not None else "")
