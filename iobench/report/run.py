"""A run: first the answers, then the evidence, and last how to do it again."""

from __future__ import annotations

from ..base.units import counted, format_bytes, format_count, format_duration, format_percent
from ..judge.figures.events import Events
from ..judge.figures.metrics import DEVICE_METRICS
from ..judge.promise import told
from ..record.metrics import BY_NAME, Metric, metrics_of
from ..record.run import RunRecord, TrainingRecord
from ..record.training import RunLog
from .advise import tried_sections
from .answer import answer
from .checkpoint import saves_section
from .curve import curve_section
from .figures import (
    NO_REASON,
    Given,
    Medians,
    TableOf,
    data_table,
    lacking,
    listed,
    medians_of,
    together,
    word,
)
from .glance import UTILIZATION, cold_reads, whole_report
from .loader import library_section, user_section
from .sections import Cell, Item, Items, Prose, Section, Table, joined
from .serving import log_table
from .stages import (
    ablation_section,
    ceiling_section,
    fed_sections,
    local_cache_section,
    rate_over_time,
)
from .time import device_sections, host_section, hosts_text, time_section
from .timeline import event_sections

OF_STORED = "of the samples' stored bytes"

NO_ADVICE = (
    "No change can be promised, since the bottleneck is undecided. Measure with more repetitions "
    "(--repeat), longer ones and more time (--budget). The findings say what else is missing."
)

CONTEXT = ("seed", "accelerators", "complete")
"""Columns of a repetition that are not measured figures."""


def sections(
    doc: TrainingRecord, events: Events | None = None, samples: Events | None = None
) -> list[Section]:
    """All sections for which the run has data.

    With its ``events``, and the ``samples`` of what its host did, its charts over time, too.
    """
    first, verdict, curve = answer(doc), doc.job.verdict, curve_section(doc)
    # The curve of a storage that is the bottleneck explains the answer.
    by_storage = verdict is not None and "storage" in (verdict.bottleneck, *verdict.also)
    evidence = joined(
        ceiling_section(doc),
        ablation_section(doc),
        local_cache_section(doc),
        curve if by_storage else None,
        host_section(doc),
        time_section(doc),
        [] if events is None else event_sections(doc, events, samples),
        _metrics(doc),
        None if by_storage else curve,
        device_sections(doc),
        fed_sections(doc, of_stored=OF_STORED if reads_unseen(doc) else ""),
        library_section(doc),
        user_section(doc),
        saves_section(doc),
        _log(doc),
    )
    beside = joined(_verdict(doc), _advice(doc), tried_sections(doc))
    return whole_report(doc, first, evidence, _about(doc), _repetitions(doc), beside=beside)


def _log(doc: TrainingRecord) -> Table | None:
    """The log of inference offline."""
    logs = [one.log for one in doc.job.repetitions if one.log is not None]

    def of(each: RunLog, name: str) -> Given:
        found: Given = getattr(each, name.removeprefix("log_"))
        return found

    return log_table(logs, doc.job.workload.log, of, "batches wait")


def reads_unseen(doc: TrainingRecord) -> bool:
    """True if a loader library read the data: its reads were not counted.

    Bandwidths are then ``OF_STORED``.
    """
    return any("bytes_read" in repetition.not_measured for repetition in doc.job.repetitions)


def shown_metrics(doc: TrainingRecord) -> list[Metric]:
    """The metrics whose medians a report shows.

    Those of checkpoints only if there were some, and waits for other ranks only if there were any.
    Those of devices have a section of their own.
    """
    hidden = {"checkpoint_s"} if doc.job.saves is None else set()
    hidden -= doc.metrics.keys()
    hidden |= {"sync_s"} if doc.job.accelerators < 2 else set()
    hidden |= set(DEVICE_METRICS)
    return [each for each in metrics_of("repetition", median=True) if each.name not in hidden]


def _verdict(doc: TrainingRecord) -> Prose | None:
    """What an engineer wants to know of the verdict, which the first screen tells."""
    verdict, text = doc.job.verdict, f"No verdict: the run's status is {doc.status}."
    text = text if verdict is None else verdict.explanation
    return Prose(id="verdict", paragraphs=(text,)) if text else None


def _metrics(doc: TrainingRecord) -> Table | None:
    if not doc.job.repetitions:
        return None
    reasons = {
        key: reason
        for repetition in doc.job.repetitions
        for key, reason in repetition.not_measured.items()
    }
    shown = shown_metrics(doc)
    # The number of repetitions, not that of saves during the run.
    n = max((doc.metrics[each.name].n for each in shown if each.name in doc.metrics), default=0)
    table = Medians("min", "max", "n")
    for metric in shown:
        name, label = metric.name, metric.label
        if name == UTILIZATION and doc.job.saves is not None:
            label = "utilization, saves left out"
        found = doc.metrics.get(name)
        if found is None:
            table.add(label, name, lacking(reasons.get(name, "no complete repetition")))
            continue
        told = f" {OF_STORED}" if name == "read_bytes_per_s" and reads_unseen(doc) else ""
        told += f" n={found.n}" if found.n != n else ""
        table.measured(metric, found, label, told)
    if cold := cold_reads(doc):
        table.add("cold reads", "cold_reads", word(cold))
    if rates := rate_over_time(doc):
        table.add("rate over time", "rate_over_time", word(rates))
    if evaluated := _evaluated(doc):
        table.add("evaluation, not in these figures", "evaluation", word(evaluated))
    if doc.job.verdict:
        for key in ("fetch_stall", "prep_stall"):
            share = getattr(doc.job.verdict, key)
            cell = lacking(doc.job.verdict.not_measured.get(key, NO_REASON))
            if share is not None:
                cell = Cell(value=share, text=f"{format_percent(share)} of the time")
            # What a loader of the user's waits for need not be reads.
            label = _STALLS_OF_USER[key] if doc.job.subject.users else BY_NAME[key].label
            table.add(label, key, cell)
    return table.table("metrics", f"Measured: {medians_of(n, 'repetition')}")


