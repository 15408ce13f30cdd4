"""What a verb is, and the table of all verbs: one file for each, named after it.

The parser of a verb is made from its ``Verb`` alone, so that what all verbs share (the flags for
output and logging, the shape of their help) is written down once.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

VERBS = (
    "demo",
    "list",
    "plan",
    "size",
    "generate",
    "scan",
    "run",
    "sweep",
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
"""In the order of ``iobench --help``. A verb of two words lives in ``checkpoint_plan.py``."""

DOCUMENTS = ("text", "json", "csv", "markdown")
"""The formats of a verb that prints a run, or a table of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """One verb of the command line.

    ``help`` is its line in ``iobench --help``; ``examples`` is printed below the flags as it is.
    ``arguments`` adds what is its own to the parser, ``run`` does the work and returns the exit
    code. ``formats`` are the values of ``--format``; the first is the default.
    """

    help: str
    description: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    formats: Sequence[str] = ("text", "json")


def all_verbs() -> Iterator[tuple[str, Verb]]:
    """Each verb with its name, imported; none of them imports more than argparse."""
    for name in VERBS:
        module = importlib.import_module(f"iobench.cli.{name.replace(' ', '_')}")
        yield name, module.VERB


def one_word(words: Sequence[str]) -> list[str]:
    """The command line with a verb of two words as one argument: ``checkpoint plan``."""
    for name in VERBS:
        first, space, second = name.partition(" ")
        if space and list(words[:2]) == [first, second]:
            return [name, *words[2:]]
    return list(words)
