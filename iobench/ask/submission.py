"""Results of MLPerf Storage, read from the files that its tool leaves, and looked at again.

A run of it is a folder with ``summary.json``. Beside it are the times of its epochs and the
configuration of DLIO, which has the batch size and the time of a step. From these follows what the
published utilization leaves out. Only files are read: nothing here says why they are as they are.

Sources: DLIO's ``utils/statscounter.py`` (https://github.com/argonne-lcf/dlio_benchmark), and the
published results of v1.0 (https://github.com/mlcommons/storage_results_v1.0). There MB are 2^20
bytes and GB are 2^30.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ..base.documents import MAX_HEADER_BYTES, MAX_NUMBER, parse_json, read_regular, walk
from ..base.errors import DatasetError
from ..base.units import format_percent
from ..record.submission import summary_of
from ..settings.yamlfile import parse_yaml

SUMMARY = "summary.json"
MAX_RUNS = 20_000
MEMORY_MULTIPLE = 5
"""The dataset of a host is to be this many times its memory (Rules.md 2.1)."""

NOTABLE = 0.01
"""A difference of two utilizations that is worth saying, in shares."""

UNEVEN = 0.05
"""An epoch that is faster or slower than the others by so much is named."""

_RUN = re.compile(
    r"(?i)runs?|(?:result_)?(?:run|iter|trial)[-_.]?\d+|\d{8}[_-]\d{6}|[\dT:_.-]{15,}"
)
"""Names of folders that tell the runs of one system and workload apart."""


@dataclass(frozen=True, kw_only=True)
class SubmittedRun:
    """One run as its files tell it. Utilizations are shares of 1; None: the files do not say it.

    ``epochs`` are samples/s and ``utilizations`` what was published for them. ``by_rate`` is the
    utilization that the same rates are of all that the accelerators can take, X t / (B N).
    ``whole`` counts each epoch from its beginning to its end.
    """

    place: str
    group: str
    workload: str
    hosts: int
    accelerators: int
    epochs: tuple[float, ...]
    utilizations: tuple[float, ...]
    by_rate: tuple[float, ...] = ()
    whole: tuple[float, ...] = ()
    bytes_per_s: float | None = None
    save_bytes_per_s: float | None = None
    load_bytes_per_s: float | None = None
    required: float | None = None
    memory_bytes: float | None = None  # of all hosts that are described
    described_hosts: int = 0
    data_bytes: float | None = None

    @property
    def samples_per_s(self) -> float | None:
        return fmean(self.epochs) if self.epochs else None


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The runs of one system and workload, and facts about their files."""

    name: str
    runs: tuple[SubmittedRun, ...]
    facts: tuple[str, ...] = ()

    @classmethod
    def of(cls, runs: Sequence[SubmittedRun]) -> Submission:
        return cls(name=runs[0].group, runs=tuple(runs), facts=tuple(_facts(runs)))

    @property
    def workload(self) -> str:
        return self.runs[0].workload

    @property
    def hosts(self) -> int:
        return self.runs[0].hosts

    @property
    def accelerators(self) -> int:
        return self.runs[0].accelerators

    @property
    def required(self) -> float | None:
        return self.runs[0].required

    @property
    def falls_short(self) -> bool:
        """Whether its utilization is enough as published, and not if whole epochs count."""
        whole, published = self.mean("whole"), self.mean("utilizations")
        if self.required is None or whole is None or published is None:
            return False
        return whole < self.required <= published

    def mean(self, name: str) -> float | None:
        """The mean over the runs of a figure, or over all epochs of a list of figures."""
        found: list[float] = []
        for run in self.runs:
            value = getattr(run, name)
            found += value if isinstance(value, tuple) else [] if value is None else [value]
        return fmean(found) if found else None


@dataclass(frozen=True, kw_only=True)
class Submissions:
    """All that was found below a folder. ``left_out``: what could not be read, and why."""

    folder: str
    found: tuple[Submission, ...]
    left_out: tuple[str, ...] = field(default=())

    def median_gap(self) -> float | None:
        """How far whole epochs are below the published utilization, in the median run."""
        gaps = [
            fmean(run.utilizations) - fmean(run.whole)
            for each in self.found
            for run in each.runs
            if run.utilizations and run.whole
        ]
        return median(gaps) if gaps else None


