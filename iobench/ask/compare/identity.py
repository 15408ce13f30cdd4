"""The identity of a run: everything in its record that may change a figure, as flat keys.

``identity`` has the settings, the hosts, the storage with its parameters, and the versions. Each
key has a role (``ROLES``):

- ``asked``: what the run asks of the storage. Rates of runs that differ in it are not comparable.
- ``place``: the host and the storage. Runs of different places are never one series, and the drift
  between runs belongs to one place.
- ``version``: versions of software, which change as time passes.
- ``other``: everything else.

What differs between runs that are compared is printed, whatever its role.

Runs are pooled only if their whole identity is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal

from ...record.checkpoint import Study
from ...record.run import (
    KvCacheRecord,
    ModelLoadRecord,
    RequestsRecord,
    RunRecord,
    ServingRecord,
    TrainingRecord,
)
from ...record.sweep import setting_text
from ..tuning.points import asked_settings, flatten

Role = Literal["asked", "place", "version", "other"]

ROLES: dict[Role, tuple[str, ...]] = {
    "other": ("dataset.id",),  # it follows from the other keys, unless the data was scanned
    "asked": (
        # The work. Its name is that of the workload, or of the model of a checkpoint study.
        *("workload", "dataset.", "accelerators", "accelerator.", "batch_size", "epochs"),
        *("max_steps", "cache", "reader.crop", "reader.decode", "reader.columns", "reader.tail"),
        *("reader.check", "reader.prep_time", "reader.prep_cv", "evaluation."),
        # A checkpoint study. Its writer may differ, since it is what is compared.
        *("model", "ranks", "scale", "weights_only", "changed", "fsync"),
        # Loads of a model. Its loaders may differ, since they are what is compared.
        *("weights.", "replicas", "tensor_parallel", "state", "device"),
        # Requests that arrive.
        *("rate", "limit", "quantile", "step_time", "batch_delay", "arrivals."),
        *("log.record", "log.inputs"),
        # Checkpoints that a run saves while it loads data.
        *("saves.model", "saves.ranks", "saves.scale", "saves.changed", "saves.fsync"),
        "saves.every",
    ),
    "place": (
        # The hosts: which, and how much of them the run may use.
        *("hosts", "host.node", "host.instance_type", "host.cpu_model", "host.cores"),
        *("host.effective_cores", "host.cgroup_memory_limit_bytes"),
        # The storage: where it is, and what it was told to be.
        *("storage.scheme", "storage.url", "storage.endpoint", "storage.region", "storage.server"),
        *("storage.bandwidth_bytes_per_s", "storage.write_bandwidth_bytes_per_s", "storage.iops"),
        *("storage.latency_s", "storage.latency_p99_s", "storage.sync_s", "storage.faults."),
        # That of a log, and of checkpoints that a run saves.
        *("log.storage.scheme", "log.storage.url", "log.storage.endpoint"),
        *("log.storage.write_bandwidth_bytes_per_s", "log.storage.sync_s"),
        *("saves.storage.scheme", "saves.storage.url", "saves.storage.endpoint"),
        *("saves.storage.bandwidth_bytes_per_s", "saves.storage.write_bandwidth_bytes_per_s"),
    ),
    "version": (
        *("iobench_version", "host.iobench_commit", "host.kernel", "host.python"),
        *("host.packages.", "storage.client_version", "storage.client_versions"),
        *("storage.client_versions.", "storage.fsspec_version", "storage.library"),
        "loader.library",
    ),
}
"""The keys of each role; with a dot at the end, all keys that begin so. The first one counts; keys
that are not here are ``other``.
"""

LEFT_OUT = (
    "host.hugetlb.free",
    "host.instance_how",
    "host.iobench_version",  # it is in the head of the record
    "storage.conditional_create",
    "storage.devices.number",
    "storage.direct",  # what the file system can do; ``loader.direct`` is what the run did
    "storage.free_bytes",
    "storage.free_inodes",
    "storage.latency_mean_s",
    "storage.path",
    "storage.probed",
)
"""What a record says of the host and the storage, but is no part of the identity.

