"""What each stage can do alone, what leaving it out brings, and whether the rate lasts.

Also how many accelerators the storage feeds: the tries of a search, and larger numbers of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    percent_beside,
)
from ..judge.evidence import DRAINED
from ..judge.figures.curve import highest
from ..judge.figures.in_flight import bytes_per_sample
from ..judge.figures.rates import long_enough, steady_from
from ..judge.figures.search import STEADY, trials_of, utilization_of
from ..judge.judged import judge, raw_has_too_few_reads
from ..judge.promise import shown
from ..judge.rules_ranks import falls, measured_rates
from ..record.run import TrainingRecord
from ..record.training import CachedEpoch, Ceiling, FindMax, FindMaxPoint
from ..record.verdict import AblatedStage, Ablation, Estimate, Fed
from .figures import (
    BLANK,
    NO_REASON,
    Format,
    TableOf,
    cell,
    ends,
    lacking,
    told,
    with_interval,
    word,
)
from .glance import STAGES, UTILIZATION
from .sections import Bars, Cell, Chart, Mark, Prose, Table, Value
from .time import cpu_s_per_gb

BURST = (
    "measured in times that end before the rate of a repetition falls: they are those of a burst, "
    "and a training gets the rate after the fall"
)
"""Of figures of the storage, in a report whose verdict rests on the rate after a fall."""


def is_burst(doc: TrainingRecord) -> bool:
    """Whether the storage's ceilings and its curve are not what lasts."""
    fed = doc.job.verdict.fed if doc.job.verdict else None
    return fed is not None and fed.basis == "run"


def rate_over_time(doc: TrainingRecord) -> str:
    """The line; '' if no repetition is long enough to say anything."""
    long = [rates for _, rates in measured_rates(doc) if long_enough(rates)]
    if not long:
        return ""
    repetitions = counted(len(long), "repetition")
    if found := falls(doc):
        number, fall = min(found, key=lambda each: each.fall.share)
        return (
            f"falls to {format_percent(fall.share)} after {format_duration(fall.at_s)} "
            f"(repetition {number}); a lasting fall in {len(found)} of {repetitions}"
        )
    starts = [steady_from(rates) for rates in long]
    known = [start for start in starts if start is not None]
    if len(known) < len(starts):
        return f"no steady state in {len(starts) - len(known)} of {repetitions}"
    begin = max(known)
    when = f"reached after {format_duration(begin)} at the latest"
    return f"steady state {when if begin else 'from the beginning'}, in {repetitions}"


LABELS = {
    "storage_raw": "storage, raw",
    "fetch": "fetch",
    "prep": "prep",
    "loader": "loader",
    "cpu": "all cores",
    "accelerator": "accelerators",
}
BOUND_BY = {
    "storage": ("fetch", "storage_raw"),
    "prep": ("prep",),
    "loader": ("loader",),
    "accelerator": ("accelerator",),
    "cpu": ("cpu",),
}
"""The ceilings of the bottleneck; saves, barriers and the start of epochs have none."""
OPENS = "storage_opens"
"""A row of the ceilings that no stage has: opening the files is a part of reading them."""

LONGEST = 8
"""Longest bar, as a multiple of the lowest rate, or of the rate as it is.

Without this limit a loader of 12 GB/s would make the other bars too short to compare.
"""


_OF_CEILINGS = {"bytes_per_s": "bandwidth, as measured", "cpu_s_per_gb": "CPU s/GB", "how": "how"}


class StageRate(NamedTuple):
    """What a stage delivers alone, in samples/s of the whole job."""

    name: str
    rate: float | None
    ceiling: Ceiling

    def called(self, names: Mapping[str, str]) -> str:
        """Its name among ``names``; the run may have shown that all cores deliver more."""
        told, at_least = self.ceiling.samples_per_s, self.name == "cpu"
        at_least &= bool(self.rate and told and self.rate > told)
        return names.get(self.name, self.name) + ", at least" * at_least