def is_submission(folder: Path) -> bool:
    """Whether there is a summary of MLPerf Storage at or below the folder."""
    return next(_summaries(folder), None) is not None


def read_submissions(folder: Path) -> Submissions:
    """Read every summary below the folder.

    Raises DatasetError if none of them could be read, or if there are more than MAX_RUNS.
    """
    runs: list[SubmittedRun] = []
    left_out: list[str] = []
    for number, path in enumerate(sorted(_summaries(folder))):
        if number >= MAX_RUNS:
            raise DatasetError(f"{folder} has more than {MAX_RUNS:,} results", remedy="name a part")
        try:
            runs.append(_run(path, folder))
        except (OSError, ValueError) as error:
            left_out.append(f"{path.relative_to(folder)}: {error}")
    if not runs:
        why = f": {left_out[0]}" if left_out else ""
        raise DatasetError(
            f"{folder} has no result of MLPerf Storage that can be read{why}",
            remedy=f"name a folder with the {SUMMARY} of its runs",
        )
    groups: dict[tuple[str, int, int], list[SubmittedRun]] = {}
    for run in runs:
        groups.setdefault((run.group, run.hosts, run.accelerators), []).append(run)
    found = tuple(map(Submission.of, groups.values()))
    return Submissions(folder=str(folder), found=found, left_out=tuple(left_out))


def _summaries(folder: Path) -> Iterator[Path]:
    """Summaries below the folder, but for those in copies of DLIO's code, which are examples."""
    for place, names in walk(folder):
        path = Path(place, SUMMARY)
        examples = {"code", "test_data"} & {*path.relative_to(folder).parts}
        if SUMMARY in names and not examples and path.is_file():
            yield path


def _run(path: Path, folder: Path) -> SubmittedRun:
    """The run of a summary. Raises OSError, ValueError."""
    summary = summary_of(parse_json(read_regular(path, MAX_HEADER_BYTES)))
    config = _document(path, "config.yaml").get("workload")
    config = config if isinstance(config, Mapping) else {}
    rates = _values(summary.metric.train_throughput_samples_per_second)
    batch, step_s = (
        _number(config, "reader", "batch_size"),
        _number(config, "train", "computation_time"),
    )
    slots = summary.num_accelerators * batch if batch else 0
    samples = (summary.num_files_train or 0) * (summary.num_samples_per_file or 0)
    rate = summary.metric.train_io_mean_MB_per_second
    known = [size * 2**30 for size in summary.host_memory_GB if size]
    share = summary.data_size_per_host_GB
    group = _group(path.parent.relative_to(folder))
    return SubmittedRun(
        place=str(path.parent.relative_to(folder)),
        group=group or folder.name,
        workload=_workload(path, config) or "not told",
        hosts=summary.num_hosts,
        accelerators=summary.num_accelerators,
        epochs=rates,
        utilizations=tuple(au / 100 for au in _values(summary.metric.train_au_percentage)),
        by_rate=tuple(each * step_s / slots for each in rates) if slots and step_s else (),
        whole=tuple(samples * step_s / slots / took for took in _epoch_times(path))
        if slots and step_s and samples
        else (),
        bytes_per_s=None if rate is None else rate * 2**20,
        save_bytes_per_s=_gib(summary.metric.save_checkpoint_io_mean_GB_per_second),
        load_bytes_per_s=_gib(summary.metric.load_checkpoint_io_mean_GB_per_second),
        required=_number(config, "metric", "au"),
        memory_bytes=sum(known) if known else None,
        described_hosts=len(known),
        data_bytes=None if share is None else share * 2**30 * summary.num_hosts,
    )


def _gib(value: float | None) -> float | None:
    return None if value is None else value * 2**30


def _values(given: list[float] | float | None) -> tuple[float, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list) else (given,)


def _group(place: Path) -> str:
    """The folder of a system and a workload: all but the names that tell its runs apart."""
    parts = list(place.parts)
    at = next((at for at, part in enumerate(parts) if _RUN.fullmatch(part)), len(parts))
    return "/".join(part for part in parts[:at] if part != "results")


