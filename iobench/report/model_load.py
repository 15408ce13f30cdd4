"""Loads of a model's weights: seconds until a replica has them, where these go, and what helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ..base.text import capital
from ..base.units import (
    counted,
    format_bytes,
    format_duration,
    format_factor,
    format_percent,
    format_rate,
)
from ..judge.figures.ablations import interval as known_to
from ..judge.model_load import (
    MEASURED,
    HostFigures,
    first_trials,
    host_loads,
    least,
    read_rate,
    slow_ones,
    storage_rate,
    storage_share,
    trials_of,
    value_of,
)
from ..judge.promise import shown
from ..judge.rules_ranks import host_name
from ..record.model_load import LoadFigures, LoadTrial, ModelLoadRun, TensorClass
from ..record.run import ModelLoadRecord
from .figures import (
    MAX_BARS,
    TableOf,
    cell,
    data_table,
    ends,
    evenly,
    interval_of,
    listed,
    medians_of,
    picture,
    together,
    told,
    with_interval,
    word,
)
from .glance import whole_report
from .sections import Cell, FirstScreen, Item, KeyFigure, Section, Table, joined
from .time import MAX_HOSTS, hosts_text

STAGES = {"storage": "storage", "assembly": "assembly of tensors", "device": "copy to the device"}
STATES = {
    None: "The state that was asked for was not shown",
    "nothing local": "Nothing was local, each load got all from the storage",
    "local and cold": "The files were local and cold",
    "page cache warm": "The page cache was warm",
}
"""What of the files was on the host before a load, by the record's ``retained``."""

HELP = "What to do, and what it brings"
MAX_ONE, MAX_ITEMS = 3, 3
"""Bars of loaders with the fewest replicas, and changes, of a first screen."""

SAME = 1.1
"""A factor below which two rates or times are told to be about the same."""


def sections(doc: ModelLoadRecord) -> list[Section]:
    """All sections for which the run has data."""
    job = doc.job
    evidence = joined(_loaders(job), _hosts(job), _stages(job), _plain(job), _tensors(job))
    return whole_report(doc, _first(doc, job), evidence, _about(job), _trials(doc, job))


def _alone(job: ModelLoadRun) -> list[LoadFigures]:
    """The loaders with the fewest replicas."""
    return [each for each in job.figures if each.replicas == least(job) and not each.one_read]


def _best(job: ModelLoadRun) -> LoadFigures | None:
    return next((each for each in _alone(job) if each.loader == job.best), None)


def _first(doc: ModelLoadRecord, job: ModelLoadRun) -> FirstScreen:
    best = _best(job)
    where = f" on {doc.storage.url}" if doc.storage.url else ""
    what = f"Load of {job.model}{where}, {_many(job, least(job))}"
    if best is None:
        return FirstScreen(job=what, state="nothing was measured", picture=_picture(job))
    return FirstScreen(
        job=what,
        state=format_duration(best.ready_s),
        sentences=tuple(_sentences(job, best)),
        picture=_picture(job),
        gauges=tuple(_gauges(job, best)),
        changes=listed("help", HELP, [*_advice(job, best)][:MAX_ITEMS]),
    )


def _many(job: ModelLoadRun, replicas: int) -> str:
    """``1 replica``; ``1 replica on each of 2 hosts`` where there are several."""
    on = f" on each of {len(job.hosts)} hosts" if len(job.hosts) > 1 else ""
    return f"{counted(replicas, 'replica')}{on}"


def _sentences(job: ModelLoadRun, best: LoadFigures) -> Iterator[str]:
    """What takes how long, and why."""
    yield (
        f"The weights ({format_bytes(job.bytes)}, {counted(job.tensors, 'tensor')}) take "
        f"{format_duration(best.ready_s)} by the loader {best.loader}."
    )
    yield state_sentence(job)
    if job.spec.state == "cold":
        yield bottleneck_sentence(job, best)
    yield from _failed(job)
    yield from _slowest(job, best)
    engine = job.spec.engine_start_s
    if engine is not None:
        yield (
            f"Ready = weights {format_duration(best.ready_s)} + {format_duration(engine)} engine "
            f"start (your figure) = {format_duration(best.ready_s + engine)}."
        )


