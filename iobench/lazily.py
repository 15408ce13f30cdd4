"""Packages whose names are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazily(package: dict[str, Any], places: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, whose ``globals()`` are given (PEP 562).

    ``places``: for each module below the package the names that it gives, spelled as in an import
    statement, with or without "as".
    """
    found = {
        spelled.rpartition(" as ")[2]: (module, spelled.partition(" as ")[0])
        for module, names in places.items()
        for spelled in names
    }

    def find(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module '{package['__name__']}' has no attribute '{name}'")
        module, attribute = found[name]
        value = getattr(importlib.import_module(f".{module}", package["__name__"]), attribute)
        package[name] = value
        return value

    return find
