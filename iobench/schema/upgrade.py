"""Convert records of earlier versions to the current schema.

Keys that were added later are computed from other keys of the older file; no existing key is
changed. Parts that do not have the expected form are left as they are, and the schema refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping

Json = Mapping[str, object]

_CEILINGS = {"fetch": "reader", "prep": "reader", "harness": "loader", "accelerator": "accelerator"}


def upgraded(run: Json) -> Json:
    """Return the content of a ``run.json`` of any version 1.x, with ``by`` in each ceiling."""
    ceilings = run.get("ceilings")
    if not isinstance(ceilings, Mapping):
        return run
    return {**run, "ceilings": {name: _ceiling(name, value) for name, value in ceilings.items()}}


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
