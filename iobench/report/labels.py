"""What tells runs of several machines, storages and workloads apart, in tables and metrics."""

from __future__ import annotations

from ..record.run import (
    CheckpointRecord,
    KvCacheRecord,
    ModelLoadRecord,
    RunRecord,
    ServingRecord,
    TrainingRecord,
)
from ..settings.base import RecordHead
from .figures import T, TableOf
from .sections import TAG, Table, Value


def labels_of(doc: RunRecord) -> dict[str, Value]:
    """What tells runs of several machines, storages and workloads apart; None: not recorded.

    Host, cores, memory and instance are those of the first host. Of a checkpoint study, and of
    loads of a model, the workload is the model; of requests it is the scenario.
    """
    workload = dataset = None
    if isinstance(doc, TrainingRecord):
        workload, dataset = doc.job.workload.name, doc.job.dataset.name
    elif isinstance(doc, CheckpointRecord | ModelLoadRecord):
        workload = doc.job.model
    elif isinstance(doc, ServingRecord):
        workload, dataset = doc.job.scenario.name, doc.job.dataset.name
    elif isinstance(doc, KvCacheRecord):
        workload = doc.job.scenario.name
    host, memory = doc.host, doc.host.effective_memory_bytes
    return {
        "created": doc.created,
        "workload": workload or None,
        "dataset": dataset or None,
        "storage": doc.storage.url or None,
        "host": host.node or None,
        "hosts": len(doc.hosts) or None,
        "cores": host.cores if host.effective_cores is None else host.effective_cores,
        "memory_bytes": host.memory_bytes if memory is None else memory,
        "instance": host.instance_type or None,
    }


def data_table(rows: TableOf[T], doc: RunRecord, name: str, title: str) -> Table:
    """The table of data of a run, with its labels behind the columns."""
    known = labels_of(doc)
    rows.data(*known, each=lambda _, key: known[key])
    add_tags(rows, doc)
    return rows.made(name, title, where="data")


def add_tags(rows: TableOf[T], record: RecordHead) -> None:
    """Columns of the labels that the user gave, for tables of data."""
    known = {f"{TAG}{key}": value for key, value in record.tags.items()}
    rows.data(*known, each=lambda _, key: known[key])


def tags_text(record: RecordHead) -> str:
    """``box=nfs-b, site=Basel``; empty if there is no label."""
    return ", ".join(f"{key}={value}" for key, value in record.tags.items())
