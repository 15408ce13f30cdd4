"""The answer of a run on one screen: the bottleneck, the stages, how busy, and what would help.

It is what ``iobench run`` prints. All else is evidence, which ``--details`` and the page show.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median

from ..base.text import capital
from ..base.units import counted, format_count, format_factor, format_rate, percent_beside
from ..judge.evidence import Evidence
from ..judge.figures.in_flight import bytes_per_sample
from ..judge.figures.search import may_be_more
from ..judge.judged import Judged, judge
from ..judge.promise import gain_of, tells_nothing
from ..judge.rules_ranks import slow_host_names
from ..judge.sentence import awaited, changes, sentence
from ..record.run import Summary, TrainingRecord
from ..record.verdict import Advice, Fed, Verdict
from .figures import NO_REASON, Format, ends, interval, listed, picture, tone_of
from .glance import STAGES, UTILIZATION, cold_reads, stage_names
from .sections import FirstScreen, Item, Items, KeyFigure, Table
from .serving import lost_in_a_crash
from .stages import UNKNOWN, bottleneck_stage, number_text, stage_rates

WHY = {
    "latency": "The limit is the latency of its reads: more of them in flight would bring more.",
    "metadata": "The limit is opening files, and not reading them: fewer files would bring more.",
    "operations": "The limit is its number of reads per second: larger reads would bring more.",
    "bandwidth": "The limit is its bandwidth, whatever the size of the reads.",
    "stragglers": "A few of its reads take much longer than the others, and batches wait for them.",
}
"""Why the storage is the bottleneck, by what limits it at the run's own reads in flight.

