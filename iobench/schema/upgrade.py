"""Convert records of earlier versions to the current schema.

Version 1 had no ``job``: what a run did was in keys of the record itself, next to its head. Keys
that were added later are computed from other keys of the older file. Parts that do not have the
expected form are left as they are, and the schema refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping

from .workload import OWN_LOADER

SCHEMA_VERSION = "2.1"

Json = Mapping[str, object]

_CEILINGS = {"fetch": "reader", "prep": "reader", "harness": "loader", "accelerator": "accelerator"}

_OF_TRAINING = {
    "accelerators": "accelerators",
    "workload": "workload",
    "dataset": "dataset",
    "loader": "loader",
    "ceilings": "ceilings",
    "repetitions": "repetitions",
    "verdict": "verdict",
    "find_max": "find_max",
    "checkpoint": "saves",
    "quiet": "quiet",
}
"""Keys of version 1 that are now in the job, and their names there."""


def upgraded(run: Json) -> Json:
    """Return the content of a ``run.json`` of any earlier version as the current schema has it."""
    if str(run.get("schema_version", "")).partition(".")[0] != "1":
        return run
    head = {key: value for key, value in run.items() if key not in {*_OF_TRAINING, "host"}}
    head["schema_version"] = SCHEMA_VERSION
    head["hosts"] = [run["host"]] if "host" in run else []
    study = run.get("checkpoint")
    if study is not None and not run.get("dataset"):
        job = study if not isinstance(study, Mapping) else {**study, "kind": "checkpoint"}
        return {**head, "job": job}
    training = {new: run[old] for old, new in _OF_TRAINING.items() if old in run}
    if isinstance(workload := training.get("workload"), Mapping) and "loader" in workload:
        training["workload"] = {**workload, "loader": _loader(workload["loader"])}
    if "loader" in training:
        training["loader"] = _loader(training["loader"])
    ceilings = training.get("ceilings")
    if isinstance(ceilings, Mapping):
        training["ceilings"] = {name: _ceiling(name, value) for name, value in ceilings.items()}
    return {**head, "job": {**training, "kind": "training"}}


def _loader(loader: object) -> object:
    """Call iobench's own loader as it is called now; older files call it ``torch``."""
    if not isinstance(loader, Mapping) or loader.get("kind") != "torch":
        return loader
    return {**loader, "kind": OWN_LOADER}


def _ceiling(name: str, ceiling: object) -> object:
    """Add ``by`` to a ceiling; older files say what measured it only in the text of ``how``."""
    if not isinstance(ceiling, Mapping) or "by" in ceiling or ceiling.get("not_measured"):
        return ceiling
    how = ceiling.get("how")
    words = how if isinstance(how, str) else ""
    by = _CEILINGS.get(name)
    if name == "storage_raw":
        by = "reader" if words.startswith("the reader") else "fio"
    elif name == "prep" and words.startswith("loader"):
        by = "loader"
    return ceiling if by is None else {**ceiling, "by": by}
