"""What a workload names as code: a loader's factory with its arguments, and a model of the user's.

Whoever gives a workload on the command line, in Python or in a file of their own means that code. A
record may come from somebody else, so what it names is not imported before the user names it again.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping

from ..base.errors import UsageError
from ..base.text import printable
from .base import apply_overrides
from .yamlfile import parse_yaml

Named = Mapping[str, object]
"""What is named as code: the keys as of ``--set``, with their values."""

MODEL, FACTORY, ARGS = "accelerator.model", "loader.factory", "loader.args"

_MAX_SHOWN = 300


def code_of(settings: Mapping[str, object]) -> dict[str, object]:
    """What the settings of a workload name as code; they may be wrong, or a part of a workload."""
    found: dict[str, object] = {}
    loader, accelerator = settings.get("loader"), settings.get("accelerator")
    if isinstance(loader, Mapping):
        if loader.get("factory") is not None:
            found[FACTORY] = loader["factory"]
        args = loader.get("args")
        if isinstance(args, Mapping):
            found |= {f"{ARGS}.{key}": value for key, value in args.items()}
    model = accelerator.get("model") if isinstance(accelerator, Mapping) else None
    # A name without a colon is one of iobench's own models, or of a plug-in that is installed.
    if model is not None and not (isinstance(model, str) and ":" not in model):
        found[MODEL] = model
    return found


def code_in(overrides: Iterable[str]) -> dict[str, object]:
    """What overrides, as of ``--set``, name as code. Raises SpecError."""
    return code_of(apply_overrides({}, [*overrides]))


def check_named(found: Named, said: Named, *, where: str) -> None:
    """Raise UsageError if a record (``where``) names code that the user did not say as well."""
    unsaid = [key for key, value in found.items() if key not in said or said[key] != value]
    if not unsaid:
        return
    again = " ".join(f"--set {_given(key, found[key])}" for key in found if key in unsaid)
    raise UsageError(
        f"{where} names code, but iobench does not run code only because a file names it",
        remedy=f"if you know that code, add {printable(again, _MAX_SHOWN)}",
    )


def _given(key: str, value: object) -> str:
    """The word of a shell that sets the key to the value."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    try:
        plain = parse_yaml(text) == value
    except ValueError:
        plain = False
    return shlex.quote(f"{key}={text if plain else json.dumps(text)}")