def _evaluated(doc: TrainingRecord) -> str:
    """What the passes of evaluation were, in the middle of the repetitions; '' without any."""
    found = [one.evaluation for one in doc.job.repetitions if one.complete and one.evaluation]
    if not found:
        return ""
    one = sorted(found, key=lambda each: each.wall_s)[len(found) // 2]
    each_s = format_duration(one.wall_s / max(1, one.passes))
    rate = f", {format_count(one.samples_per_s)} samples/s" if one.samples_per_s else ""
    busy = one.accelerator_utilization
    used = "" if busy is None else f", accelerators busy {format_percent(busy)}"
    return f"{counted(one.passes, 'pass', 'passes')} of {each_s}{rate}{used}"


def _advice(doc: TrainingRecord) -> Items | None:
    if doc.job.verdict is None:
        return None
    advice = doc.job.verdict.advice
    if not advice:
        why = NO_ADVICE if doc.job.verdict.bottleneck == "undecided" else "No change is known."
        return listed("advice", "What would help", [why])
    found = "found or " if any(each.found for each in advice) else ""
    title = f"What would help: the {found}predicted factor on the measured samples/s"
    items = (Item(text=each.change, lead=told(each), basis=each.basis) for each in advice)
    return listed("advice", title, items)


def _about(doc: TrainingRecord) -> list[tuple[str, str]]:
    """What was run, and where the data is."""
    data, host = doc.job.dataset, doc.host
    dataset = together(
        data.name,
        data.samples and f"{format_count(data.samples)} samples",
        data.stored_bytes and format_bytes(data.stored_bytes),
    )
    memory = host.memory_bytes and f"{format_bytes(host.memory_bytes)} memory"
    return [
        ("workload", _workload(doc)),
        ("model", _trained(doc)),
        ("dataset", dataset),
        ("hosts", hosts_text(doc.job)),
        ("host", together(host.cores and f"{host.cores} cores", memory)),
        ("time", time_spent(doc)),
    ]


def _workload(doc: TrainingRecord) -> str:
    """Its name, and on how many accelerators of which size."""
    group = doc.job.workload.accelerator.model_parallel
    many = f", each a group of {group} of which one reads" if group > 1 else ""
    ranks = counted(doc.job.accelerators, "accelerator")
    return f"{doc.job.workload.name}, {ranks}{many}"


def _trained(doc: TrainingRecord) -> str:
    """Which model was trained, on what; empty if the accelerator was no model."""
    facts = doc.job.trained
    if facts is None:
        return ""
    set_before = facts.environment.get("OMP_NUM_THREADS", "")
    other = set_before not in ("", str(facts.threads))
    started = f" (started with OMP_NUM_THREADS={set_before})" if other else ""
    takes = f" in {format_duration(facts.exchange_s)}" if facts.exchange_s else ""
    loss = ""
    if facts.first_loss is not None and facts.last_loss is not None:
        loss = f"loss {facts.first_loss:.3g} at first, {facts.last_loss:.3g} at last"
    return together(
        f"{facts.model} on {facts.device}" if facts.device else facts.model,
        facts.precision,
        facts.parameters and f"{facts.parameters:,} parameters",
        facts.threads and f"{counted(facts.threads, 'thread')}{started}",
        facts.allocator and f"allocator {facts.allocator}",
        facts.gradient_bytes
        and f"{format_bytes(facts.gradient_bytes)} of gradients exchanged{takes}",
        loss,
    )


_STALLS_OF_USER = {"fetch_stall": "loader waits", "prep_stall": "loader computes"}

PARTS = {
    "start": "start",
    "pilot": "pilot",
    "prepare": "check of the loader",
    "watched": "your training",
    "calibrate": "each stage alone",
    "checkpoint": "checkpoints alone",
    "measure": "repetitions",
    "ablations": "ablations",
    "find_max": "search for the largest number",
    "confirm": "trying the advice",
}
"""What the keys of ``timings`` mean."""


def time_spent(doc: RunRecord) -> str:
    """Where the time of a run went, in the order in which it was spent; empty if not recorded."""
    spent = [(PARTS.get(part, part), seconds) for part, seconds in doc.timings.items()]
    if not spent:
        return ""
    parts = ", ".join(f"{what} {format_duration(seconds)}" for what, seconds in spent)
    whole = format_duration(sum(seconds for _, seconds in spent))
    return f"{parts}; {whole} in all" if len(spent) > 1 else parts


def _repetitions(doc: TrainingRecord) -> Table:
    """One row for each repetition."""
    rows = TableOf(enumerate(doc.job.repetitions))
    rows.data("run_id", of=lambda _: doc.run_id)
    rows.data("repetition", of=lambda each: each[0])
    names = (*CONTEXT, *(metric.name for metric in metrics_of("repetition")))
    rows.data(*names, each=lambda each, name: getattr(each[1], name))
    return data_table(rows, doc, "repetitions", "Repetitions")
