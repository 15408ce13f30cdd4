"""The figures of runs as OpenMetrics text, which Prometheus reads.

Source: OpenMetrics 1.0 (https://prometheus.io/docs/specs/om/open_metrics_spec/): a family has its
HELP, TYPE and UNIT lines before its samples, the name of a family ends with its unit, units are
base units, and ``# EOF`` is the last line. A figure that was not measured has no sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from statistics import median

from ..base.text import MAX_SHOWN, printable
from ..judge.checkpoint import values_of_study
from ..record.metrics import METRICS, Metric, Unit
from ..record.run import ModelLoadRecord, RunRecord, TrainingRecord
from ..record.verdict import Estimate
from .figures import labels_of
from .sections import TAG
from .stages import stage_rates

_UNITS: dict[Unit, tuple[str, str]] = {
    "samples/s": ("samples_per_s", "samples_per_second"),
    "bytes/s": ("bytes_per_s", "bytes_per_second"),
    "s": ("s", "seconds"),
    "bytes": ("bytes", "bytes"),
    "count": ("", ""),
    "share": ("", "ratio"),
    "ratio": ("", "ratio"),
    "W": ("w", "watts"),
    "MHz": ("mhz", "megahertz"),
}
"""For each unit but requests/s: how keys of records end, and its name in OpenMetrics."""

_STATS = ("median", "min", "max")

Labels = Mapping[str, str]


MetricSample = tuple[Labels, float]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with the samples of one run or of several."""

    name: str
    told: str
    samples: Sequence[MetricSample]
    unit: str = ""
    kind: str = "gauge"


def openmetrics(*docs: RunRecord) -> str:
    """The whole exposition of some runs. All samples have the label ``run``, the id of theirs.

    The samples of all runs in one family are together, as the format demands. A run counts once.
    """
    together: dict[str, list[Family]] = {}
    for doc in {doc.run_id: doc for doc in docs}.values():
        for family in _families(doc):
            together.setdefault(family.name, []).append(family)
    lines = [
        line
        for families in together.values()
        for line in _lines(families[0], [each for one in families for each in one.samples])
    ]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _families(doc: RunRecord) -> Iterator[Family]:
    run = {"run": doc.run_id}
    yield from _about(doc, run)
    for metric in METRICS:
        values = [({"stat": stat} if stat else {}, value) for stat, value in _values(doc, metric)]
        told = f"{metric.label.strip()}{_OF.get(metric.of, '')}"
        samples = [({**run, **labels}, value) for labels, value in values]
        yield Family(family_name(metric), told, samples, _unit(metric)[1])
    if isinstance(doc, TrainingRecord):
        yield from _of_verdict(doc, run)


_MEASURED = {
    "training": ("repetition",),
    "model-load": ("load",),
    "serving": ("request", "repetition"),
    "kv-cache": ("request", "repetition"),
}
"""What the metrics of a run are of, by its kind, beside those of its saves and its verdict."""

_OF = {
    "repetition": ", over the repetitions",
    "save": ", over the saves",
    "restore": ", over the restores",
    "load": ", over the loads",
    "request": ", over the repetitions",
}


def family_name(metric: Metric) -> str:
    """``iobench_`` and the metric's key, with the unit as OpenMetrics spells it at the end.

    Figures of saves, restores and the verdict are told apart by a prefix.
    """
    ending, unit = _unit(metric)
    words = metric.name.removesuffix(ending).strip("_") if ending else metric.name
    words = words.removeprefix(f"{unit}_") if unit else words
    prefix = "" if metric.of == "repetition" or words.startswith(metric.of) else metric.of
    return "_".join(filter(None, ("iobench", prefix, words, unit)))


def _unit(metric: Metric) -> tuple[str, str]:
    """How the key ends, and the unit; of requests/s, reads/s and records/s by what is counted."""
    if metric.unit != "requests/s":
        return _UNITS[metric.unit]
    counted = metric.name.removesuffix("_per_s").rpartition("_")[2]
    return f"{counted}_per_s", f"{counted}_per_second"


def _values(doc: RunRecord, metric: Metric) -> Iterator[tuple[str, float]]:
    """The median, least and largest value of a metric, as far as they were measured."""
    if metric.of == "verdict":
        verdict = doc.job.verdict if isinstance(doc, TrainingRecord) else None
        value = getattr(verdict, metric.name, None)
        if value is not None:
            yield "", float(value)
        return
    if metric.of in ("save", "restore"):
        study = doc.checkpoints
        found: Sequence[float] = values_of_study(study, metric) if study is not None else ()
    elif metric.of not in _MEASURED.get(doc.job.kind, ()):  # such as another figure of this name
        return
    elif metric.name in doc.metrics:
        summary = doc.metrics[metric.name]
        yield from zip(_STATS, (summary.median, summary.min, summary.max), strict=True)
        return
    elif not isinstance(doc, TrainingRecord):
        return
    else:
        values = [getattr(each, metric.name) for each in doc.job.repetitions if each.complete]
        found = [float(value) for value in values if value is not None]
    if found:
        yield from zip(_STATS, (median(found), min(found), max(found)), strict=True)


