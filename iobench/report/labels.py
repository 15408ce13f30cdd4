"""What tells runs of several machines, storages and workloads apart, in tables and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..record.run import (
    CheckpointRecord,
    ModelLoadRecord,
    RunRecord,
    ServingRecord,
    TrainingRecord,
)
from ..settings.base import RecordHead
from .figures import BLANK, T, TableOf
from .sections import Column, Section, Table, Value

TAG = "tag_"
"""How the columns and labels begin that are named after a label of the user."""

NAMES = (
    "created",
    "workload",
    "dataset",
    "storage",
    "host",
    "hosts",
    "cores",
    "memory_bytes",
    "instance",
)


def labels_of(doc: RunRecord) -> dict[str, Value]:
    """The values of NAMES; host, cores, memory and instance are those of the first host.

    Of a checkpoint study, and of loads of a model, the workload is the model; of requests it is the
    scenario. None: not recorded.
    """
    workload = dataset = None
    if isinstance(doc, TrainingRecord):
        workload, dataset = doc.job.workload.name, doc.job.dataset.name
    elif isinstance(doc, CheckpointRecord | ModelLoadRecord):
        workload = doc.job.model
    elif isinstance(doc, ServingRecord):
        workload, dataset = doc.job.scenario.name, doc.job.dataset.name
    host = doc.host
    cores = host.cores if host.effective_cores is None else host.effective_cores
    memory = host.effective_memory_bytes
    values = (
        doc.created,
        workload or None,
        dataset or None,
        doc.storage.url or None,
        host.node or None,
        len(doc.hosts) or None,
        cores,
        host.memory_bytes if memory is None else memory,
        host.instance_type or None,
    )
    return dict(zip(NAMES, values, strict=True))


def add_labels(rows: TableOf[T], doc: RunRecord) -> None:
    """Columns of the labels of a run, for tables of data."""
    for name, value in labels_of(doc).items():
        rows.data(name, of=partial(_same, value))
    add_tags(rows, doc)


def add_tags(rows: TableOf[T], record: RecordHead) -> None:
    """Columns of the labels that the user gave, for tables of data."""
    for key, value in record.tags.items():
        rows.data(f"{TAG}{key}", of=partial(_same, value))


def named(doc: RunRecord) -> list[tuple[str, str]]:
    """The facts with which the report of every run begins: its id, and the user's labels."""
    return [("run", doc.run_id), ("labels", tags_text(doc))]


def _same(value: Value, _: object) -> Value:
    return value


def tags_text(record: RecordHead) -> str:
    """``box=nfs-b, site=Basel``; empty if there is no label."""
    return ", ".join(f"{key}={value}" for key, value in record.tags.items())


def with_all_tags(sections: Sequence[Section], docs: Sequence[RunRecord]) -> list[Section]:
    """Give tables with labels the same columns: those of the labels that any of the runs has."""
    keys = list(dict.fromkeys(f"{TAG}{key}" for doc in docs for key in doc.tags))
    return [
        _widened(each, keys) if isinstance(each, Table) and _labelled(each) else each
        for each in sections
    ]


def _labelled(table: Table) -> bool:
    return {column.name for column in table.columns}.issuperset(NAMES)


def _widened(table: Table, keys: Sequence[str]) -> Table:
    known = {column.name: column for column in table.columns}
    wanted = [*(name for name in known if not name.startswith(TAG)), *keys]
    rows = [dict(zip(known, row.cells, strict=True)) for row in table.rows]
    return replace(
        table,
        columns=tuple(known.get(name, Column(name=name)) for name in wanted),
        rows=tuple(
            replace(row, cells=tuple(cells.get(name, BLANK) for name in wanted))
            for row, cells in zip(table.rows, rows, strict=True)
        ),
    )
