"""The report of a run of whatever kind: how it ended, what its rules found, what was run.

Also, for pages alone, all that is needed to do it again: commands, specifications, versions,
fingerprints. A record holds no credentials: a URL with some is refused before anything runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import yaml

from ..ask.compare.runs import usable
from ..base.text import quoted
from ..base.units import format_count, format_percent
from ..judge.cache import cached_image, epoch_deliveries, is_cold, uncached
from ..record.run import CheckpointRecord, RequestsRecord, RunRecord, TrainingRecord
from ..record.verdict import Verdict
from ..settings.base import OpenRecord, RecordHead, Strict
from .figures import facts, sentence, some, tags_text
from .sections import (
    LEVELS,
    Facts,
    Findings,
    FirstScreen,
    Headline,
    Section,
    SourceLines,
    Table,
    how_many,
    joined,
)

UTILIZATION = "accelerator_utilization_sustained"
"""By the names of ``record.metrics``: the figure of the verdict."""

STAGES = {
    "storage": "storage",
    "prep": "preparation",
    "loader": "the loader itself",
    "accelerator": "the accelerator",
    "cpu": "this host's CPU",
    "sync": "the slowest rank",
    "checkpoint": "saving checkpoints",
    "log": "writing the log",
    "fill": "the start of each epoch",
}
"""What can be the bottleneck, in a title and in a sentence."""


def resting_on(runs: Iterable[RunRecord], shown: Iterable[Section]) -> list[Section]:
    """A prediction, whose first screen names those of its runs that count nowhere else."""
    reasons = [why for doc in runs if (why := usable(doc, f"Run {doc.run_id}"))]
    told = [f"{why}, and the prediction rests on it." for why in reasons]
    return [
        replace(each, sentences=(*each.sentences, *told)) if isinstance(each, FirstScreen) else each
        for each in shown
    ]


def stage_names(verdict: Verdict, *, watched: bool = False) -> list[str]:
    """The bottleneck, and what can't be told from it; none where it is undecided.

    For what a training that was ``watched`` waits is not known to be its storage.
    """
    names = STAGES | ({"storage": "storage, a network or a lock"} if watched else {})
    return [names[stage] for stage in (verdict.bottleneck, *verdict.also) if stage in names]


_STATES = {"valid": "valid", "invalid": "INVALID", "unknown": "not known whether it is valid"}
_KINDS = {
    "checkpoint": "checkpoint study",
    "model-load": "measurement of loads",
    "serving": "serving run",
    "kv-cache": "run of a KV cache",
}
_ENDED = {
    "failed": "failed",
    "interrupted": "was interrupted",
    "running": "still runs, or was killed",
    "out of time": "ran out of time",
}


def ended(what: str, status: str, error: str = "") -> Headline | None:
    """That what was measured failed, was interrupted or still runs; None if it ended well."""
    if status == "ok":
        return None
    told = filter(None, [error, "What was measured before is shown below. It is not complete."])
    title = f"{what} {_ENDED.get(status, status)}"
    return Headline(id="status", title=title, sentences=tuple(told), tone="bad", first=True)


def whole_report(
    doc: RunRecord,
    first: FirstScreen,
    evidence: Iterable[Section | None],
    about: Iterable[tuple[str, str]],
    data: Table,
    *,
    beside: Iterable[Section | None] = (),
) -> list[Section]:
    """The report of a run of whatever kind: its answer, the rules that failed, and the evidence.

    Then the remarks of rules, what was run (``about``), how to do it again, and the ``data``.
    ``beside``: what goes with the answer.
    """
    order = list(LEVELS)
    worst_first = sorted(doc.findings, key=lambda each: order.index(each.level))
    failed = tuple(each for each in worst_first if each.level != "info")
    remarks = tuple(each for each in worst_first if each.level == "info")
    run = [("run", doc.run_id), ("labels", tags_text(doc)), ("storage", doc.storage.url or "")]
    return joined(
        ended(f"This {_KINDS.get(doc.job.kind, 'run')}", doc.status, doc.error),
        _with_trust(doc, first),
        beside,
        Findings(findings=failed),
        evidence,
        Findings(id="remarks", title="Remarks", findings=remarks) if remarks else None,
        facts("about", "About this run", [*run, *about]),
        again_sections(doc),
        data,
    )


MAX_FINDINGS = 3
"""Findings, and rules that were not judged, of a first screen."""


_FIRST = ("cpu.other-load", "storage.retries", "storage.throttled")
"""The rules whose warnings stand on the first screen: all rates are of what others left, or of a
storage that fails, or of a quota."""


def _with_trust(doc: RunRecord, answer: FirstScreen) -> FirstScreen:
    """The answer of a run, with what speaks against it, and when it was measured."""
    invalid, unjudged = doc.validity == "invalid", list[str]()
    failed = tuple(each for each in doc.findings if each.level == "invalid")[:MAX_FINDINGS]
    if doc.validity == "unknown":
        unjudged = [each.rule for each in doc.findings if each.level == "unknown"]
    told = f"Not judged: {some(unjudged, MAX_FINDINGS, ', ')}." if unjudged else ""
    told_first = [each for each in doc.findings if each.rule in _FIRST and each.level == "warning"]
    others = " ".join(sentence(each.evidence) for each in told_first)
    when = f"{doc.created[:16].replace('T', ' ')} UTC, " if doc.created else ""
    return replace(
        answer,
        flags=(*["INVALID"] * invalid, *[doc.status] * (doc.status != "ok")),
        tone="bad" if invalid else answer.tone,
        about=f"{when}run {doc.run_id}",
        findings=Findings(title="Why it is INVALID", findings=failed) if failed else None,
        trust=" ".join(filter(None, [sentence(_trust(doc)), others, told, answer.trust])),
    )


def _trust(doc: RunRecord) -> str:
    """``valid by the quick rules: no rule failed, 5 warnings, 2 remarks``."""
    number = Counter[str](each.level for each in doc.findings)
    told = [how_many(level, number[level]) for level in LEVELS if number[level]]
    told = told if number["invalid"] else ["no rule failed", *told]
    return f"{_STATES[doc.validity]} by the {doc.rules} rules: {', '.join(told)}"


def bottleneck_text(verdict: Verdict, *, watched: bool = False) -> str:
    """``storage is the bottleneck``, for a title."""
    names = " or ".join(stage_names(verdict, watched=watched))
    return f"{names} is the bottleneck" if names else "the bottleneck is undecided"


def cold_reads(doc: TrainingRecord) -> str:
    """The line; '' if the run does not claim cold reads, or no epoch is recorded."""
    found = list(epoch_deliveries(doc))
    if not is_cold(doc) or not found:
        return ""
    gaps = [each for each in found if each.fetched is None]
    if gaps and uncached(doc) and cached_image(doc) is None:
        return "reads go past this host's page cache"
    if gaps:
        where = "" if len(gaps) == len(found) else f" in {format_count(len(gaps))} epochs"
        reason = gaps[0].how.removeprefix("not measured: ") or "no reason was recorded"
        return f"not measured{where}: {reason}"
    if cached_image(doc) is not None:
        return "from a loop device, whose image this host's page cache may hold"
    share = format_percent(1 - max(each.cached for each in found))
    worst = f", in the worst of {format_count(len(found))} epochs" if len(found) > 1 else ""
    source = "storage and the local cache's disk" if doc.job.local_cache else "storage"
    return f"{share} came from {source}{worst}"


MAX_HOSTS = 16
"""Hosts whose fingerprints are shown; the record has all of them."""

MAX_LINES = 2000
"""Lines of a specification or a fingerprint; iobench's own have fewer than 200."""

