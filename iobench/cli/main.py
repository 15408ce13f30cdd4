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
from collections.abc import Iterator, Mapping, Sequence
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
from .verbs import GROUPS, SHELLS, VERBS, load_verbs

_HELP = """usage: iobench VERB [--help] ... | --version | --completion bash|fish|zsh
Will this storage starve these accelerators, why, and what would fix it?

{verbs}

exit codes:  0 ok  1 failed  2 wrong usage, or the directory is in use  3 INVALID run
  4 a --fail-on condition holds, or advice was not confirmed  5 verify could not read
  everything  70 internal error  130 interrupted
examples:
  iobench generate demo --to demo-data
  iobench run demo --data demo-data
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser that prints errors in one line. ``overview``: its help as a whole."""

    overview = ""

    def format_help(self) -> str:
        return self.overview or super().format_help()

    def error(self, message: str) -> NoReturn:
        known = _CHOICE.fullmatch(message)
        if known is not None:
            message = _unknown(known["argument"], known["value"], known["choices"])
        shown = printable(message, MAX_SHOWN)
        stop = "" if shown.endswith("?") else "."
        self.exit(2, f"iobench: {shown}{stop} See: {self.prog} --help\n")


class _Completion(argparse.Action):
    """Prints the script that a shell needs for completion, and ends iobench."""

    def __call__(
        self, parser: argparse.ArgumentParser, _: object, shell: object, *__: object
    ) -> None:
        from .completion import script
        from .terminal import show_data

        show_data(script(str(shell), parser))
        sys.stdout.flush()
        parser.exit()


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

    parser = _Parser(prog="iobench")
    parser.add_argument("--version", action="version", version=f"iobench {__version__}")
    parser.add_argument("--completion", choices=SHELLS, action=_Completion)
    parsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    width = max(40, shutil.get_terminal_size().columns - 2)
    helps = {}
    for name, verb in load_verbs(verbs):
        helps[name] = verb.help
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
    if len(helps) == len(VERBS):
        parser.overview = _HELP.format(verbs="\n".join(_grouped(helps)))
    return parser


def _grouped(helps: Mapping[str, str]) -> Iterator[str]:
    """A line for each verb; the first one of a group begins with its name."""
    for group, names in GROUPS.items():
        for name in names:
            yield f"{group if name == names[0] else '':<12}{name:<12}{helps[name]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run the verb, and print an error in one line; return a documented exit code."""
    began = time.monotonic() - (_age_s() if argv is None else 0.0)
    survive_closed_readers()
    prepare_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        # If the command begins with its verb, no other verb takes part in what is printed.
        known = words[:1] if words[:1] and words[0] in VERBS else VERBS
        args = build_parser(known).parse_args(words)
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
    return next((word for word in words if word in VERBS), "")


if __name__ == "__main__":
    sys.exit(main())
