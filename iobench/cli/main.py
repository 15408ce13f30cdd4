"""The command line: one file for each verb, imported only to build its parser; what it needs is imported when it runs."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from typing import NoReturn

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
    "verify",
    "report",
    "compare",
    "cost",
    "history",
    "whatif",
    "advise",
    "clean",
    "doctor",
)

_EXIT_CODES = """exit codes:
  0    ok
  1    failed: storage, dataset or a worker
  2    usage: the command or a specification is wrong, or another process has the place
  3    the run is INVALID by the rules in force
  4    a --fail-on threshold was crossed
  130  interrupted; partial results are saved

examples:
  iobench generate demo --to demo-data
  iobench run demo --data demo-data
"""


class _Parser(argparse.ArgumentParser):
    """argparse with errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"iobench: {message}. See: {self.prog} --help\n")


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
    for verb in VERBS:
        importlib.import_module(f"iobench.cli.{verb}").register(verbs)
        own = verbs.choices[verb]  # its examples are lines as they stand, its description is prose
        own.description = textwrap.fill(
            own.description or "", max(40, shutil.get_terminal_size().columns - 2)
        )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run the verb, and end every error in one line and a documented exit code."""
    from ..errors import IobenchError

    args = build_parser().parse_args(argv)
    args.command_line = ["iobench", *(sys.argv[1:] if argv is None else argv)]
    try:
        return int(args.run(args))
    except IobenchError as error:
        if args.debug:
            raise
        print(f"iobench: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # pressed once more, it must not interrupt the interpreter's own exit
        print("iobench: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the reader of our output left; nothing to complain about
        return 0
    except OSError as error:
        if args.debug:
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(
            f"iobench: {error.strerror or error}{where}. Use --debug for the traceback",
            file=sys.stderr,
        )
        return 1


if __name__ == "__main__":
    sys.exit(main())
