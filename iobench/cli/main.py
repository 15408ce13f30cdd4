"""The command line: parse it, run the verb, and print each error in one line.

The module of a verb is imported to build its parser, which a command does for its own verb alone;
everything else that the verb needs is imported only when it runs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import NoReturn

from ..errors import InterruptedRun, nearest
from ..text import MAX_SHOWN, printable
from .common import add_common
from .failure import report_error
from .logs import logging_to
from .output import COMMAND, output_to
from .streams import survive_closed_readers
from .tagging import tagged
from .terminal import prepare_streams, warn
from .verbs import VERBS, load_verbs, one_word

_EXIT_CODES = """exit codes:
  0    ok
  1    failed: storage, dataset or a worker
  2    usage: the command or a specification is wrong, or another process uses the directory
  3    the run is INVALID by the rules in force
  4    a --fail-on condition holds, or advice was not confirmed
  5    verify could not read everything, and found no damage in the rest
  70   internal error: please report it, with the log file that the message names
  130  interrupted; partial results are saved

examples:
  iobench generate demo --to demo-data
  iobench run demo --data demo-data
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser that prints errors in one line."""

    def error(self, message: str) -> NoReturn:
        known = _CHOICE.fullmatch(message)
        if known is not None:
            message = _unknown(known["argument"], known["value"], known["choices"])
        shown = printable(message, MAX_SHOWN)
        stop = "" if shown.endswith("?") else "."
        self.exit(2, f"iobench: {shown}{stop} See: {self.prog} --help\n")


_CHOICE = re.compile(
    r"argument (?P<argument>.+?): invalid choice: '(?P<value>.*)' \(choose from (?P<choices>.+)\)",
    re.DOTALL,
)


def _unknown(argument: str, value: str, choices: str) -> str:
    """Return the message for a value that is not among the choices of an argument.

    argparse lists all choices, which are 20 for the verb.
    """
    names = [name.strip("'\"") for name in choices.split(", ")]
    near = nearest(value, names)
    told = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    what = "unknown verb" if argument == "VERB" else f"{argument}: unknown value"
    return f"{what} '{value}': {told}"


def build_parser(verbs: Sequence[str] = VERBS) -> argparse.ArgumentParser:
    """Return the parser of the command line, which knows these verbs."""
    from .. import __version__

    parser = _Parser(
        prog="iobench",
        description="Will this storage starve these accelerators, why, and what would fix it?",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"iobench {__version__}")
    parsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    width = max(40, shutil.get_terminal_size().columns - 2)
    for name, verb in load_verbs(verbs):
        own = parsers.add_parser(
            name,
            help=verb.help,
            # The examples keep their lines, so only the description is filled here.
            description=textwrap.fill(verb.description, width),
            epilog=verb.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.arguments(own)
        add_common(own, verb.formats)
        own.set_defaults(run=verb.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run the verb, and print an error in one line; return a documented exit code."""
    began = time.monotonic() - (_age_s() if argv is None else 0.0)
    survive_closed_readers()
    prepare_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        given = one_word(words)
        # If the command begins with its verb, no other verb takes part in what is printed.
        known = given[:1] if given[:1] and given[0] in VERBS else VERBS
        args = build_parser(known).parse_args(given)
        args.command_line = ["iobench", *words]
        args.began_s = began
        COMMAND.set(("iobench", *words))
        args.json = args.format == "json"
        given_tags = getattr(args, "tags", ())
        with (
            logging_to(args.log_level, args.log_file),
            output_to(args.output),
            tagged(given_tags),
        ):
            code = int(args.run(args))
            sys.stdout.flush()  # if standard output is on a full disk, this fails
        return code
    except KeyboardInterrupt:
        # Another Ctrl-C must not interrupt the exit of the interpreter.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        warn("interrupted")
        return 130
    except Exception as error:
        if isinstance(error, InterruptedRun):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return report_error(error, debug="--debug" in words, verb=_verb(words))


def _age_s() -> float:
    """Seconds since this process was started; 0 where that is not known."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def _verb(words: Sequence[str]) -> str:
    return next((word for word in one_word(words) if word in VERBS), "")


if __name__ == "__main__":
    sys.exit(main())
