"""Plug-ins by name: a ``Registry`` for each kind, whose table stands in the folder of the kind.

A built-in is a ``"module:attribute"`` string, imported only when it is used. In a table the module
is relative to the folder of the table: ``".tar:Tar"``.

Third parties register under the entry-point groups ``iobench.storage``, ``iobench.data.formats``,
``iobench.data.contents``, ``iobench.data.codecs``, ``iobench.accelerators``, ``iobench.networks``,
``iobench.loaders``, ``iobench.writers`` and ``iobench.model_loaders``. They can't replace a
built-in name.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import resolve_name
from traceback import walk_tb
from types import ModuleType
from typing import Generic, TypeVar, cast

from .base.errors import UnknownNameError, UsageError
from .base.extras import install_command

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class PlugIn:
    """Where a plug-in is defined, a summary in one line, and the extra that installs its packages.

    ``extra`` is '' if iobench itself installs everything that the plug-in needs.
    """

    target: str
    summary: str
    extra: str = ""


@cache
def third_parties(group: str) -> dict[str, PlugIn]:
    """The plug-ins that other packages register in this group; nothing is imported."""
    from importlib.metadata import entry_points

    found = {}
    for point in entry_points(group=group):
        origin = f" (from {point.dist.name})" if point.dist else ""
        found[point.name] = PlugIn(point.value, f"third party{origin}")
    return found


class Registry(Generic[T]):
    """A table of plug-ins of one kind (``format``, ``codec``, ...): classes with instances of T.

    ``group``: where third parties register theirs. ``package``: the folder of the table. ``base``:
    the class that third parties' plug-ins must subclass, as ``"module:attribute"``; '' if any
    object is accepted.
    """

    def __init__(
        self, kind: str, group: str, package: str, builtins: dict[str, PlugIn], *, base: str = ""
    ) -> None:
        self.kind = kind
        self.group = group
        self._base = resolve_name(base, package)
        self._builtins = frozenset(builtins)
        self._entries = {
            name: replace(each, target=resolve_name(each.target, package))
            for name, each in builtins.items()
        }

    def entries(self) -> dict[str, PlugIn]:
        """All known plug-ins by name; nothing is imported."""
        others = third_parties(self.group)
        more = {name: others[name] for name in others if name not in self._entries}
        return {**self._entries, **more}

    def open(self, name: str) -> T:
        """Create the plug-in of this name. Raises the same errors as ``load``."""
        return self.load(name)()

    def load(self, name: str) -> type[T]:
        """Import the class of a plug-in.

        Raises UnknownNameError with the nearest names. Raises UsageError if a package is missing
        (naming the extra that installs it), or if a third party's class does not fit this version
        of iobench.
        """
        entry = self._entries.get(name) or self.entries().get(name)
        if entry is None:
            raise UnknownNameError(self.kind, name, self.entries())
        module, _, attribute = entry.target.partition(":")
        found = getattr(self._import(name, module), attribute, None)
        if found is None or (name not in self._builtins and not self._fits(found)):
            raise UsageError(
                f"{self.kind} '{name}': {entry.target} is not a plug-in for this version of "
                f"iobench: it does not subclass {self._base.replace(':', '.')}, or it lacks one of "
                "its methods",
                remedy="install a version of the plug-in that fits, or uninstall it",
            )
        return cast("type[T]", found)

    def _fits(self, found: object) -> bool:
        if not self._base:
            return True
        module, _, attribute = self._base.partition(":")
        base = getattr(importlib.import_module(module), attribute)
        return (
            isinstance(found, type)
            and issubclass(found, base)
            and not getattr(found, "__abstractmethods__", None)
        )

    def require(self, name: str, package: str) -> None:
        """Check that ``package``, which only a part of the plug-in needs, can be imported.

        Raises UsageError naming the extra that installs it.
        """
        self._import(name, package)

    def _import(self, name: str, module: str) -> ModuleType:
        try:
            return importlib.import_module(module)
        except Exception as error:
            broken, extra = self._broken(name, error), self.entries()[name].extra
            if broken is not None:
                reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                installs = f", or install what it needs: {install_command(extra)}" if extra else ""
                raise UsageError(
                    f"{self.kind} '{name}': {broken} is installed, but cannot be imported: "
                    f"{reason}",
                    remedy=f"see its error with python -c 'import {broken}'{installs}",
                ) from error
            if not isinstance(error, ImportError):
                raise
            remedy = (
                f"install it: {install_command(extra)}"
                if extra
                else f"install the package that provides '{error.name}'"
            )
            raise UsageError(
                f"{self.kind} '{name}' needs the Python package '{error.name}'", remedy=remedy
            ) from error

    def _broken(self, name: str, error: Exception) -> str | None:
        """Return the package that is installed but failed to import.

        None if the package is not installed, or if the plug-in's own module failed with an error
        that is not an ImportError.
        """
        own = {
            __name__.partition(".")[0],
            self.entries()[name].target.partition(".")[0],
            "importlib",
        }
        packages = [
            str(frame.f_globals.get("__name__")).partition(".")[0]
            for frame, _ in walk_tb(error.__traceback__)
        ]
        if foreign := [package for package in packages if package not in own]:
            return foreign[0]
        if not isinstance(error, ImportError):
            return None
        if error.name is None:  # raised by the plug-in's own module, as an ImportError of its own
            return self.entries()[name].target.partition(":")[0]
        if not isinstance(error, ModuleNotFoundError):
            # The name to import is missing from the package: it is another version.
            return error.name.partition(".")[0]
        return None
