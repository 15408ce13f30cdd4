"""The type ``Verb`` and the table of all verbs; each verb has a module of its name.

The parser of a verb is made only from its ``Verb``, so that the flags for output and logging and
the layout of the help, which all verbs share, are defined once.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..report.media import DOCUMENTS as DOCUMENTS
from ..report.media import PAGES as PAGES
from ..report.media import RECORDS as RECORDS

GROUPS = {
    "start": ("check", "demo", "plan", "size"),
    "data": ("generate", "scan", "verify"),
    "measure": ("run", "train", "checkpoint", "sweep", "ab", "probe"),
    "understand": ("report", "compare", "whatif", "advise", "cost"),
    "keep": ("list", "doctor", "clean"),
}
"""In the order of ``iobench --help``."""

VERBS = tuple(verb for verbs in GROUPS.values() for verb in verbs)


SHELLS = ("bash", "fish", "zsh")
"""The shells for which ``iobench --completion`` has a script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """One verb of the command line.

    ``help`` is its line in ``iobench --help``, of at most 56 characters. ``examples`` is printed
    below the flags, without changes. ``arguments`` adds the verb's own arguments to the parser.
    ``run`` does the work and returns the exit code. ``formats`` are the values of ``--format``; the
    first is the default.
    """

    help: str
    description: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    formats: Sequence[str] = ("text", "json")


def load_verbs(names: Sequence[str] = VERBS) -> Iterator[tuple[str, Verb]]:
    """Yield each verb with its name; a verb's module imports little besides argparse."""
    for name in names:
        module = importlib.import_module(f"iobench.cli.{name}")
        yield name, module.VERB