TOO_FEW_READS = "the curve had time for fewer reads in flight than the run has, which got more"


def stage_rates(doc: TrainingRecord) -> list[StageRate]:
    """The stages in the order of the data, and last the accelerators."""
    evidence, ceilings = judge(doc).evidence, dict(doc.job.ceilings)
    if raw_has_too_few_reads(doc):
        ceilings["storage_raw"] = Ceiling(not_measured=TOO_FEW_READS)
    stages = (evidence.raw, evidence.fetch, evidence.prep, evidence.loader)
    rates = (*stages, evidence.cpu, evidence.alone or evidence.accelerator)
    return [
        StageRate(name, rate, ceilings.get(name, Ceiling()))
        for name, rate in zip(LABELS, rates, strict=True)
    ]


def bottleneck_stage(doc: TrainingRecord, rates: Sequence[StageRate]) -> str:
    """The stage whose ceiling is the bottleneck, of several the first that is known.

    Empty if the bottleneck is no stage, or undecided.
    """
    known = {each.name for each in rates if each.rate}
    names = BOUND_BY.get(doc.job.verdict.bottleneck if doc.job.verdict else "", ())
    return next((name for name in names if name in known), next(iter(names), ""))


def ceiling_section(doc: TrainingRecord) -> Table | None:
    """Bars for the ceilings, the prediction and the measured rate."""
    size, evidence, rates = bytes_per_sample(doc), judge(doc).evidence, stage_rates(doc)
    if (opens := _opens(doc)) is not None:
        rates.insert(1, opens)
    if (cache := doc.job.ceilings.get("cache")) is not None:
        rows_at = next(at for at, each in enumerate(rates) if each.name == "prep")
        rates.insert(rows_at, StageRate("cache", cache.samples_per_s, cache))
    none = Ceiling(not_measured="no ceiling was measured")
    rates.append(StageRate("predicted", evidence.predicted, none))
    why = DRAINED if evidence.drained else "no complete repetition"
    whole = Ceiling(not_measured=why, cpu_s_per_gb=cpu_s_per_gb(doc))
    rates.append(StageRate("measured", None if evidence.drained else evidence.measured, whole))
    known = [each.rate for each in rates if each.rate]
    if not known:
        return None
    # Those that a watched training lacks are in a note.
    named = {*doc.job.ceilings, "predicted", "measured"} if not doc.job.subject.watched else set()
    rows = TableOf(each for each in rates if each.rate or each.name in named)
    names = LABELS | {OPENS: "storage, opens", "cache": "local cache"}
    rows.add("ceiling", of=lambda each: word(each.called(names), each.name))
    if size:
        rows.add("stored_bytes_per_s", "stored bytes/s", "bytes/s", partial(_rate, size, why=True))
    rows.add("samples_per_s", "samples/s", "samples/s", partial(_rate, None, why=not size))
    rows.add_each(_OF_CEILINGS, of=_of_ceiling, missing="", where="pages")
    longest, bound = min(max(known), LONGEST * min(known)), bottleneck_stage(doc, rates)
    demand, by = evidence.accelerator, ("ceiling",)
    marks = (Mark(at=demand, label="the demand"),) if demand and demand <= longest else ()
    chart = Chart(kind="bars", y=("samples_per_s",), label=by, full=longest, marks=marks)
    spent = tuple(at for at, each in enumerate(rows.records) if each.ceiling.cpu_s_per_gb)
    title = "CPU seconds per GB of stored samples"
    cpu = Chart(kind="bars", y=("cpu_s_per_gb",), label=by, title=title, rows=spent)
    burst = f"the ceilings of the storage were {BURST}"
    return rows.made(
        "ceilings",
        "Ceilings of each stage alone",
        mark=lambda each: "bottleneck" if each.name == bound else "",
        bars=Bars(column="samples_per_s", full=longest),
        charts=[chart, cpu] if len(spent) > 1 else [chart],
        notes=told(_transport(doc, size), _of_watched(doc), is_burst(doc) and burst),
    )


