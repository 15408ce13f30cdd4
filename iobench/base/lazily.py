"""Packages whose names are imported when they are first used."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazily(package: dict[str, Any]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, whose ``globals()`` are given (PEP 562).

    The names are those that the package imports for type checkers, in its block
    ``if TYPE_CHECKING:``. The block is read when the first of them is used.
    """
    places: dict[str, tuple[str, str]] = {}

    def find(name: str) -> Any:
        if not places:
            places.update(_places(Path(package["__file__"]).read_text(encoding="utf-8")))
        if name not in places:
            raise AttributeError(f"module '{package['__name__']}' has no attribute '{name}'")
        module, attribute = places[name]
        value = getattr(importlib.import_module(module, package["__name__"]), attribute)
        package[name] = value
        return value

    return find


def _places(source: str) -> dict[str, tuple[str, str]]:
    """The module and the name in it, for each name that the block imports."""
    block = source.partition("if TYPE_CHECKING:\n")[2].partition("\nelse:\n")[0]
    found = {}
    for module, names in re.findall(r"^    from (\S+) import (\([^)]*\)|.+)$", block, re.M):
        for spelled in re.findall(r"\w+ as \w+|\w+", names):
            attribute, _, alias = spelled.partition(" as ")
            found[alias or attribute] = (module, attribute)
    return found
