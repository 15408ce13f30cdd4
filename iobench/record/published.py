"""The JSON schemas of the documents that iobench writes, derived from their classes.

The dialect is JSON Schema, draft 2020-12. ``results/*.schema.json`` are these documents, and a test
compares both. Unknown keys are valid but for those of the settings that a user writes.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, TypeAdapter

from .ab import SCHEMA_VERSION as AB_VERSION
from .ab import AbRecord
from .run import KINDS
from .run import SCHEMA_VERSION as RUN_VERSION
from .sweep import SCHEMA_VERSION as SWEEP_VERSION
from .sweep import Sweep

DIALECT = "https://json-schema.org/draft/2020-12/schema"

DOCUMENTS: dict[str, tuple[str, tuple[type[BaseModel], ...]]] = {
    "run": (RUN_VERSION, tuple(KINDS.values())),
    "ab": (AB_VERSION, (AbRecord,)),
    "sweep": (SWEEP_VERSION, (Sweep,)),
}
"""For each document: its version, and its classes, of which one fits."""

Json = dict[str, Any]


def json_schema(name: str) -> Json:
    """The schema of ``run.json``, ``ab.json`` or ``sweep.json``: a key of DOCUMENTS."""
    version, models = DOCUMENTS[name]
    union: Any = models[0]
    for model in models[1:]:
        union = union | model
    found: Json = TypeAdapter(union).json_schema(mode="validation")
    parts: Json = found.setdefault("$defs", {})
    for part in [found, *parts.values()]:
        _needs_its_tags(part)
    return {
        "$schema": DIALECT,
        "$id": f"urn:iobench:{name}:{version}",
        "title": f"{name}.json",
        **{key: value for key, value in found.items() if key != "title"},
    }


def _needs_its_tags(part: Json) -> None:
    """Demand the keys by which a reader chooses the class: a version, and constants (``kind``)."""
    known: Json = part.get("properties", {})
    tags = [key for key, value in known.items() if key == "schema_version" or "const" in value]
    if tags:
        part["required"] = sorted({*part.get("required", []), *tags})
    if "schema_version" in known:
        major = str(known["schema_version"].get("default", "")).partition(".")[0]
        known["schema_version"]["pattern"] = f"^{major}\\."