def _opens(doc: TrainingRecord) -> StageRate | None:
    """Opening the files of samples without reading them, where each sample is a file."""
    curve = doc.job.curve.opens if doc.job.curve is not None else None
    best = highest(curve.points) if curve is not None else None
    if curve is None or best is None:
        return None
    rate = best.reads_per_s
    how = f"opens without reads, {counted(best.in_flight, 'open')} in flight, {curve.how}"
    windows = Estimate(value=rate.value, low=rate.low, high=rate.high, n=rate.windows)
    return StageRate(OPENS, rate.value, Ceiling(how=how, windows=windows))


def _rate(size: float | None, stage: StageRate, *, why: bool) -> Cell:
    """The rate in samples/s, with its interval if it has one, or in bytes of ``size`` a sample."""
    if not stage.rate:
        return lacking(stage.ceiling.not_measured or NO_REASON) if why else BLANK
    if size:
        return cell(stage.rate * size, format_rate)
    windows = stage.ceiling.windows
    same = windows is not None and windows.value == stage.rate
    low, high = (windows.low, windows.high) if windows and same else (None, None)
    return with_interval(stage.rate, low, high, format_count)


def _of_ceiling(stage: StageRate, key: str) -> Value:
    value: Value = getattr(stage.ceiling, key) if stage.rate else None
    return value


def _transport(doc: TrainingRecord, size: float | None) -> str:
    tax = doc.job.ceilings.get("loader", Ceiling()).details.tensor_samples_per_s
    if not tax:
        return ""
    moved = f"{format_count(tax)} samples/s"
    moved = f"{format_rate(tax * size)} ({moved})" if size else moved
    return f"with torch's default transport the loader would end at {moved}"


def _of_watched(doc: TrainingRecord) -> str:
    """Which ceilings a training that was watched does not have, and why."""
    lacking = {name: one.not_measured for name, one in doc.job.ceilings.items() if one.not_measured}
    if not doc.job.subject.watched or not lacking:
        return ""
    names = ", ".join(LABELS.get(name, name) for name in lacking)
    return f"not measured: {names}: {next(iter(lacking.values()))}"


def ablation_section(doc: TrainingRecord) -> Table | Prose | None:
    """A bar for each stage that was left out; why, where none was."""
    job = doc.job
    present = [each for each in job.ablations if _concerns(doc, each.stage)]
    if not any(each.gain for each in present):
        why = f"What each stage costs was not measured: {job.no_ablations}."
        return Prose(id="ablations", paragraphs=(why,)) if job.no_ablations else None
    present.sort(key=lambda each: -each.gain.value if each.gain else 0.0)
    largest = max(each.gain.value for each in present if each.gain)
    full = min(max(largest, 1.0), LONGEST)
    rows = TableOf(present)
    rows.add("stage", of=lambda each: word(STAGES[each.stage], each.stage))
    rows.add("gain", "gain", "ratio", _gain, ends=("low", "high"))
    rows.add("n", "rounds", of=lambda each: each.gain.n if each.gain else None, missing="")
    rows.add("how", "how", where="pages")
    chart = Chart(kind="bars", y=("gain",), label=("stage",), origin=1.0, full=full)
    return rows.made(
        "ablations",
        "What each stage costs: samples/s if it took no time, over samples/s as it is",
        bars=Bars(column="gain", full=full),
        charts=[chart],
        notes=told(_in_verdict(doc)),
    )


def _gain(each: Ablation) -> Estimate | Cell:
    return each.gain or lacking(each.not_measured or "")