def _about(doc: RunRecord, run: Labels) -> Iterator[Family]:
    """What was run, when, with which outcome, and how many rules did not pass."""
    job = doc.job
    known = {name: value for name, value in labels_of(doc).items() if name != "created"}
    facts = {
        **run,
        "kind": job.kind,
        "status": doc.status,
        "rules": doc.rules,
        "iobench_version": doc.iobench_version,
        **{name: "" if value is None else str(value) for name, value in known.items()},
    }
    if isinstance(doc, TrainingRecord):
        facts["accelerators"] = str(doc.job.accelerators)
    elif doc.checkpoints is not None:
        facts |= {key: str(getattr(doc.checkpoints, key)) for key in ("model", "writer", "ranks")}
    elif isinstance(doc, ModelLoadRecord):
        facts["model"] = doc.job.model
        facts["loader"] = doc.job.spec.loaders[0] if doc.job.spec.loaders else ""
    facts |= {f"{TAG}{key}": value for key, value in doc.tags.items()}
    told = {name: value for name, value in facts.items() if value}
    yield Family("iobench_run", "What was run.", [(told, 1)], kind="info")
    if (at := _seconds(doc.created)) is not None:
        when = "When the run began, since 1970-01-01 UTC."
        yield Family("iobench_run_started_seconds", when, [(run, at)], "seconds")
    ends = ("ok", "failed", "interrupted")
    yield _states(run, "iobench_run_status", "How the run ended.", ends, doc.status)
    judged, by_rules = ("valid", "invalid", "unknown"), "Whether the run is valid by its rules."
    yield _states(run, "iobench_run_validity", by_rules, judged, doc.validity)
    levels = ("invalid", "unknown", "warning", "info")
    counts = {level: sum(each.level == level for each in doc.findings) for level in levels}
    found = [({**run, "level": level}, float(count)) for level, count in counts.items()]
    yield Family("iobench_findings", "Findings of the rules, by level.", found)


def _states(run: Labels, name: str, told: str, states: Sequence[str], now: str) -> Family:
    """Of several states, the one that holds is 1, and the others are 0."""
    samples = [({**run, name: state}, float(state == now)) for state in states]
    return Family(name, told, samples, kind="stateset")


def _of_verdict(doc: TrainingRecord, run: Labels) -> Iterator[Family]:
    """The bottleneck, what each stage costs, and the ceilings."""
    if doc.job.verdict is not None:
        name, told = "iobench_verdict_bottleneck", "1 for the stage that is the bottleneck."
        yield Family(name, told, [({**run, "stage": doc.job.verdict.bottleneck}, 1)])
    gains = [
        ({**run, "stage": each.stage, "bound": bound}, value)
        for each in doc.job.ablations
        for bound, value in _bounds(each.gain)
    ]
    told = "Samples/s if a stage took no time, over samples/s as it is; with its 95 % interval."
    yield Family("iobench_gain_ratio", told, gains, "ratio")
    measured = {name: each.samples_per_s for name, each in doc.job.ceilings.items()}
    known = measured | {each.name: each.rate for each in stage_rates(doc) if each.name in measured}
    ceilings = [
        ({**run, "stage": stage}, rate) for stage, rate in known.items() if rate is not None
    ]
    told, unit = "What a stage alone can deliver, all accelerators together.", "samples_per_second"
    yield Family(f"iobench_ceiling_{unit}", told, ceilings, unit)


def _bounds(found: Estimate | None) -> Iterator[tuple[str, float]]:
    for name in ("value", "low", "high"):
        value = getattr(found, name, None)
        if value is not None:
            yield name, value


def _seconds(created: str) -> float | None:
    try:
        return datetime.fromisoformat(created).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _lines(family: Family, samples: Sequence[MetricSample]) -> Iterator[str]:
    """The lines of one family; none without samples."""
    finite = [(labels, value) for labels, value in samples if isfinite(value)]
    if not finite:
        return
    yield f"# TYPE {family.name} {family.kind}"
    if family.unit:
        yield f"# UNIT {family.name} {family.unit}"
    yield f"# HELP {family.name} {_text(family.told)}"
    suffix = "_info" * (family.kind == "info")
    for labels, value in finite:
        told = ",".join(f'{label}="{_text(text)}"' for label, text in labels.items())
        yield f"{family.name}{suffix}{{{told}}} {float(value)!r}"


def _text(text: str) -> str:
    """A text within quotes: ``printable``, with backslashes and quotes escaped."""
    return printable(text, MAX_SHOWN).replace("\\", "\\\\").replace('"', '\\"')