def _failed(job: ModelLoadRun) -> Iterator[str]:
    """What failed in a round: the times are those of the other rounds and variants."""
    if job.failed:
        (name, why), *others = job.failed.items()
        more = f", and so did {counted(len(others), 'other trial')}" if others else ""
        yield f"{capital(name)} failed{more}: {why.rstrip('.')}."


def _slowest(job: ModelLoadRun, best: LoadFigures) -> Iterator[str]:
    """Which of several hosts was ready last, and what one of them takes alone."""
    hosts = host_loads(job)
    if not hosts:
        return
    others = median(each.ready_s for each in hosts[1:]) if hosts[1:] else hosts[0].ready_s
    name = host_name(job.hosts, hosts[0].host) + ", by no clear margin" * (not slow_ones(job))
    ready = f"it takes {format_duration(hosts[0].ready_s)}, the others {format_duration(others)}"
    if best.alone_s is not None:
        ready += f"; {host_name(job.hosts, 0)} alone {format_duration(best.alone_s)}"
    yield f"The slowest host is {name}: {ready}."


def bottleneck_sentence(job: ModelLoadRun, found: LoadFigures) -> str:
    """The bottleneck, and what a load would take without it."""
    if found.plain_s is not None:
        plain = f"plain reads take {format_duration(found.plain_s)} for the same bytes"
        why = f"the loader {found.loader} can't load from here without it"
        if found.bottleneck:
            return f"Storage is the bottleneck: {plain}. This is inferred, not tested: {why}."
        return f"Whether storage is the bottleneck is inconclusive: {why}; {plain}."
    if not found.gains:
        return "What limits a load was not measured."
    if not found.bottleneck:
        return "The bottleneck is inconclusive: no load without one stage was clearly faster."
    names = " and ".join(STAGES[stage] for stage in found.bottleneck)
    left = _left_s(found, found.gains[found.bottleneck[0]].value)
    if len(found.bottleneck) > 1:
        return f"The bottleneck is {names}: which of them costs more is inconclusive."
    name = capital(names)
    if found.bottleneck == ["assembly"]:
        each = (found.ready_s - left) / max(1, job.tensors)
        return (
            f"{name} is the bottleneck, not storage: {counted(job.tensors, 'tensor')} cost "
            f"{format_duration(each)} each; their bytes alone arrive in {format_duration(left)}."
        )
    return f"{name} is the bottleneck: without it, a load takes {format_duration(left)}."


def _gauges(job: ModelLoadRun, best: LoadFigures) -> Iterator[KeyFigure]:
    """Time, bandwidth beside that of plain reads, storage's share, bytes, memory, page cache."""
    spread = f"{ends(best.low_s, best.high_s, format_duration)} of {counted(best.n, 'round')}"
    if best.n == 1:
        spread = "one round only"
    yield KeyFigure("weights are there", format_duration(best.ready_s), spread)
    rate = storage_rate(job)
    warm = job.spec.state == "warm"
    beside = "(from the page cache)" if warm else "(plain reads were not measured)"
    got = read_rate(job, best)
    if rate is not None and rate.value > 0 and not warm:
        part = got / rate.value
        share_of_plain = f"{format_percent(part)} of what" if part <= SAME else "more than"
        beside = f"({share_of_plain} plain reads get, {format_rate(rate.value)})"
    yield KeyFigure("bandwidth", format_rate(got), beside)
    if (share := storage_share(best)) is not None and not warm:
        note = f"of the time {interval_of(share, format_percent)}".strip()
        yield KeyFigure("storage takes", format_percent(share.value), note, share=share.value)
    base = trials_of(job, best.loader, best.replicas)
    if best.read_amplification is not None:
        many = format_factor(best.read_amplification)
        yield KeyFigure("bytes read", many, "those of the model, by each replica")
    memory = [each.peak_memory_bytes for each in base if each.peak_memory_bytes is not None]
    if memory:
        yield KeyFigure("peak memory", format_bytes(median(memory)), "of a process")


