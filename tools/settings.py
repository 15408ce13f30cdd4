"""``make settings``: docs/settings.md, all keys of the files that users write."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

from iobench.record.checkpoint import CheckpointSpec
from iobench.settings.any_workload import LoadSpec
from iobench.settings.base import Strict
from iobench.settings.dataset import DatasetSpec, SampleSize
from iobench.settings.kv_cache import KvModel, KvReader, KvScenario, PrefillSpec, PromptSpec
from iobench.settings.scenario import ArrivalSpec, EngineSpec, RequestReader, Scenario, SearchSpec
from iobench.settings.walk import AskedStep, WalkSpec
from iobench.settings.workload import (
    AcceleratorSpec,
    EvaluationSpec,
    LoaderSpec,
    LocalCacheSpec,
    LogSpec,
    ReaderSpec,
    Workload,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

HEAD = """\
# All settings

These are the keys of YAML files that say what is measured, with the default of each. Such a file
can be given wherever a name can: `iobench run ./mine.yaml --data DIR`. `--set KEY=VALUE` overrides
one of its keys, with a dot between a group and its key: `--set reader.concurrency=16`. A size is a
number of bytes or has a unit (`64MiB`), and a time is a number of seconds or has one (`20ms`).
`name`, `description` and `source` of a file are texts for reports.

This page is made from the code by `make settings`.
"""

GROUPS: dict[str, dict[str, type[Strict]]] = {
    "Datasets ([generate](commands/generate.md))": {"": DatasetSpec, "sample_size": SampleSize},
    "Workloads ([run](commands/run.md), [train](commands/train.md))": {
        "": Workload,
        "accelerator": AcceleratorSpec,
        "reader": ReaderSpec,
        "loader": LoaderSpec,
        "log": LogSpec,
        "local_cache": LocalCacheSpec,
        "evaluation": EvaluationSpec,
    },
    "Requests ([serve](commands/serve.md))": {
        "": Scenario,
        "arrivals": ArrivalSpec,
        "reader": RequestReader,
        "walk": SearchSpec,
        "engine": EngineSpec,
    },
    "KV caches ([kv](commands/kv.md))": {
        "": KvScenario,
        "model": KvModel,
        "prefill": PrefillSpec,
        "prompts": PromptSpec,
        "reader": KvReader,
    },
    "Checkpoints ([checkpoint](commands/checkpoint.md))": {"": CheckpointSpec},
    "Loads of a model ([load](commands/load.md), as `model-load` of `ab` and `sweep`)": {
        "": LoadSpec
    },
    "Sweeps of one setting after the other ([sweep](commands/sweep.md))": {
        "": WalkSpec,
        "walk": AskedStep,
    },
}


def keys(model: type[Strict]) -> Iterator[tuple[str, str, str]]:
    """Each key of a model that is not only a text for reports, its default, and its choices."""
    schema = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        if name in ("name", "description", "source"):
            continue
        default: Any = field.get_default(call_default_factory=True)
        if field.is_required():
            shown = "required"
        elif isinstance(default, Strict):
            shown = "below"
        else:
            text = str(default) if isinstance(default, str) else json.dumps(default)
            shown = f"`{text}`" if text else "none"
        kinds = [schema[name], *schema[name].get("anyOf", ())]
        choices = [f"`{value}`" for kind in kinds for value in kind.get("enum", ())]
        yield name, shown, ", ".join(choices)


def told(model: type[Strict], prefix: str) -> str:
    """What the docstring of a model says, and a table of its keys."""
    paragraphs = re.sub(r"\bNone\b", "`null`", (model.__doc__ or "").replace("``", "`"))
    words = [
        fill(" ".join(each.split()), 100, break_long_words=False, break_on_hyphens=False)
        for each in paragraphs.split("\n\n")
    ]
    rows = [f"| `{prefix}{' | '.join(cells)} |".replace(" |", "` |", 1) for cells in keys(model)]
    return "\n\n".join([*words, "\n".join(["| key | default | choices |", "|---|---|---|", *rows])])


def page() -> str:
    """The whole page."""
    parts = [HEAD.rstrip()]
    for title, models in GROUPS.items():
        parts.append(f"## {title}")
        for group, model in models.items():
            parts += [f"### `{group}`"] if group else []
            parts.append(told(model, f"{group}." if group else ""))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(PAGE.write_text(page(), encoding="utf-8") == 0)