def _document(summary: Path, name: str) -> Mapping[str, Any]:
    """A file of Hydra beside a summary, or in a folder beside it; empty if it can't be read."""
    for path in (summary.with_name(name), *sorted(summary.parent.glob(f"*/{name}"))):
        try:
            found = parse_yaml(read_regular(path, MAX_HEADER_BYTES).decode())
        except (OSError, ValueError):
            continue
        if isinstance(found, Mapping):
            return found
        if isinstance(found, list):  # of overrides, KEY=VALUE
            pairs = (str(each).partition("=") for each in found)
            return {key.lstrip("+"): value for key, _, value in pairs}
    return {}


def _workload(summary: Path, config: Mapping[str, Any]) -> str:
    """Its name with its accelerator, if the overrides tell it; else that of its model."""
    named = _document(summary, "overrides.yaml").get("workload")
    return str(named or config.get("model") or "")


def _number(config: Mapping[str, Any], part: str, key: str) -> float | None:
    """A positive number of the configuration; of a distribution its mean."""
    within = config.get(part)
    value = within.get(key) if isinstance(within, Mapping) else None
    value = value.get("mean") if isinstance(value, Mapping) else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < MAX_NUMBER else None


def _epoch_times(summary: Path) -> Iterator[float]:
    """Seconds of each epoch from its beginning to its end, without its checkpoints."""
    for path in sorted(summary.parent.glob("*per_epoch_stats.json")):
        try:
            found = parse_json(read_regular(path, MAX_HEADER_BYTES))
        except (OSError, ValueError):
            return
        for epoch in found.values() if isinstance(found, dict) else ():
            if not isinstance(epoch, dict) or (took := _seconds(epoch)) is None:
                continue
            parts = (part for key, part in epoch.items() if key.startswith("ckpt"))
            took -= sum(_seconds(part) or 0.0 for part in parts if isinstance(part, dict))
            if took > 0:
                yield took
        return


def _seconds(part: Mapping[str, Any]) -> float | None:
    try:
        return float(part["duration"])
    except (KeyError, TypeError, ValueError):
        return None


def _facts(runs: Sequence[SubmittedRun]) -> Iterator[str]:
    """What the files of these runs say beside what was published, one clause each."""
    published, rated = _mean(runs, "utilizations"), _mean(runs, "by_rate")
    whole, required = _mean(runs, "whole"), runs[0].required
    if published is not None and whole is not None and published - whole > NOTABLE:
        enough = required is None or not whole < required <= published
        limit = "" if enough else f", where {format_percent(required or 0.0)} is required"
        yield (
            f"utilization is {format_percent(whole)} over whole epochs, and "
            f"{format_percent(published)} as published{limit}"
        )
    elif published is not None and rated is not None and abs(published - rated) > NOTABLE:
        yield (
            f"utilization is {format_percent(rated)} by the samples/s, and "
            f"{format_percent(published)} as published"
        )
    for run in runs:
        middle = median(run.epochs) if len(run.epochs) > 2 else None
        odd = [
            at
            for at, rate in enumerate(run.epochs, 1)
            if middle and abs(rate / middle - 1) > UNEVEN
        ]
        if middle and odd:
            ratio = run.epochs[odd[0] - 1] / middle
            yield f"epoch {odd[0]} of {run.place} has {ratio:.2f} x the median rate of its epochs"
    first = runs[0]
    if 0 < first.described_hosts < first.hosts:
        yield f"the memory of {first.described_hosts} of {first.hosts} hosts is told"
    if first.memory_bytes and first.data_bytes and first.described_hosts >= first.hosts:
        multiple = first.data_bytes / first.memory_bytes
        if multiple < MEMORY_MULTIPLE:
            yield (
                f"the dataset is {multiple:.2g} x the memory of the hosts, and the rules demand "
                f"{MEMORY_MULTIPLE} x"
            )


def _mean(runs: Iterable[SubmittedRun], name: str) -> float | None:
    found = [value for run in runs for value in getattr(run, name)]
    return fmean(found) if found else None