def state_sentence(job: ModelLoadRun) -> str:
    """What of the files was on the host, with how much of them the page cache held."""
    trials = trials_of(job, job.best, least(job))
    before = [each.residency_before for each in trials if each.residency_before is not None]
    after = [each.residency_after for each in trials if each.residency_after is not None]
    if not before or not after:
        return f"{STATES[job.retained]}."
    found = f"{format_percent(max(before))} in the page cache before, {format_percent(max(after))}"
    return f"{STATES[job.retained]}: {found} after."


def _picture(job: ModelLoadRun) -> Table | None:
    """A bar for each loader with the fewest replicas, and for the best one with more of them."""
    one = _alone(job)
    more = [each for each in job.figures if each.loader == job.best and each not in one]
    first = one[: max(MAX_ONE, MAX_BARS - len(more))]
    drawn = [*first, *evenly(more, MAX_BARS - len(first))]
    bars = [(_name(each), each.ready_s, _predicted(each)) for each in drawn]
    return picture("Seconds until the slowest replica has its weights", bars, format_duration)


def _name(each: LoadFigures) -> str:
    one = ", one read" if each.one_read else ""
    return f"{each.loader}, {counted(each.replicas, 'replica')}{one}"


def _predicted(each: LoadFigures) -> str:
    if each.promised_s is None:
        return ""
    return f"{format_duration(each.promised_s.value)} predicted"


def _advice(job: ModelLoadRun, best: LoadFigures) -> Iterator[Item]:
    """What would make replicas ready earlier."""
    yield from _copy(job)
    others = [each for each in _alone(job) if each.loader != best.loader]
    if job.gain is not None and others:
        slower = min(others, key=lambda each: each.ready_s)
        lead = shown(job.gain) if job.significant else "inconclusive"
        text = f"Load with {best.loader}: it is faster than {slower.loader}."
        if not job.significant:
            text = f"More rounds tell if {best.loader} beats {slower.loader} (--repeat)."
        yield Item(lead=lead, text=text)
    yield from _storm(job, best)
    yield from _ranks(job, best)
    if job.spec.state == "cold" and "storage" in best.bottleneck:
        yield from _reads(job, best)


def _reads(job: ModelLoadRun, best: LoadFigures) -> Iterator[Item]:
    """More reads in flight, where plain reads get more by them; else a faster storage."""
    rates = {
        more: rate.value
        for more in (False, True)
        if (rate := storage_rate(job, more=more)) is not None and rate.value > 0
    }
    if not rates:
        return
    # More in flight that bring next to nothing are none that anybody should have.
    more = rates.get(True, 0.0) > SAME * rates.get(False, 0.0)
    of = [each.in_flight for each in job.plain if each.replicas == best.replicas]
    number, share = max(of) if more else min(of), storage_share(best)
    reach = rates[more] / max(read_rate(job, best), 1e-9)
    if reach > SAME:
        known = None if share is None else share.value if share.high is None else share.high
        least_s = 0.0 if known is None else 1 - known  # of a load of one second
        lead = f"at most {1 / max(least_s, 1 / reach):.2f} x"
        ranks = best.replicas * job.spec.tensor_parallel * max(1, len(job.hosts))
        how = f"--concurrency {number // ranks}" if more else "--concurrency"
        text = f"Keep more reads in flight ({how}): plain reads get {format_rate(rates[more])}"
        yield Item(lead=lead, text=f"{text} with {number}.")
    else:
        known = min(1.0, 1 / reach) if share is None else share.value
        lead = f"{'about ' if share is None else ''}{format_percent(known)} of the time"
        text = f"Get a faster storage: plain reads get no more, with {max(of)} in flight."
        yield Item(lead=lead, text=text)


def _copy(job: ModelLoadRun) -> Iterator[Item]:
    """Whether it pays to copy the files to local disk first."""
    copied = job.copied
    if copied is None or copied.copy_s is None or copied.ready_s is None:
        return
    took = f"{format_duration(copied.copy_s)} to copy, {format_duration(copied.ready_s)} to load"
    if copied.starts is None:
        yield Item(lead="never", text=f"A copy on local disk never pays ({took}).")
    else:
        spread = "".join(
            f"{each} starts, " for each in told(interval_of(copied.starts, "{:.1f}".format))
        )
        text = f"Then a copy on local disk has paid for itself ({spread}{took})."
        yield Item(lead=f"after {copied.starts.value:.1f} starts", text=text)


