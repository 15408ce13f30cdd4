"""The command line: parse it, run the verb, and print each error in one line."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence

from ..base.errors import InterruptedRun
from ..base.interrupts import interrupt_on_sigterm
from .failure import report_error
from .logs import logging_to
from .output import COMMAND, output_to
from .parsing import Parser, parse, unknown
from .requests.flags import VerbRequest
from .streams import survive_closed_readers
from .tagging import tagged
from .terminal import prepare_streams, warn
from .verbs import GROUPS, VERBS, do, verb_of

SHELLS = ("bash", "fish", "zsh")

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


class _Program(Parser):
    def format_help(self) -> str:
        return _HELP.format(verbs="\n".join(_grouped()))


def _grouped() -> Iterator[str]:
    """A line for each verb; the first one of a group begins with its name."""
    for group, names in GROUPS.items():
        for name in names:
            yield f"{group if name == names[0] else '':<12}{name:<12}{verb_of(name).help}"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run the verb, and print an error in one line; return a documented exit code."""
    began = time.monotonic() - (_age_s() if argv is None else 0.0)
    survive_closed_readers()
    prepare_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _call(_parsed(words, began))
    except KeyboardInterrupt:
        # Another Ctrl-C must not interrupt the exit of the interpreter.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        warn("interrupted")
        return 130
    except Exception as error:
        if isinstance(error, InterruptedRun):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return report_error(error, debug="--debug" in words, verb=_verb(words))


def _parsed(words: Sequence[str], began_s: float) -> VerbRequest:
    """What the command line asks. Raises UsageError, SystemExit."""
    if words and words[0] in VERBS:
        return parse(verb_of(words[0]), words[1:], began_s=began_s)
    from .. import __version__

    program = _Program(prog="iobench")
    program.add_argument("--version", action="version", version=f"iobench {__version__}")
    program.add_argument("--completion", choices=SHELLS)
    program.add_argument("verb", metavar="VERB", nargs="?")
    args, _ = program.parse_known_args(words)
    if args.completion:
        from .completion import script
        from .terminal import show_data

        show_data(script(args.completion))
        sys.stdout.flush()
        sys.exit(0)
    if args.verb is None:
        program.error("the verb is missing")
    if args.verb in VERBS:
        program.error(f"flags follow the verb: iobench {args.verb} ...")
    return program.error(unknown("unknown verb", args.verb, VERBS))


def _call(request: VerbRequest) -> int:
    COMMAND.set(request.command)
    with (
        logging_to(request.log_level, request.log_file),
        output_to(request.output),
        tagged(getattr(request, "tags", ())),
    ):
        if verb_of(request.verb).keeps:
            interrupt_on_sigterm()
        code = do(request)
        sys.stdout.flush()  # if standard output is on a full disk, this fails
    return code


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