TITLE = "To do it again"


def again_sections(doc: RunRecord) -> list[Section]:
    """The command of the run, its specifications as YAML, and what host and storage were."""
    found = [*command_sections(doc.command), _versions(doc)]
    if isinstance(doc, TrainingRecord):
        found += _training(doc)
    elif isinstance(doc, CheckpointRecord) and doc.job.spec.recorded:
        found.append(_file("spec", "The study as YAML", _plain(doc.job.spec)))
    elif isinstance(doc, RequestsRecord):
        found.append(_file("scenario", "scenario.yaml", _plain(doc.job.scenario)))
    hosts = [_plain(host) for host in doc.hosts[:MAX_HOSTS]]
    more = f" (the first {MAX_HOSTS} of {len(doc.hosts)})" if len(doc.hosts) > MAX_HOSTS else ""
    if any(hosts):
        title = f"Fingerprint of the host{'s' * (len(doc.hosts) > 1)}{more}"
        found.append(_file("hosts", title, hosts))
    if doc.storage.recorded:
        found.append(_file("storage-facts", "Fingerprint of the storage", _plain(doc.storage)))
    return found


def kept_sections(record: RecordHead) -> list[Section]:
    """The labels of a record of several runs, and its command."""
    return joined(
        facts("labels", "", [("labels", tags_text(record))]) if record.tags else None,
        command_sections(record.command) if record.command else None,
    )


