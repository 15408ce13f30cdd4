"""``iobench list``: the names of workloads, datasets, plug-ins, models and instances."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING, Any

from .verbs import Verb

if TYPE_CHECKING:
    from ..plugins import Registry

KINDS = (
    "workloads",
    "datasets",
    "sweeps",
    "formats",
    "contents",
    "codecs",
    "storage",
    "accelerators",
    "networks",
    "loaders",
    "writers",
    "models",
    "instances",
)

UNKNOWN = "price unknown"

SCHEMAS = ("run", "ab", "sweep")
"""The documents of ``schema.published``, which is imported only if one is asked for."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", choices=KINDS, help="list only this kind of names")
    parser.add_argument(
        "--schema",
        choices=SCHEMAS,
        help="print the JSON schema (draft 2020-12) of run.json, ab.json or sweep.json instead",
    )


def run(args: argparse.Namespace) -> int:
    from ..text import printable
    from .terminal import columns, note, say, show_json

    if args.schema:
        return _schema(args)
    kinds = [args.kind] if args.kind else list(KINDS)
    found = {kind: _entries(kind) for kind in kinds}
    if args.json:
        show_json(found)
        return 0
    for kind, entries in found.items():
        if kind == "instances" and not args.kind:  # too many to print with the others
            say("instances:")
            say(f"  {len(entries)} types of hosts with their prices: iobench list instances")
            continue
        if len(kinds) > 1:
            say(f"{kind}:")
        names = [printable(name) for name in entries]
        width = max(map(len, names), default=0)
        for name, summary in zip(names, entries.values(), strict=True):
            first, rest = f"  {name:{width}}  ", " " * (width + 4)
            room = max(width + 24, min(140, columns()))
            text = f"{first}{printable(summary)}"
            for line in textwrap.wrap(
                text, room, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
            ):
                say(line)
    if args.kind == "instances":
        entries = found[args.kind]
        missing = sum(summary.endswith(UNKNOWN) for summary in entries.values())
        note(
            f"{missing} of {len(entries)} have no price, because no public list that was read has "
            "one: give yours with --host-price-per-hour, or a list of prices with cost --prices",
            quiet=args.quiet,
        )
    return 0


def _schema(args: argparse.Namespace) -> int:
    from ..errors import UsageError
    from ..schema.published import json_schema
    from .terminal import show_json

    if args.kind:
        raise UsageError(
            f"--schema prints one document, and '{args.kind}' lists names",
            remedy=f"leave out '{args.kind}' or --schema",
        )
    show_json(json_schema(args.schema), indent=1)
    return 0


def _entries(kind: str) -> dict[str, str]:
    if kind in ("workloads", "datasets", "sweeps"):
        from ..schema.base import known_specs
        from ..schema.yamlfile import read_yaml

        return {
            name: " ".join(str(read_yaml(path).get("description", "")).split())
            for name, path in sorted(known_specs(kind[:-1]).items())
        }
    if kind == "instances":
        from ..schema.instances import builtin

        return {name: _instance(found) for name, found in builtin().items()}
    if kind == "models":
        from ..checkpoint.models import MODELS

        return {name: model.summary for name, model in MODELS.items()}
    return {name: plug_in.summary for name, plug_in in _table(kind).entries().items()}


_TABLES = {
    "formats": "formats:FORMATS",
    "contents": "contents:CONTENTS",
    "codecs": "codecs:CODECS",
    "storage": "storage:STORAGE",
    "accelerators": "accelerate:ACCELERATORS",
    "networks": "accelerate.models:NETWORKS",
    "loaders": "load.libraries:LOADERS",
    "writers": "checkpoint:WRITERS",
}
"""Where the table of each kind of plug-ins is, below iobench."""


def _table(kind: str) -> Registry[object]:
    from importlib import import_module

    module, _, name = _TABLES[kind].partition(":")
    table: Registry[object] = getattr(import_module(f"iobench.{module}"), name)
    return table


def _instance(found: Any) -> str:
    from ..units import counted

    holds = f"{found.accelerators} x {found.accelerator}, " if found.accelerator else ""
    network = (
        f", network {found.network_baseline_gbps:g} Gbit/s" if found.network_baseline_gbps else ""
    )
    local = f", {found.nvme_gb:g} GB local" if found.nvme_gb else ""
    price = f"{found.usd_per_hour:g} USD/h ({found.priced})" if found.usd_per_hour else UNKNOWN
    return (
        f"{holds}{counted(found.cores, 'core')}, {found.memory_gib:g} GiB{network}{local}: {price}"
    )


VERB = Verb(
    help="names of workloads, datasets, formats, storage, ...",
    description="List everything that iobench knows by name, with one line about each.",
    examples="examples:\n  iobench list\n  iobench list workloads\n  iobench list codecs --json\n"
    "  iobench list --schema run\n",
    arguments=arguments,
    run=run,
)