def _in_verdict(doc: TrainingRecord) -> str:
    """What the verdict counts instead of the rounds, where it counts something else."""
    gains = doc.job.verdict.gains if doc.job.verdict else {}
    if "storage" in gains and is_burst(doc):
        return (
            "rounds compare whole repetitions; over the rate after its fall, leaving out the "
            f"storage brings {shown(gains['storage'])}"
        )
    less = [
        gains[each.stage].value
        for each in doc.job.ablations
        if each.gain and each.stage in gains and gains[each.stage].value < 0.995 * each.gain.value
    ]
    if not less:
        return ""
    return (
        f"at {max(less):.2f} x the accelerators never wait, so the verdict counts no more than that"
    )


def local_cache_section(doc: TrainingRecord) -> Table | None:
    """What a local cache served in each epoch, and the rate that this predicts."""
    facts, spec = doc.job.local_cache, doc.job.workload.local_cache
    if facts is None or spec is None or not facts.epochs:
        return None
    rows = TableOf(facts.epochs)
    rows.add("epoch", "epoch")
    rows.add("hit_rate", "hits of reads", "share")
    rows.add_each({"cached_share": "bytes spared the storage", "expected_share": "expected"})
    rows.add("samples_per_s", "samples/s")
    rows.add("predicted", "predicted samples/s", "samples/s", _predicted)
    kept = f"the copies are in {facts.kept}" if facts.kept else ""
    held = "" if facts.share is None else f", {format_percent(facts.share)} of the dataset"
    size = f"{format_bytes(spec.size)} in {facts.directory} ({facts.fs_type or 'unknown'}){held}"
    past = "read with O_DIRECT" if facts.direct else "read through the page cache"
    return rows.made(
        "local-cache",
        "Epochs behind the local cache: median of the repetitions",
        notes=told(f"{size}, eviction {spec.eviction}, {past}", kept),
    )


def _predicted(each: CachedEpoch) -> Cell:
    low, high = each.predicted_low, each.predicted_high
    if low is None or high is None:
        return lacking("the ceilings of storage and cache were not measured")
    return Cell(value=high, text=ends(low, high, format_count), low=low, high=high)


def _concerns(doc: TrainingRecord, stage: AblatedStage) -> bool:
    """Whether the run has such a stage: one rank waits for no other one."""
    if stage == "sync":
        return doc.job.accelerators > 1
    if stage == "log":
        return doc.job.workload.log.to is not None
    return stage != "checkpoint" or doc.job.saves is not None


_BY = {
    "find-max": "by --find-max",
    "plateau": "by the storage's curve",
    "fetch": "by the fetch ceiling",
    "run": "by the rate of the run after it fell",
    "": "",
}


UNKNOWN = "not known"


def fed_sections(doc: TrainingRecord, *, of_stored: str = "") -> Iterator[Table]:
    """The search's tries, and what is known of the run's number of ranks and of larger ones.

    ``of_stored``: what the bandwidths count, if not the bytes that were read.
    """
    if doc.job.find_max is not None:
        yield _search(doc.job.find_max, of_stored)
    fed = doc.job.verdict.fed if doc.job.verdict else None
    if fed is not None and any(each.how == "extrapolated" for each in fed.at):
        yield _more_ranks(fed, doc.job.workload.required_accelerator_utilization)


def number_text(fed: Fed | FindMax) -> str:
    """``11 [10, 11]``; ``8 or more`` where the storage may feed more than was tried."""
    if fed.accelerators is None or (not fed.accelerators and fed.low == 0 and fed.high is None):
        return UNKNOWN  # any number is 0 or more
    number = format_count(fed.accelerators)
    if fed.low is not None and fed.high is not None:
        return f"{number} {ends(fed.low, fed.high, str)}"
    if fed.low is not None:
        least = f" (at least {fed.low})" if fed.low != fed.accelerators else ""
        return f"{number} or more{least}"
    return number