def command_sections(command: Sequence[str]) -> list[Section]:
    """The command of a record, as a shell takes it."""
    line = " ".join(map(quoted, command)) or "# the command was not recorded"
    return [SourceLines(id="again", title=TITLE, lines=(line,))]


def yaml_lines(data: object) -> tuple[str, ...]:
    """``data`` as YAML in ASCII, in lines."""
    text: str = yaml.safe_dump(data, sort_keys=False, width=90)
    lines = text.splitlines()
    more = len(lines) - MAX_LINES
    return (*lines[:MAX_LINES], *([f"# and {more:,} more lines"] if more > 0 else []))


def _training(doc: TrainingRecord) -> list[Section]:
    """The specifications, and the commands that use them instead of names."""
    job, found = doc.job, list[Section]()
    if job.subject.watched:
        return found
    lines, data = [], job.dataset
    scanned = data.origin is not None or data.spec is None
    if not scanned:
        samples = f" --samples {data.samples}" if data.samples else ""
        lines.append(f"iobench generate ./dataset.yaml --to NEW{samples}")
    known = data.location or doc.storage.url
    asked = {
        "--data": quoted(known) if scanned and known else "NEW",
        "--origin": quoted(data.origin) if data.origin else None,
        "--accelerators": job.accelerators,
        "--repeat": len(job.repetitions) or None,
        "--seed": job.repetitions[0].seed if job.repetitions else None,
        "--rules": quoted(doc.rules),
    }
    flags = " ".join(f"{flag} {value}" for flag, value in asked.items() if value is not None)
    lines.append(f"iobench run ./workload.yaml {flags}")
    title = "The same from the specifications, on any host: NEW is a directory or a URL"
    found.append(SourceLines(id="again-from-files", title=title, lines=tuple(lines), folded=True))
    spec = job.workload.accelerator
    used = {key: value for key, value in _plain(spec).items() if key not in spec.without_effect}
    found.append(_file("workload", "workload.yaml", {**_plain(job.workload), "accelerator": used}))
    if data.spec is not None:
        name = "The dataset, as it was scanned" if scanned else "dataset.yaml"
        found.append(_file("dataset", name, _plain(data.spec)))
    if job.loader.recorded:
        found.append(_file("loader", "The loader, as it really ran", _plain(job.loader)))
    return found


def _versions(doc: RunRecord) -> Facts:
    host = doc.host
    commit = f", commit {host.iobench_commit}" if host.iobench_commit else ""
    packages = ", ".join(f"{name} {each}" for name, each in (host.packages or {}).items() if each)
    told = [
        ("iobench", f"{doc.iobench_version}{commit}"),
        ("Python", host.python or ""),
        ("kernel", host.kernel or ""),
        ("packages", packages),
        ("seeds", _seeds(doc)),
    ]
    return facts("versions", "", told, where="pages")


def _seeds(doc: RunRecord) -> str:
    if not isinstance(doc, TrainingRecord):
        return ""
    seeds = [each.seed for each in doc.job.repetitions]
    if len(seeds) > 1 and seeds == [*range(seeds[0], seeds[0] + len(seeds))]:
        return f"{seeds[0]} to {seeds[-1]}, one for each repetition"
    return ", ".join(map(str, seeds[:20])) + (", ..." if len(seeds) > 20 else "")


def _file(name: str, title: str, data: object) -> SourceLines:
    return SourceLines(id=f"{name}-yaml", title=title, lines=yaml_lines(data), folded=True)


def _plain(record: OpenRecord | Strict) -> dict[str, object]:
    """The keys of a record that have values, in groups and lists too."""
    known = record.model_dump(mode="json", exclude_none=True)
    return {key: value for key, value in known.items() if value not in ({}, [], "")}
