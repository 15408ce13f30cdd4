"""``iobench list``: the names of workloads, datasets, plug-ins, models and instances.

Each kind of names imports what it needs alone: the names of plug-ins need no schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from ..base.errors import UsageError
from ..base.text import printable, wrapped
from ..base.units import counted
from ..plugins import Registry
from .terminal import columns, note, show_json, show_lines
from .verbs import KINDS, ListRequest

UNKNOWN = "price unknown"


def run(request: ListRequest) -> int:
    if request.schema:
        return _schema(request.schema, request.kind)
    kinds = [request.kind] if request.kind else list(KINDS)
    found = {kind: _entries(kind) for kind in kinds}
    lines = (line for kind, entries in found.items() for line in _lines(request, kind, entries))
    show_lines(found, lines, json=request.json)
    if request.kind == "instances" and not request.json:
        entries = found[request.kind]
        missing = sum(summary.endswith(UNKNOWN) for summary in entries.values())
        note(
            f"{missing} of {len(entries)} have no price, because no public list that was read has "
            "one: give yours with --host-price-per-hour, or a list of prices with cost --prices",
            quiet=request.quiet,
        )
    return 0


def _lines(request: ListRequest, kind: str, entries: dict[str, str]) -> Iterator[str]:
    if not request.kind:
        yield f"{kind}:"
    if kind == "instances" and not request.kind:  # too many to print with the others
        yield f"  {len(entries)} types of hosts with their prices: iobench list instances"
        return
    width = max(map(len, map(printable, entries)), default=0)
    room = max(width + 24, min(140, columns()))
    for name, summary in entries.items():
        first = f"  {printable(name):{width}}  "
        yield from wrapped(printable(summary), room, first, " " * len(first))


def _schema(name: str, kind: str | None) -> int:
    if kind:
        raise UsageError(
            f"--schema prints one document, and '{kind}' lists names",
            remedy=f"leave out '{kind}' or --schema",
        )
    from ..record.published import json_schema

    show_json(json_schema(name), indent=1)
    return 0


def _entries(kind: str) -> dict[str, str]:
    if kind in ("workloads", "scenarios", "datasets", "sweeps"):
        from ..settings.base import known_specs
        from ..settings.yamlfile import read_yaml

        return {
            name: " ".join(str(read_yaml(path).get("description", "")).split())
            for name, path in sorted(known_specs(kind[:-1]).items())
        }
    if kind == "instances":
        from ..settings.instances import builtin

        return {name: _instance(found) for name, found in builtin().items()}
    if kind == "models":
        from ..checkpoint.models import MODELS

        return {name: model.summary for name, model in MODELS.items()}
    if kind == "served-models":
        from ..serve.models import SERVED_MODELS

        return {f"{name}-weights": model.summary for name, model in SERVED_MODELS.items()}
    return {name: plug_in.summary for name, plug_in in _table(kind).entries().items()}


_TABLES = {
    "formats": "data.formats:FORMATS",
    "contents": "data.contents:CONTENTS",
    "codecs": "data.codecs:CODECS",
    "storage": "storage:STORAGE",
    "accelerators": "accelerate:ACCELERATORS",
    "networks": "accelerate.models:NETWORKS",
    "loaders": "load.libraries:LOADERS",
    "writers": "checkpoint:WRITERS",
    "model-loaders": "serve.loaders:MODEL_LOADERS",
}
"""Where the table of each kind of plug-ins is, below iobench."""


def _table(kind: str) -> Registry[object]:
    module, _, name = _TABLES[kind].partition(":")
    table: Registry[object] = getattr(import_module(f"iobench.{module}"), name)
    return table


def _instance(found: Any) -> str:
    holds = f"{found.accelerators} x {found.accelerator}, " if found.accelerator else ""
    network = (
        f", network {found.network_baseline_gbps:g} Gbit/s" if found.network_baseline_gbps else ""
    )
    local = f", {found.nvme_gb:g} GB local" if found.nvme_gb else ""
    price = f"{found.usd_per_hour:g} USD/h ({found.priced})" if found.usd_per_hour else UNKNOWN
    return (
        f"{holds}{counted(found.cores, 'core')}, {found.memory_gib:g} GiB{network}{local}: {price}"
    )
