"""All that is needed to do a run again: commands, specifications, versions, fingerprints.

For pages alone. A record holds no credentials: a URL with some is refused before anything runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from ..base.text import quoted
from ..record.run import CheckpointRecord, RequestsRecord, RunRecord, TrainingRecord
from ..settings.base import OpenRecord, RecordHead, Strict
from .figures import facts, tags_text
from .sections import Facts, Section, SourceLines, joined

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
    found.append(_file("workload", "workload.yaml", _plain(job.workload)))
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
