"""A run that answered requests: the limit, where the time goes, the rates that were tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from ..ask.capacity.requests import ServedPrediction
from ..base.units import counted, format_bytes, format_count, format_duration, format_percent
from ..judge.figures.requests import SLOW
from ..judge.kv import factor_text
from ..judge.serving import few_requests, quantile_text
from ..record.metrics import metrics_of
from ..record.run import KvCacheRecord, ServingRecord
from ..record.serving import (
    KvCacheRun,
    KvParts,
    KvTraffic,
    KvTrial,
    KvVerdict,
    LatencyParts,
    RequestWindow,
    ServedTrial,
    ServingRun,
    ServingVerdict,
)
from ..settings.workload import LogSpec
from .figures import (
    Given,
    Medians,
    T,
    TableOf,
    cell,
    data_table,
    ends,
    interval_of,
    listed,
    medians_of,
    picture,
    sentence,
    tone_of,
)
from .glance import whole_report
from .sections import Chart, FirstScreen, KeyFigure, Mark, Section, Table, Value, joined

Parts = Mapping[str, str]
"""The parts of the time of a request, by their names, and how they are called."""

_PARTS = {
    "reader_wait_s": "waiting for a reader",
    "storage_s": "storage",
    "accelerator_wait_s": "waiting for the accelerator",
    "step_s": "step",
    "log_wait_s": "waiting for the log",
}

_BOTTLENECKS = {
    "storage": "storage is the bottleneck",
    "accelerator": "the accelerator is the bottleneck",
    "log": "the log is the bottleneck",
    "reads": "loads are the bottleneck",
    "writes": "writes are the bottleneck",
    "lookups": "look-ups are the bottleneck",
    "prefill": "the prefill is the bottleneck",
    "client": "the client is the bottleneck, iobench itself",
    "inconclusive": "the bottleneck is inconclusive",
}

_WITHOUT = {
    "storage": "with the bytes in memory",
    "accelerator": "with steps that take no time",
    **dict.fromkeys(("reads", "writes", "lookups"), "without them"),
}
"""How a stage is left out, where it is not simply left out."""

HOLDS = {True: "holds", False: "does not hold", None: "inconclusive whether it holds"}


def bottleneck_text(verdict: ServingVerdict | KvVerdict) -> str:
    """``storage is the bottleneck``, for a title."""
    return _BOTTLENECKS[verdict.bottleneck]


def sections(doc: ServingRecord) -> list[Section]:
    """All sections for which the run has data."""
    job = doc.job
    evidence = [_curve(job), figures_table(doc), _parts(job), _log(job), rates_table(job)]
    data = windows_table(doc, ServedTrial, LatencyParts)
    return whole_report(doc, _first(doc), evidence, _about(job), data)


def what_if_sections(found: ServedPrediction) -> list[Section]:
    """The predicted verdict, where the time would go, and what the prediction rests on."""
    first, before = _first(found.what_if), found.before
    error = "not known" if found.model_error is None else format_percent(abs(found.model_error))
    gauges = [each for each in first.gauges if each.label != "largest rate"]
    known = [one.quantile_s for one in before.job.repetitions if one.quantile_s is not None]
    if known:
        gauges.append(KeyFigure("was measured", format_duration(median(known))))
    gauges.append(KeyFigure("error of the model", error, "on the recorded run"))
    told = replace(
        first,
        id="what-if",
        job=f"Run {found.run_id} with {'; '.join(found.changes)}",
        state=f"predicted, {first.state}",
        gauges=tuple(gauges),
    )
    bases = listed("bases", "What it rests on", found.bases)
    return joined(told, _parts(found.what_if.job), bases)


def _first(doc: ServingRecord) -> FirstScreen:
    job, verdict = doc.job, doc.job.verdict
    spec = job.scenario
    limit = f"{format_duration(spec.limit)} at {quantile_text(spec.quantile)}"
    state, found = "no rate was measured", list[str]()
    if verdict is not None:
        state = f"{HOLDS[verdict.holds]} {limit}"
        found = [verdict.sentence, failed_sentence(job), cause(verdict), _log_sentence(job)]
    elif job.found is not None and job.found.low is None:
        state = f"no rate was found that holds {limit}"
    good, gauges = verdict.holds if verdict else None, tuple(_gauges(doc))
    return requests_screen(job, state, found, good, gauges, _parts_of(job))


def requests_screen(
    job: ServingRun | KvCacheRun,
    state: str,
    told: Sequence[str],
    good: bool | None,
    gauges: tuple[KeyFigure, ...],
    parts: Parts,
) -> FirstScreen:
    """The first screen of a run of requests. ``told`` what its verdict says, if there is one."""
    if not told and job.found is not None and job.found.low is None:
        told = [sentence(job.found.bound or "no rate was tried")]
    name = job.scenario.name
    took = {label: _mean(job.repetitions, key, slow=True) for key, label in parts.items()}
    slow = [(label, seconds, "") for label, seconds in took.items() if seconds]
    title = f"Where the slowest {format_percent(SLOW)} of the requests spend their time"
    return FirstScreen(
        job=f"{name} at {format_count(job.rate)} requests/s" if job.rate else name,
        state=state,
        tone=tone_of(good),
        sentences=tuple(filter(None, told)),
        gauges=gauges,
        picture=picture(title, slow, format_duration),
    )


def _gauges(doc: ServingRecord) -> Iterator[KeyFigure]:
    job, spec = doc.job, doc.job.scenario
    known = [one.quantile_s for one in job.repetitions if one.quantile_s is not None]
    if known:
        spread = ends(min(known), max(known), format_duration) if len(known) > 1 else ""
        label = f"{quantile_text(spec.quantile)} of the latency"
        allowed = f"{spread} of {format_duration(spec.limit)} allowed".strip()
        yield KeyFigure(label, format_duration(median(known)), allowed)
    for name, label in (("latency_p50_s", "p50"), ("latency_max_s", "longest")):
        if name in doc.metrics:
            yield KeyFigure(label, cell(doc.metrics[name], format_duration).text)
    if spec.walk is not None:
        read = doc.metrics.get("reads_per_s")
        rate = cell(read, lambda each: f"{format_count(each)}/s").text if read else ""
        rounds = counted(spec.walk.rounds, "round")
        yield KeyFigure("nodes read", rate, f"{spec.walk.reads} a query, in {rounds}")
        yield KeyFigure("recall", "not measured:", job.not_measured.get("recall", ""))
    shares = [one.recall for one in job.of("recall") if one.recall is not None]
    if shares:
        points = f"over {counted(len(shares), 'setting')} (--details has the curve)"
        yield KeyFigure("recall", ends(min(shares), max(shares), format_percent), points)
    yield largest_rate(job)


def _curve(job: ServingRun) -> Table | None:
    """Recall of a real engine, and what it costs, over the settings of its searches."""
    points, spec = sorted(job.of("recall"), key=lambda one: one.recall or 0.0), job.scenario.engine
    if not points or spec is None:
        return None
    rows = TableOf(points)
    rows.add("nprobes", f"partitions of {spec.partitions:,}")
    rows.add("refine", "refined", of=lambda one: f"{one.refine} x" if one.refine else "no")
    rows.add("recall", f"recall of {spec.top}", "share")
    rows.add("recall_low", "from", "share")
    rows.add("recall_high", "to", "share")
    rows.add("requests_per_s", "queries/s")
    rows.add("latency_p50_s", "p50")
    rows.add("latency_p99_s", "p99")
    each = "bytes of storage a query"
    rows.add("query_bytes", each, "B", lambda one: one.bytes / one.requests if one.requests else 0)
    charts = [
        Chart(kind="lines", x="recall", y=("requests_per_s",), dots=("requests_per_s",)),
        Chart(kind="lines", x="recall", y=("latency_p99_s",), dots=("latency_p99_s",)),
    ]
    at_once = counted(min(job.scenario.reader.concurrency, spec.queries), "query", "queries")
    title = f"Recall against the exactly nearest vectors, and its cost, {at_once} at a time"
    return rows.made("recall", title, charts=charts)


def largest_rate(job: ServingRun | KvCacheRun) -> KeyFigure:
    """The largest rate that held the limit in the search, and whether it did so when repeated."""
    label, found = "largest rate", job.found
    if found is None:
        return KeyFigure(label, "not measured", "(--find-max looks for it)")
    if found.low is None:
        return KeyFigure(label, "none", found.bound)
    why = (
        found.bound if found.high is None else f"hold the limit, {format_count(found.high)} do not"
    )
    few = few_requests(job, "find-max")
    rate, tried = format_count(found.low), job.repetitions
    held = sum(bool(one.holds) for one in tried)
    if tried and held < len(tried):
        again = f"in {held} of {counted(len(tried), 'repetition')}"
        why = f"held the limit in the search, and {again if held else 'not when it was repeated'}"
    why += few and f"; {few}"
    if 2 * held < len(tried):  # most windows decide, as in the search
        return KeyFigure(label, f"below {rate} requests/s", f"({rate} {why})")
    return KeyFigure(label, f"{rate} requests/s", why)


def cause(verdict: ServingVerdict | KvVerdict) -> str:
    """The bottleneck, and what leaving it out brings."""
    why, gain = verdict.why, verdict.gains.get(verdict.bottleneck)
    if not why and gain is not None:
        without = _WITHOUT.get(verdict.bottleneck, "without it")
        why = f"{without} the slow requests are {factor_text(gain)} as fast"
    return sentence(f"{bottleneck_text(verdict)}{why and ': '}{why}")


def failed_sentence(job: ServingRun | KvCacheRun) -> str:
    """How many requests of the repetitions failed, and how; empty if none did."""
    tried = job.repetitions
    failed, number = sum(one.failed for one in tried), sum(one.requests for one in tried)
    if not failed:
        return ""
    enough = failed > (1 - job.scenario.quantile) * number
    alone = ", enough to break the limit whatever the others take" if enough else ""
    why = next((f": {one.error}" for one in tried if one.error), "")
    return sentence(f"{format_count(failed)} of {counted(number, 'request')} failed{alone}{why}")


def _log_sentence(job: ServingRun) -> str:
    """What the log adds, and what a crash would lose."""
    verdict, tried = job.verdict, [one for one in job.repetitions if one.logged]
    if verdict is None or verdict.log_adds_s is None or not tried:
        return ""
    added, name = verdict.log_adds_s, quantile_text(job.scenario.quantile)
    interval = interval_of(added, format_duration)
    text = f"The log adds {format_duration(added.value)} to {name} {interval}".strip()
    if added.low is not None and added.high is not None and added.low <= 0 <= added.high:
        text = f"What the log adds to {name} is inconclusive {interval}"
    lost = lost_in_a_crash([one.log_at_risk for one in tried])
    return f"{text}; a crash of the host would have lost {lost}."


def lost_in_a_crash(risks: Sequence[int | None]) -> str:
    """The records that were at risk, by those of each repetition."""
    known = [each for each in risks if each is not None]
    whole = known and len(known) == len(risks)
    return f"at most {counted(max(known), 'record')}" if whole else "an unknown number of records"


def _log(job: ServingRun) -> Table | None:
    tried = [one for one in job.repetitions if one.logged]
    return log_table(tried, job.scenario.log, lambda one, name: getattr(one, name), "answers wait")


def log_table(
    tried: Sequence[T], spec: LogSpec, of: Callable[[T, str], Given], waiting: str
) -> Table | None:
    """How records are committed, and the figures of each repetition's log.

    ``of``: such a figure, by its name. ``waiting``: what waits for the log, if it is waited for.
    """
    if not tried:
        return None
    commits = {
        "record": "each record is committed for itself",
        "group": f"commits of {spec.group_records:,} records, or of those of "
        + format_duration(spec.group_delay),
        "rotation": f"commits of files of {format_bytes(spec.rotate_bytes)}, or of "
        + format_duration(spec.rotate_delay),
    }
    rows = TableOf(tried)
    names = {
        "log_records_per_s": "records/s",
        "log_bytes": "written",
        "log_commits": "commits",
        "log_objects_per_hour": "files or objects an hour",
        "log_commit_p50_s": "to the commit, p50",
        "log_commit_p99_s": "p99",
        "log_backlog_max": "largest backlog",
        "log_backlog_end": "at the end",
        "log_at_risk": "a crash would lose",
    }
    rows.add_each(names, of=of)
    waits = f"{waiting} for it" if spec.waits else f"{waiting.partition(' ')[0]} do not wait for it"
    return rows.made("log", f"The log: {commits[spec.commit]}; {waits}")


def _parts(job: ServingRun) -> Table | None:
    return parts_table(job.repetitions, _parts_of(job), "the latency")


def _parts_of(job: ServingRun) -> Parts:
    """The parts of the latency, that of the log only where answers wait for one."""
    waits = job.log is not None and job.scenario.log.waits
    searched = {} if job.scenario.engine is None else {"storage_s": "the engine's search"}
    labels = {**_PARTS, **searched}
    return {name: label for name, label in labels.items() if waits or name != "log_wait_s"}


def _mean(tried: Sequence[ServedTrial | KvTrial], name: str, *, slow: bool) -> float:
    parts = [one.slow_parts if slow else one.parts for one in tried]
    return median(getattr(each, name) for each in parts) if parts else 0.0


def parts_table(tried: Sequence[ServedTrial | KvTrial], parts: Parts, of: str) -> Table | None:
    """Where all requests, and the slowest of them, spend their time. ``of``: what has the parts."""
    if not tried:
        return None
    rows = TableOf(parts)
    rows.add("part", f"part of {of}", of=parts.__getitem__)
    rows.add("mean_s", "all requests", of=lambda name: _mean(tried, name, slow=False))
    slow = f"slowest {format_percent(SLOW)}"
    rows.add("slow_mean_s", slow, of=lambda name: _mean(tried, name, slow=True))
    return rows.made("parts", "Where the time goes: means, median of the repetitions")


def figures_table(doc: ServingRecord | KvCacheRecord) -> Table | None:
    """The metrics over the repetitions."""
    table = Medians("min", "max", "n")
    for metric in metrics_of("request", "repetition"):
        if metric.name in doc.metrics:
            table.measured(metric, doc.metrics[metric.name])
    title = f"Measured: {medians_of(len(doc.job.repetitions), 'repetition')}"
    return table.table("metrics", title) if table.rows else None


def rates_table(job: ServingRun | KvCacheRun) -> Table | None:
    """The rates that were tried, in ascending order."""
    windows: Iterable[RequestWindow] = job.of("find-max")
    rows = TableOf(sorted(windows, key=lambda one: one.rate))
    if not rows.records:
        return None
    rows.add("rate", "requests/s asked", "requests/s")
    rows.add("requests_per_s", "answered/s")
    rows.add("quantile_s", quantile_text(job.scenario.quantile))
    rows.add("over", "over the limit", "share")
    rows.add("growth", "latency grew", "ratio")
    rows.add("holds", "holds", of=_held)
    limit = Mark(at=job.limit_s, label="limit")
    chart = Chart(kind="lines", x="rate", y=("quantile_s",), dots=("quantile_s",), limits=(limit,))
    return rows.made("rates", "The rates that were tried", charts=[chart])


def _held(window: RequestWindow) -> str:
    return "yes" if window.holds and window.steady is not False else "no"


def _about(job: ServingRun) -> list[tuple[str, str]]:
    spec = job.scenario
    batch = f" in batches of up to {spec.batch_size}" if spec.batch_size > 1 else ""
    delay = f", begun after {format_duration(spec.batch_delay)}" if spec.batch_delay else ""
    arrivals = str(spec.arrivals.kind)
    arrivals += f", cv {spec.arrivals.cv:g}" if arrivals == "gamma" else ""
    arrivals += f" {spec.arrivals.path}" if spec.arrivals.path else ""
    size = job.dataset.sample_bytes_mean
    reads = f"{format_bytes(size)} each, " if size else ""
    reads += f"at most {counted(spec.reader.concurrency, 'read')} in flight"
    reads += ", past the page cache" if job.direct else ""
    walk = spec.walk
    reads += f"; {job.index.package}" if job.index is not None else ""
    reads += f"; a walk of {walk.reads} each, {walk.beam_width} at once" if walk else ""
    step = f"emulated: {format_duration(spec.step_time)} a step{batch}{delay}"
    return [
        ("arrivals", arrivals),
        ("samples", reads),
        ("accelerators", f"{spec.accelerators:,}, {step}"),
        ("cache", spec.cache),
        ("dataset", job.dataset.name),
        ("log", (job.log.url or "") if job.log is not None else ""),
    ]


def windows_table(
    doc: ServingRecord | KvCacheRecord,
    trial: type[ServedTrial | KvTrial],
    parts: type[LatencyParts | KvParts],
) -> Table:
    """One row for each window of requests, which is a ``trial`` with the ``parts`` of its time."""
    trials: Sequence[ServedTrial | KvTrial] = doc.job.trials
    rows = TableOf(trials)
    rows.data("run_id", of=lambda _: doc.run_id)
    rows.data("kind", *(name for name in trial.model_fields if name not in _NO_COLUMNS))
    rows.data(*parts.model_fields, each=lambda one, name: getattr(one.parts, name))
    if trial is KvTrial:
        rows.data("accelerators_freed", "break_even_bytes_per_s")
        rows.data(*_TRAFFIC, each=_of_traffic)
    return data_table(rows, doc, "windows", "Windows of requests")


_NO_COLUMNS = ("kind", "parts", "slow_parts", "traffic", "error", "residency_how", "write_error")
"""Fields of a window that its row does not have as they are."""

_TRAFFIC = tuple(
    f"traffic_{name}" for name in KvTraffic.model_fields if name != "break_even_bytes_per_s"
)


def _of_traffic(trial: ServedTrial | KvTrial, column: str) -> Value:
    found = trial.traffic if isinstance(trial, KvTrial) else None
    value: Value = getattr(found, column.removeprefix("traffic_"), None)
    return value
