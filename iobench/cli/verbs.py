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

VERBS = (
    "check",
    "demo",
    "list",
    "plan",
    "size",
    "probe",
    "generate",
    "scan",
    "run",
    "train",
    "record",
    "sweep",
    "ab",
    "checkpoint",
    "checkpoint plan",
    "verify",
    "report",
    "compare",
    "cost",
    "history",
    "whatif",
    "advise",
    "clean",
    "doctor",
    "completion",
)
"""In the order of ``iobench --help``. The module of a verb of two words has an underscore."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """One verb of the command line.

    ``help`` is its line in ``iobench --help``. ``examples`` is printed below the flags, without
    changes. ``arguments`` adds the verb's own arguments to the parser. ``run`` does the work and
    returns the exit code. ``formats`` are the values of ``--format``; the first is the default.
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
        module = importlib.import_module(f"iobench.cli.{name.replace(' ', '_')}")
        yield name, module.VERB


def one_word(words: Sequence[str]) -> list[str]:
    """Join a verb of two words (``checkpoint plan``) into one argument of the command line."""
    for name in VERBS:
        first, space, second = name.partition(" ")
        if space and list(words[:2]) == [first, second]:
            return [name, *words[2:]]
    return list(words)