def _more_ranks(fed: Fed, required: float) -> Table:
    told = {True: "fed", False: "starved", None: "inconclusive"}
    rows = TableOf(fed.at)
    beside = partial(percent_beside, limit=required)
    rows.add("ranks", "accelerators")
    rows.add("accelerator_utilization", "utilization", show=beside)
    rows.add("fed", of=lambda each: told[each.fed])
    rows.add("how")
    notes = [
        "extrapolated as if accelerators waited independently of one another, which is the worst: "
        "a storage that they share may let all of them wait at the same time"
    ]
    if fed.reads_in_flight is not None and fed.potential is None:
        notes.append(f"that takes {counted(round(fed.reads_in_flight), 'read')} in flight")
    if fed.potential is not None:
        notes.append(
            f"that is as the run reads it; with more reads in flight, or as advised, the storage "
            f"could feed {format_count(fed.potential)}"
        )
    elif fed.today is not None and fed.today != fed.accelerators:
        notes.append(f"with the run's own reads in flight: {format_count(fed.today)}")
    number = f"{number_text(fed)} {_BY[fed.basis]}".strip()
    title = f"Storage for accelerators at {format_percent(required)} utilization: {number}; "
    return rows.made("fed", f"{title}jobs with a barrier at each step", notes=notes)


def _drawn(found: FindMax) -> Chart:
    """The utilization of each try."""
    required, answer = found.required_accelerator_utilization, found.accelerators
    tried = [point.accelerators for point in found.points if utilization_of(point) is not None]
    return Chart(
        kind="lines",
        x="accelerators",
        y=(UTILIZATION,),
        dots=(UTILIZATION,),
        marks=(Mark(at=answer, label=f"{format_count(answer)} fed"),) if answer else (),
        limits=(Mark(at=required, label=f"required: {format_percent(required)}"),),
        log="x" if tried and max(tried) >= 4 * min(tried) > 0 else "",
    )


def _search(found: FindMax, of_stored: str) -> Table:
    """A row for each try, those of one number side by side."""
    required = format_percent(found.required_accelerator_utilization)
    beside = partial(percent_beside, limit=found.required_accelerator_utilization)
    none = "none of those tried" if found.bound else "not even one"
    answer = none if found.accelerators is None else number_text(found)
    rows = TableOf(point for tries in trials_of(found.points).values() for point in tries)
    rows.add("accelerators", "accelerators", "count")
    rows.add(UTILIZATION, "utilization", "share", lambda each: _utilization(each, beside))
    rows.add("read_bytes_per_s", "bandwidth", of=_bandwidth, missing="")
    rows.add("fed", of=partial(_passed, found.required_accelerator_utilization), missing="")
    rows.add("trial", "", "count", lambda each: each.trial + 1, where="pages")
    rows.add("steps", "", "count", missing="", where="pages")
    notes = [f"bandwidths are {of_stored}"] if of_stored else []
    notes += [f"the search stopped: {found.bound}"] if found.bound else []
    wanted = found.wanted_steps
    few = [point.steps for point in found.points if point.steps is not None]
    if wanted and few and min(few) < wanted:
        notes.append(
            f"tries had {counted(min(few), 'step')} or more in the steady window, fewer than the "
            f"{wanted} that a try should have: the data or the time of a try was too small. "
            "'inconclusive': what was read before the window may have fed the accelerators in it"
        )
    return rows.made(
        "find-max",
        f"Accelerators fed at {required} utilization or more: {answer}",
        bars=Bars(column=UTILIZATION, full=1.0),
        charts=[_drawn(found)],
        notes=notes,
    )


def _utilization(point: FindMaxPoint, show: Format) -> Cell:
    au, reasons = utilization_of(point), point.not_measured
    if au is None:
        return lacking(reasons.get(STEADY, reasons.get(UTILIZATION)) or "")
    return cell(au, show)


def _bandwidth(point: FindMaxPoint) -> float | None:
    return None if utilization_of(point) is None else point.read_bytes_per_s


def _passed(required: float, point: FindMaxPoint) -> str | None:
    most = utilization_of(point)
    if most is None:
        return None
    return "fed" if point.passed else "inconclusive" if most >= required else "starved"
