"""Read a folder of runs as the points of a sweep.

The points come from ``sweep.json`` if there is one, otherwise from the settings that differ between
the runs. Of ``sweep.json``, the settings and runs of its points, and its default, are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...base.documents import require_place
from ...base.errors import IobenchError, UsageError
from ...base.text import quoted
from ...base.units import counted
from ...record.run import RUN_FILE, TrainingRecord, load_run
from ...record.sweep import SWEEP_FILE, SweepPoint, load_sweep, setting_text
from ...record.sweep import Sweep as SweepRecord
from ...settings.base import known_specs
from ...settings.dataset import load_dataset_spec
from ...settings.workload import load_workload
from ..compare.identity import identity, role_of, settings_of
from .points import SweptPoint, check_one_workload, derive, flatten, merge, same, settings_text


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRuns:
    """Points with at least one complete repetition each, all of one workload."""

    workload: str
    points: tuple[SweptPoint, ...]
    default: SweptPoint | None
    default_settings: Mapping[str, str]  # of the default point; empty if not known
    left_out: tuple[str, ...]  # one line for each run or point that could not be used
    record: SweepRecord | None = None


def read_sweep(
    folder: Path, *, workload: str | None = None, default: Mapping[str, str] | None = None
) -> SweepRuns:
    """Read the runs whose directories are in ``folder``.

    ``workload`` selects the runs of one workload if there are several; ``default`` gives today's
    settings. Runs that cannot be read, failed or are INVALID, and points without a complete
    repetition, are not used, and are named in ``left_out``. Raises UsageError if fewer than two
    points remain, and for runs on several hosts or storages.
    """
    require_place(folder, "name the directory of a sweep, e.g. results/<sweep>")
    if (folder / RUN_FILE).is_file():
        tried, one = "", load_run(folder)
        if isinstance(one, TrainingRecord) and not one.job.subject.watched:
            tried = f", and try it with: iobench advise {quoted(str(folder))} --confirm"
        raise UsageError(
            f"{folder} is one run, but advice needs several",
            remedy="name the directory of a sweep; see the advice of this run with: "
            f"iobench report {quoted(str(folder))}{tried}",
        )
    record, unfinished, again = _recorded(folder), "", ""
    if record is not None and record.status in ("out of time", "interrupted", "running"):
        unfinished = f"; the sweep is '{record.status}'"
        again = f"continue it with: iobench sweep --resume {quoted(str(folder))}"
    left_out: list[str] = []
    documents = _runs(folder, workload, left_out)
    if not documents:
        why = f": {left_out[0]}" if left_out else ""
        more = f", and {len(left_out) - 1} more like it" if len(left_out) > 1 else ""
        of = f" of workload '{workload}'" if workload else ""
        raise UsageError(
            f"{folder} holds no run{of} that advice can be based on{why}{more}{unfinished}",
            remedy=again or "run a sweep, and name its directory",
        )
    _check_place(folder, list(documents.values()))
    points = (
        derive(list(documents.values()))
        if record is None
        else _planned(record.points, documents, left_out)
    )
    for point in points:
        if not point.rates:
            left_out.append(f"{settings_text(point.settings)}: no complete repetition")
    points = [point for point in points if point.rates]
    if len(points) < 2:
        raise UsageError(
            f"{folder} holds {counted(len(points), 'point')} of settings, "
            f"but advice needs at least 2{unfinished}",
            remedy=again or "add runs with other settings, e.g. --set loader.workers=4",
        )
    keys = list(points[0].settings)
    recorded = {} if record is None else record.default or {}
    wanted = dict(
        default
        or {key: setting_text(value) for key, value in recorded.items()}
        or _builtin(points[0].document, keys)
    )
    unknown = [key for key in default or () if key not in keys]
    if unknown:
        raise UsageError(
            f"--default {unknown[0]}: this setting is the same in all runs",
            remedy=f"settings that differ: {', '.join(keys)}",
        )
    return SweepRuns(
        workload=points[0].document.job.workload.name,
        points=tuple(points),
        default=_find(points, wanted) if wanted else None,
        default_settings=wanted,
        left_out=tuple(left_out),
        record=record,
    )


def _runs(folder: Path, workload: str | None, left_out: list[str]) -> dict[str, TrainingRecord]:
    found = {}
    for directory in sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    ):
        try:
            doc = load_run(directory)
        except IobenchError as error:
            left_out.append(f"{directory.name}: {error.what}")
            continue
        if not isinstance(doc, TrainingRecord):
            left_out.append(f"{directory.name}: a run of kind {doc.job.kind} loads no data")
            continue
        if workload is not None and doc.job.workload.name != workload:
            continue
        broken = [finding.rule for finding in doc.findings if finding.level == "invalid"]
        if doc.status == "failed":
            left_out.append(f"{directory.name}: the run failed")
        elif doc.validity == "invalid":
            left_out.append(
                f"{directory.name}: INVALID ({', '.join(broken) or 'no rule is recorded'})"
            )
        else:
            found[directory.name] = doc
    return found


def _check_place(folder: Path, docs: Sequence[TrainingRecord]) -> None:
    """Raises UsageError for runs on several hosts or storages: no setting explains their rates.

    The URL may differ, because a sweep has a dataset for each of its layouts.
    """
    settings = settings_of(docs[0])
    found = [identity(doc) for doc in docs]
    for key in sorted({key for facts in found for key in facts} - {"storage.url", *settings}):
        values = {facts.get(key, "-") for facts in found}
        if len(values) > 1 and role_of(key) == "place":
            raise UsageError(
                f"the runs in {folder} are of several hosts or storages: {key} is "
                f"{' and '.join(sorted(values)[:2])}",
                remedy="keep the runs of each in a folder of its own",
            )


def _recorded(folder: Path) -> SweepRecord | None:
    """The record of the sweep; None without one. Raises UsageError for a file that is not valid."""
    if not (folder / SWEEP_FILE).exists():
        return None
    try:
        return load_sweep(folder)
    except IobenchError as error:
        remedy = f"repair {SWEEP_FILE}, or remove it: the settings are then taken from the runs"
        denied = isinstance(error.__cause__, PermissionError)
        raise UsageError(error.what, remedy=error.remedy if denied else remedy) from None


def _planned(
    planned: Sequence[SweepPoint], documents: Mapping[str, TrainingRecord], left_out: list[str]
) -> list[SweptPoint]:
    """The points of the sweep's record, each with its runs that can be used, if none failed."""
    points = []
    keys = list(dict.fromkeys(key for point in planned for key in point.settings))
    tried: dict[tuple[str, ...], list[str]] = {}  # a walk has some settings in several steps
    for each in planned:
        texts = tuple(setting_text(each.settings.get(key)) for key in keys)
        if each.failed:
            named = settings_text(dict(zip(keys, texts, strict=True)))
            left_out.append(f"{named}: {each.failed}")
            continue
        tried.setdefault(texts, []).extend(each.runs)
    for texts, names in tried.items():
        settings = dict(zip(keys, texts, strict=True))
        runs = [documents[name] for name in names if name in documents]
        if runs:
            points.append(SweptPoint(settings, merge(runs)))
        else:
            left_out.append(f"{settings_text(settings)}: no run can be used")
    check_one_workload([point.document for point in points])
    return points


def _builtin(doc: TrainingRecord, keys: Sequence[str]) -> dict[str, str]:
    """The settings of the built-in workload and dataset of this name; empty if there is none."""
    name = doc.job.workload.name
    if name not in known_specs("workload"):  # the name comes from a record: never read it as a path
        return {}
    try:
        workload = load_workload(name)
        dataset = load_dataset_spec(workload.dataset)
    except UsageError:
        return {}
    flat = flatten(workload.model_dump(mode="json"), dataset.model_dump(mode="json")) | {
        "accelerators": "1"
    }
    return {key: flat.get(key, "null") for key in keys}


def _find(points: Sequence[SweptPoint], wanted: Mapping[str, str]) -> SweptPoint | None:
    matching = [
        point
        for point in points
        if all(same(wanted.get(key, value), value) for key, value in point.settings.items())
    ]
    return matching[0] if len(matching) == 1 else None