def _ranks(job: ModelLoadRun, best: LoadFigures) -> Iterator[Item]:
    """A part for each tensor-parallel rank, where all of them read everything from the storage."""
    ranks, share = job.spec.tensor_parallel, storage_share(best)
    if job.spec.share != "all" or share is None or "storage" not in best.bottleneck:
        return
    often = min(float(ranks), best.read_amplification or 1.0)
    most = share.value if share.high is None else share.high
    gain = 1 / (1 - most * (1 - 1 / often))
    if gain > SAME:
        text = f"Let each of {ranks} ranks read its part alone (--share sliced)."
        yield Item(lead=f"at most {gain:.2f} x", text=text)


def _storm(job: ModelLoadRun, best: LoadFigures) -> Iterator[Item]:
    """One read for all replicas, where several of them take longer than one."""
    most = max(job.spec.replicas, default=1)
    of = {
        each.one_read: each
        for each in job.figures
        if each.replicas == most and each.loader == best.loader
    }
    if most <= best.replicas or False not in of or of[False].ready_s < SAME * best.ready_s:
        return
    if True in of and of[True].ready_s < of[False].ready_s / SAME:
        gain = of[False].ready_s / of[True].ready_s
        text = f"Let {most} replicas read a part each, and exchange it."
        yield Item(lead=f"{gain:.2f} x, tried", text=text)


# The evidence


def _loaders(job: ModelLoadRun) -> Table | None:
    if not job.figures:
        return None
    rows = TableOf(job.figures)
    rows.add("loader", "loader")
    rows.add("replicas", "replicas" if not job.hosts else "replicas a host", of=_replicas)
    rows.add("ready_s", "ready", of=_ready, ends=("low_s", "high_s"))
    if job.hosts:
        rows.add("alone_s", "one host alone")
    rows.add("bytes_per_s", "of one model")
    rows.add("read_amplification", "bytes read", "ratio")
    if any(each.promised_s for each in job.figures):
        rows.add("promised_s", "predicted")
        kept = {None: "-", True: "yes", False: "no"}
        rows.add("kept", "as predicted", of=lambda each: kept[each.kept])
    notes = []
    if "direct" in job.spec.loaders and len(job.spec.loaders) > 1:
        notes.append("direct has its memory before the start, others get theirs as they load")
    title = f"Loaders: {medians_of(max(each.n for each in job.figures), 'round')}"
    return rows.made("loaders", title, notes=notes)


def _hosts(job: ModelLoadRun) -> Table | None:
    """A row for each of several hosts, the slowest first."""
    hosts = host_loads(job)
    if not hosts:
        return None
    rows = TableOf(hosts, most=MAX_HOSTS)
    rows.add("host", "host", of=lambda each: host_name(job.hosts, each.host))
    rows.add("ready_s", "ready", of=_ready, ends=("low_s", "high_s"))
    rows.add("read_bytes", "bytes read")
    rows.add("late_s", "late start")
    rows.add("offset_error_s", "clock error", of=lambda each: job.hosts[each.host].offset_error_s)
    slow = {each.host for each in slow_ones(job)}
    return rows.made(
        "hosts",
        f"Hosts, the slowest first: {_many(job, least(job))} by {job.best}, median [min, max]",
        mark=lambda each: "slow" if each.host in slow else "",
    )


def _stages(job: ModelLoadRun) -> Table | None:
    """What a load costs more than the same one without a stage."""
    tested = [each for each in job.figures if each.gains]
    if not tested:
        return None
    rows = TableOf(tested)
    rows.add("loader", "loader")
    names = {"storage": "storage", "assembly": "assembly"}
    names |= {"device": "device"} if job.spec.device != "cpu" else {}
    rows.add_each(names, "s", _without)
    rows.add("bottleneck", "bottleneck", of=_bottleneck)
    notes = [
        "without storage: the bytes of the load before are there; without assembly: bytes are read "
        "by parallel reads, and no tensor is made of them"
    ]
    return rows.made("stages", "Stages: how long a load takes without the stage", notes=notes)


def _replicas(each: LoadFigures) -> Cell:
    return word(f"{each.replicas}{', one read' if each.one_read else ''}", each.replicas)


