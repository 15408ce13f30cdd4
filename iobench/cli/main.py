"""The command line: parse it, run the verb, and print each error in one line.

The module of a verb is imported to build its parser; everything else that the verb needs is
imported only when it runs.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from ..text import MAX_SHOWN, printable
from .common import add_common
from .failure import tell
from .logs import logging_to
from .output import output_to
from .streams import survive_closed_readers
from .terminal import prepare_streams, warn
from .verbs import VERBS, all_verbs, one_word

_EXIT_CODES = """exit codes:
  0    ok
  1    failed: storage, dataset or a worker
  2    usage: the command or a specification is wrong, or another process has the place
  3    the run is INVALID by the rules in force
  4    a --fail-on threshold was crossed
  5    verify could not read everything, and found no damage in the rest
  70   internal error; the line names a log file to report it with
  130  interrupted; partial results are saved

examples:
  iobench generate demo --to demo-data
  iobench run demo --data demo-data
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser that prints errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"iobench: {printable(message, MAX_SHOWN)}. See: {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    from .. import __version__

    parser = _Parser(
        prog="iobench",
        description="Will this storage starve these accelerators, why, and what would fix it?",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"iobench {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    width = max(40, shutil.get_terminal_size().columns - 2)
    for name, verb in all_verbs():
        own = verbs.add_parser(
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
    survive_closed_readers()
    prepare_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = build_parser().parse_args(one_word(words))
        args.command_line = ["iobench", *words]
        args.json = args.format == "json"
        with logging_to(args.log_level, args.log_file), output_to(args.output):
            code = int(args.run(args))
            sys.stdout.flush()  # if standard output is on a full disk, this fails
        return code
    except KeyboardInterrupt:
        # Another Ctrl-C must not interrupt the exit of the interpreter.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        warn("interrupted")
        return 130
    except Exception as error:
        return tell(error, debug="--debug" in words, verb=_verb(words))


def _verb(words: Sequence[str]) -> str:
    return next((word for word in one_word(words) if word in VERBS), "")


if __name__ == "__main__":
    sys.exit(main())