What comes after the colon is left out where the advice that follows is inconclusive.
"""

_QUOTA = 0.05
"""A server that refuses more than this part of the requests for the time being has a quota."""

CEILINGS = {
    "storage_raw": "storage, at its best",
    "fetch": "storage, as it is read",
    "prep": "preparation",
    "loader": "loader",
    "cpu": "all cores",
}

MAX_ADVICE = 2
WIDEST = 2.0
"""The longest bar, as a multiple of the demand."""


def answer(doc: TrainingRecord) -> FirstScreen:
    """The first screen of a run; as text about 25 lines."""
    judged = judge(doc)
    verdict, cold, evidence = doc.job.verdict, cold_reads(doc), judged.evidence
    starved = True if verdict is None else verdict.starved
    return FirstScreen(
        job=_job(doc),
        state="no verdict" if verdict is None else _state(verdict, watched=doc.job.subject.watched),
        tone=tone_of(None if starved is None else not starved),
        sentences=() if verdict is None else tuple(_sentences(judged, verdict)),
        picture=_pipeline(doc, evidence),
        gauges=tuple(_gauges(doc, evidence)),
        changes=_changes(doc),
        trust=f"Cold reads: {cold}." if cold else "",
    )


def _job(doc: TrainingRecord) -> str:
    """The workload, where its data is, and its accelerators."""
    where = f" on {doc.storage.url}" if doc.storage.url else ""
    hosts = f" on {len(doc.job.hosts)} hosts" if len(doc.job.hosts) > 1 else ""
    return f"{doc.job.workload.name}{where}, {_ranks(doc)}{hosts}"


def _ranks(doc: TrainingRecord) -> str:
    return counted(doc.job.accelerators, "accelerator")


def _state(verdict: Verdict, *, watched: bool) -> str:
    """``starved by storage``, ``fed``: the answer in a few words."""
    stages = " and ".join(stage_names(verdict, watched=watched))
    if verdict.starved and verdict.bottleneck == "accelerator":
        return "less busy than required, by no stage alone"
    if verdict.starved and verdict.bottleneck == "checkpoint":
        return f"starved, the bottleneck is {stages}"
    if verdict.starved:
        return f"starved by {stages}" if stages else "starved, the bottleneck is undecided"
    if verdict.starved is False:
        return "fed"
    return f"the bottleneck is {stages}" if stages else "undecided"


def _sentences(judged: Judged, verdict: Verdict) -> Iterator[str]:
    """What the bottleneck is, and why. What would help has a place of its own."""
    doc, evidence = judged.record, judged.evidence
    slow = slow_host_names(doc)
    if what := _what(doc, verdict, evidence):
        yield what
        yield from (f"{capital(each)}." for each in awaited(evidence, verdict, slow))
    else:
        yield sentence(evidence, judged.decision, verdict, slow, advised=False)
    used = doc.metrics.get(UTILIZATION)
    if used is not None and not evidence.cut_fill and used.min < evidence.required <= used.max:
        yield "Some repetitions reach the required utilization, and some do not."
    if "storage" in (verdict.bottleneck, *verdict.also):
        asked = sum(each.throttled or 0 for each in doc.job.repetitions)
        if asked > _QUOTA * sum(each.requests or 0 for each in doc.job.repetitions):
            yield (
                "The limit is a quota of its server, which asked for a lower request rate "
                f"{counted(asked, 'time')}."
            )
        elif verdict.storage_bound in WHY:
            limit, colon, more = WHY[verdict.storage_bound].partition(":")
            unknown = any(_tells_nothing(each) for each in verdict.advice[:MAX_ADVICE])
            yield f"{limit}." if colon and unknown else f"{limit}{colon}{more}"
    yield from _log(doc, verdict)


def _log(doc: TrainingRecord, verdict: Verdict) -> Iterator[str]:
    """What the log of inference offline costs, how many records it takes, what a crash loses."""
    logs = [one.log for one in doc.job.repetitions if one.log is not None]
    if not logs:
        return
    rate = median(each.records_per_s or 0.0 for each in logs)
    gain, lost = verdict.gains.get("log"), lost_in_a_crash([each.at_risk for each in logs])
    costs = "" if gain is None else f"; without it, samples/s are {interval(gain)} as many"
    takes = f"The log takes {format_count(rate)} records/s"
    yield f"{takes}, of which a crash would lose {lost}{costs}."


def _what(doc: TrainingRecord, verdict: Verdict, evidence: Evidence) -> str:
    """The bottleneck in one sentence; empty where only the verdict's own words are right.

    That is a verdict that is undecided, or has conditions: a loader or a training of the user's
    own, caches, a rate that fell.
    """
    used = evidence.utilization
    plain = not doc.job.subject.reads_itself
    known = verdict.bottleneck in STAGES and verdict.starved is not None and used is not None
    lasts = evidence.lasting is None
    if not (plain and lasts and known and doc.job.saves is None):
        return ""
    assert used is not None
    limit = doc.job.workload.required_accelerator_utilization
    ranks = _ranks(doc)
    whole, show = doc.metrics.get(UTILIZATION), partial(percent_beside, limit=limit)
    busy = f"{show(used)} busy{_since(whole, used, evidence, show)}"
    required = f"{limit * 100:.4g} % is required"
    names = stage_names(verdict)
    tested = "" if verdict.basis == "tested" else " This is inferred from the ceilings, not tested."
    if verdict.bottleneck == "accelerator":
        is_are = "is" if doc.job.accelerators == 1 else "are"
        state = "fed" if verdict.starved is False else "the bottleneck"
        return f"{ranks} {is_are} {state}: {busy}, {required}.{tested}"
    they = "is the bottleneck: it keeps"
    they = they if len(names) == 1 else "are together the bottleneck: they keep"
    return f"{capital(' and '.join(names))} {they} {ranks} {busy}, {required}.{tested}"


def _pipeline(doc: TrainingRecord, evidence: Evidence) -> Table | None:
    """A bar for what each stage delivers alone and what all deliver together; the demand across."""
    size, demand = bytes_per_sample(doc), evidence.accelerator
    *stages, _ = stage_rates(doc)
    known = {each.name: each.rate for each in stages if each.rate}
    called = {each.name: each.called(CEILINGS) for each in stages}
    if known.get("fetch", 0.0) > known.get("storage_raw", 0.0):
        known.pop("storage_raw", None)  # the best is what the job's own reader gets
    if not known or not evidence.measured:
        return None

    def told(rate: float) -> str:
        if not rate:
            return "not measured"
        return format_rate(rate * size) if size else f"{format_count(rate)} samples/s"

    sampler = _sampler(doc, evidence)
    bound = "" if sampler else bottleneck_stage(doc, stages)
    bars = [
        (called[name], known.get(name, 0.0), "bottleneck" if name == bound else "")
        for name in CEILINGS
        if name in (*known, bound)
    ]
    if sampler:
        bars.append(("sampler", sampler, "bottleneck"))
    whole = doc.metrics.get("samples_per_s")
    together = whole.median if whole and evidence.drained else evidence.measured
    bars.append(("all together", together, ""))
    line = f"; the line is the demand, {told(demand)}" if demand else ""
    longest = WIDEST * demand if demand else max(known.values())
    title = f"What each stage delivers alone{line}"
    return picture(title, bars, told, line=demand, full=longest)


def _sampler(doc: TrainingRecord, evidence: Evidence) -> float:
    """Samples/s that the sampler of a user's loader chooses, where that is the bottleneck; else 0.

    It is in no ceiling: the loader that was measured over kept samples has a sampler of iobench's.
    """
    own, verdict = evidence.own, doc.job.verdict
    named = verdict is not None and any(each.id == "sampler" for each in verdict.advice)
    if not named or own is None or not own.sampler_s:
        return 0.0
    return doc.job.accelerators * own.samples / own.sampler_s


def _since(whole: Summary | None, lasting: float, evidence: Evidence, show: Format) -> str:
    """From when on the figure of the verdict counts, where a budget cut the repetitions."""
    same = whole is None or show(whole.median) == show(lasting)
    return " after the first batch" if evidence.cut_fill and not same else ""


def _gauges(doc: TrainingRecord, evidence: Evidence) -> Iterator[KeyFigure]:
    """How busy the accelerators are, how fast the job is, and how many accelerators are fed."""
    verdict, used = doc.job.verdict, doc.metrics.get(UTILIZATION)
    limit = doc.job.workload.required_accelerator_utilization
    if used is not None:
        show = partial(percent_beside, limit=limit)
        value, note = _figure(used, evidence.utilization, evidence, show)
        yield KeyFigure(
            label="utilization",
            value=value,
            note=f"{note}; {limit * 100:.4g} % required",
            share=evidence.utilization if evidence.cut_fill else used.median,
            required=limit,
        )
    if verdict is not None and verdict.fed is not None:
        yield _fed(doc, verdict.fed)
    rate = doc.metrics.get("samples_per_s")
    if rate is not None:
        lasting = None if evidence.drained else evidence.measured
        yield KeyFigure("samples/s", *_figure(rate, lasting, evidence, format_count))


def _figure(
    whole: Summary, lasting: float | None, evidence: Evidence, show: Format
) -> tuple[str, str]:
    """``48.1 %`` and ``after the first batch, 30.1 % [29.4 %, 31.0 %] in all``.

    ``lasting``: what the verdict rests on, which differs where a budget cut the repetitions, and
    may then be unknown.
    """
    several = f" {ends(whole.min, whole.max, show)}" if whole.n > 1 else ""
    if lasting is not None and (since := _since(whole, lasting, evidence, show)):
        only = "" if whole.n > 1 else ", in the only repetition"
        return show(lasting), f"{since.strip()}, {show(whole.median)}{several} in all{only}"
    if lasting is None and evidence.drained:
        return show(whole.median), f"{several} with the first batch, not known after it".strip()
    return show(whole.median), several.strip() or "in the only repetition"


def _fed(doc: TrainingRecord, fed: Fed) -> KeyFigure:
    """``1 of 1 now; storage could feed 3 as it is read, 5 [4, 6] at best``.

    A storage that is the bottleneck may deliver more to another way of reading, so what it feeds is
    said to be what it feeds as it is read.
    """
    label = "accelerators fed"
    if fed.accelerators is None:
        return KeyFigure(label, "not known:", fed.not_measured or NO_REASON)
    same = fed.low == fed.high == fed.accelerators
    number = format_count(fed.accelerators) if same else number_text(fed)
    if fed.basis == "find-max":
        search = doc.job.find_max
        why = f"; {search.bound}" if search is not None and may_be_more(search) else ""
        return KeyFigure(label, number, f"(measured{why})")
    verdict, ranks = doc.job.verdict, doc.job.accelerators
    starved = verdict.starved if verdict else None
    limits = verdict is not None and "storage" in (verdict.bottleneck, *verdict.also)
    alone = f"the storage alone could feed {number}"
    lowest = fed.accelerators if fed.low is None else fed.low
    if fed.today is not None and fed.today < lowest:
        today = format_count(fed.today)
        alone = f"storage could feed {today} as it is read, {number} at best"
    if starved and verdict is not None and verdict.bottleneck == "undecided" and fed.high:
        alone = f"the storage alone could feed {fed.low or 0} to {fed.high}"
    if starved and limits:
        alone = f"the storage, as it is read, could feed {number}"
    if number == UNKNOWN:
        alone = "how many the storage alone could feed is not known"
    if fed.potential is not None:
        advised = verdict is not None and bool(verdict.advice) and verdict.advice[0].id != "none"
        how = "as advised" if advised else "with more reads in flight"
        alone += f", and {format_count(fed.potential)} {how}"
    if starved is None:
        return KeyFigure(label, "", alone)
    now = f"{0 if starved else ranks} of {ranks}"
    if starved and ranks > 1:
        now = f"fewer than {ranks}"
    return KeyFigure(label, now, f"now; {alone}")


def _changes(doc: TrainingRecord) -> Items | None:
    """The first changes, with the factor on samples/s that was found or is predicted."""
    verdict = doc.job.verdict
    advised = () if verdict is None else changes(verdict)
    if not advised:
        return None
    items = [_advised(advice) for advice in advised[:MAX_ADVICE]]
    factor = ": the factor on samples/s" if any(each.lead for each in items) else ""
    return listed("help", f"What would help{factor}", items)


def _tells_nothing(advice: Advice) -> bool:
    gain = gain_of(advice)
    return gain is not None and tells_nothing(gain)


def _advised(advice: Advice) -> Item:
    """``5.67 x, tried``, ``at most 1.92 x`` or ``inconclusive``: without its interval."""
    gain, tried, lead = gain_of(advice), advice.found is not None, ""
    if _tells_nothing(advice):
        lead = "inconclusive"
    elif gain is not None:
        bound = "at most " * (advice.at_most and not tried)
        lead = f"{bound}{format_factor(gain.value)}{', tried' * tried}"
    settings = " ".join(f"--set {setting}" for setting in advice.settings)
    return Item(text=advice.change, lead=lead, basis=settings)
