"""What earlier versions wrote, in the form of today's records.

Keys that came later are filled in from what the older file says in another way; nothing that is
there is changed. What does not have the expected form is left as it is, for the schema to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping

Json = Mapping[str, object]

_CEILINGS = {"fetch": "reader", "prep": "reader", "harness": "loader", "accelerator": "accelerator"}


def upgraded(run: Json) -> Json:
    """The content of a ``run.json`` of any version 1.x, with each ceiling's ``by``."""
    ceilings = run.get("ceilings")
    if not isinstance(ceilings, Mapping):
        return run
    return {**run, "ceilings": {name: _ceiling(name, value) for name, value in ceilings.items()}}


def _ceiling(name: str, ceiling: object) -> object:
    """Older files say who measured only in the words of ``how``."""
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