def _ready(each: LoadFigures | HostFigures) -> Cell:
    return with_interval(each.ready_s, each.low_s, each.high_s, format_duration, each.n)


def _without(each: LoadFigures, stage: str) -> Cell | None:
    gain = next((gain for name, gain in each.gains.items() if name == stage), None)
    if gain is None:
        return None
    if gain.low is None:
        return with_interval(_left_s(each, gain.value), None, None, format_duration)
    high, low = (_left_s(each, end) for end in known_to(gain))
    return with_interval(_left_s(each, gain.value), low, high, format_duration)


def _left_s(each: LoadFigures, gain: float) -> float:
    """Seconds of a load without what brings this gain."""
    return each.ready_s / max(gain, 1e-30)


def _bottleneck(each: LoadFigures) -> str:
    names = " and ".join(STAGES[stage] for stage in each.bottleneck)
    inferred = ", inferred" if names and each.plain_s is not None else ""
    return f"{names}{inferred}" or "inconclusive"


def _plain(job: ModelLoadRun) -> Table | None:
    """Plain reads of the files beside the loads."""
    counts = sorted({(each.replicas, each.in_flight, each.more) for each in job.plain})
    if not counts:
        return None
    rows = TableOf(counts)
    rows.add("replicas", "replicas", of=lambda each: each[0])
    rows.add("in_flight", "in flight", of=lambda each: each[1])

    def rates(each: tuple[int, int, bool]) -> Cell:
        of = (each[0], each[2])
        found = [one.bytes_per_s for one in job.plain if (one.replicas, one.more) == of]
        return cell(found, format_rate)

    rows.add("bytes_per_s", "delivered", of=rates)
    title = f"Plain reads of the files, as many in flight as replicas have: {job.plain_how}"
    return rows.made("plain", title)


def _tensors(job: ModelLoadRun) -> Table | None:
    """Seconds for each tensor, by the size of tensors."""
    if not job.classes:
        return None
    rows = TableOf(job.classes)
    rows.add("name", "tensors of")
    rows.add("tensors", "tensors")
    rows.add("bytes", "bytes", "bytes")
    for loader in job.spec.loaders:
        trials = trials_of(job, loader, least(job))

        def each_s(of: TensorClass, trials: Sequence[LoadTrial] = trials) -> Cell:
            times = [trial.class_s[of.name] for trial in trials if of.name in trial.class_s]
            return cell(median(times) / of.tensors if times else None, format_duration)

        rows.add(f"{loader}_s", f"each, {loader}", of=each_s)
    notes = ["the time of a loader whose reads happen as it makes tensors has the reads in it"]
    return rows.made("tensors", "Seconds for each tensor", notes=notes)


def _about(job: ModelLoadRun) -> list[tuple[str, str]]:
    spec, trials = job.spec, first_trials(job)
    asked = together(
        spec.tensor_parallel > 1 and f"{spec.tensor_parallel} tensor-parallel ranks, {spec.share}",
        spec.block_size is not None and f"blocks of {format_bytes(spec.block_size or 0)}",
        spec.concurrency is not None and f"{spec.concurrency} reads in flight",
        spec.device != "cpu" and f"to {spec.device}",
    )
    files = f"{format_bytes(job.bytes)} in {counted(job.shards, 'shard')}"
    return [
        ("weights", f"{files}, {counted(job.tensors, 'tensor')}"),
        ("asked", asked),
        ("hosts", hosts_text(job)),
        ("bytes fetched", trials[0].fetched_how if trials else ""),
        ("page cache", trials[0].residency_how if trials else ""),
    ]


_PLAIN = (
    *("round", "loader", "replicas", "alone", "left_out", "one_read", "copy_s"),
    *("late_s", "read_bytes", "fetched_bytes", "residency_before", "residency_after"),
)


def _trials(doc: ModelLoadRecord, job: ModelLoadRun) -> Table:
    """A row for each trial."""
    rows = TableOf(job.trials)
    rows.data("run_id", of=lambda _: doc.run_id)
    rows.data(*_PLAIN)
    measured = {metric.name: metric for metric in MEASURED}
    rows.data(*measured, each=lambda each, name: value_of(job, each, measured[name]))
    return data_table(rows, doc, "trials", "Trials")