It changes from run to run without meaning, follows from another key, or says only how a fact was
found out.
"""

_USED = ("library", "direct", "access", "transport", "slot_pages")
"""What the loader really did, which may differ from its settings."""


@lru_cache(maxsize=4096)
def role_of(key: str) -> Role:
    """The role of a key of ``identity``."""
    found = (role for role, names in ROLES.items() for name in names if _is_below(key, name))
    return next(found, "other")


def _is_below(key: str, name: str) -> bool:
    return key.startswith(name) if name.endswith(".") else key == name


def identity(doc: RunRecord) -> dict[str, str]:
    """All facts that may change a figure, by flat keys (``storage.iops``, ``reader.crop``).

    A fact that is not known, or does not exist (no quota), has no key. A fact of several hosts has
    all of their values.
    """
    found = {"workload": workload_of(doc), "iobench_version": doc.iobench_version}
    found |= settings_of(doc)
    if isinstance(doc, TrainingRecord):
        used = doc.job.loader.model_dump(include=set(_USED))
        found |= {f"loader.{key}": setting_text(used[key]) for key in used if used[key] is not None}
        if doc.job.dataset.id:
            found["dataset.id"] = doc.job.dataset.id
        if doc.job.saves is not None:
            found |= _saves(doc.job.saves)
    hosts = [_facts("host", host.model_dump()) for host in doc.hosts]
    found["hosts"] = str(len(hosts))
    for key in {key: None for host in hosts for key in host}:
        found[key] = _joined(host.get(key, "-") for host in hosts)
    return found | _facts("storage", doc.storage.model_dump())


def place(doc: RunRecord) -> tuple[str, ...]:
    """The host and the storage, as ``key=value``: drift is known within one place only."""
    found = identity(doc)
    return tuple(f"{key}={found[key]}" for key in sorted(found) if role_of(key) == "place")


def by_identity(docs: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """The runs in groups of the same identity, in the order in which these appear."""
    groups: dict[tuple[tuple[str, str], ...], list[RunRecord]] = {}
    for doc in docs:
        groups.setdefault(tuple(sorted(identity(doc).items())), []).append(doc)
    return list(groups.values())


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """What differs between two identities, as ``key: this -> that``; ``-``: no such key."""
    return tuple(
        f"{key}: {before.get(key, '-')} -> {after.get(key, '-')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    )


def workload_of(doc: RunRecord) -> str:
    """The name of the workload; of a checkpoint study ``checkpoint`` and that of its model."""
    if isinstance(doc, TrainingRecord):
        return doc.job.workload.name
    if isinstance(doc, ModelLoadRecord):
        return f"load {doc.job.model}"
    if isinstance(doc, RequestsRecord):
        return doc.job.scenario.name
    return f"checkpoint {doc.checkpoints.model}" if doc.checkpoints else doc.job.kind


def settings_of(doc: RunRecord) -> dict[str, str]:
    """All settings as flat keys.

    They are the workload, the dataset and the number of accelerators, or the specification of a
    checkpoint study or of a model's loads.
    """
    if isinstance(doc, ModelLoadRecord):
        weights = {"bytes": doc.job.bytes, "tensors": doc.job.tensors, "shards": doc.job.shards}
        asked = doc.job.spec.model_dump(exclude={"repetitions", "engine_start_s"})
        return flatten({**asked, "weights": weights}, {})
    if isinstance(doc, KvCacheRecord):
        return flatten(doc.job.scenario.model_dump(mode="json"), {}) | {"rate": _rate(doc)}
    if isinstance(doc, ServingRecord):
        asked = {"rate": _rate(doc), "dataset.seed": str(doc.job.dataset.asked.get("seed"))}
        scenario = doc.job.scenario.model_dump(mode="json")
        del scenario["arrivals"]["rate"]  # it may have been found
        if doc.job.log is None:
            del scenario["log"]  # nothing of it was used
        else:
            del scenario["log"]["to"]
            storage = _facts("storage", doc.job.log.model_dump())
            asked |= {f"log.{key}": text for key, text in storage.items()}
        return flatten(scenario, doc.job.dataset.asked) | asked
    if not isinstance(doc, TrainingRecord):
        spec_of_study = doc.checkpoints.spec.model_dump() if doc.checkpoints else {}
        return {key: str(value) for key, value in spec_of_study.items()}
    seed = doc.job.dataset.asked.get("seed")
    return asked_settings(doc) | {"dataset.seed": str(seed)}


def _rate(doc: ServingRecord | KvCacheRecord) -> str:
    """The rate that was asked for; the largest that holds the limit is an answer."""
    return "the largest" if doc.job.found is not None else str(doc.job.rate)


def _saves(saves: Study) -> dict[str, str]:
    found = _facts("saves", saves.spec.model_dump())
    if saves.every is not None:
        found["saves.every"] = str(saves.every)
    if saves.storage is not None:
        storage = _facts("storage", saves.storage.model_dump())
        found |= {f"saves.{key}": text for key, text in storage.items()}
    return found


def _facts(prefix: str, facts: Mapping[str, object]) -> dict[str, str]:
    """The facts as flat keys, without those that have no value, and without ``LEFT_OUT``."""
    found: dict[str, list[str]] = {}
    for key, text in _leaves(prefix, facts):
        found.setdefault(key, []).append(text)
    return {key: ", ".join(texts) for key, texts in found.items()}


def _leaves(key: str, value: object) -> Iterator[tuple[str, str]]:
    """Each value below ``key``. The entries of a list (devices, GPUs) have the same keys."""
    if value is None or key in LEFT_OUT:
        return
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(f"{key}.{name}", part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(key, part)
    else:
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        yield key, setting_text(value)


def _joined(texts: Iterable[str]) -> str:
    return " | ".join(sorted(set(texts)))
