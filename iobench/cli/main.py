"""The command line: parse it, do what is asked, and print each error in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Literal

from cyclopts import (
    App,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)
from cyclopts.help import DefaultFormatter, HelpPanel
from rich.console import Console, ConsoleOptions
from rich.text import Text

from .. import __version__
from ..base.errors import InterruptedRun, MissingPlaceError, UsageError
from ..base.interrupts import import_whole, interrupt_on_sigterm
from ..base.text import MAX_SHOWN, printable
from .failure import report_error
from .flags import WHOLE_HELP, HostsRequest, VerbRequest, name_of
from .terminal import (
    COMMAND,
    TAKEN,
    logging_to,
    note,
    output_to,
    prepare_streams,
    show_data,
    survive_closed_readers,
    warn,
)

GROUPS = {
    "start": {
        "check": "a first answer about a storage, with data of its own",
        "demo": "generate a small dataset, and run a workload on it",
        "plan": "bytes, memory and time of a run or of a checkpoint",
        "size": "how much storage to buy: rates, IOPS, cache, network",
    },
    "data": {
        "generate": "generate a dataset",
        "scan": "describe existing data, to measure it where it is",
        "verify": "check every byte of a dataset",
    },
    "measure": {
        "run": "each stage alone and all together: the bottleneck",
        "train": "train a real model: what limits it, or its step times",
        "serve": "requests that arrive: latency, and the largest rate",
        "kv": "a KV cache on storage: is it worth it, from where on",
        "checkpoint": "cost of checkpoints: blocked, durable, restored",
        "load": "how long until replicas have a model's weights",
        "sweep": "run a workload with combinations of settings",
        "ab": "two configurations in turns, until it is clear",
        "probe": "throughput and latency over reads in flight",
    },
    "understand": {
        "report": "print a recorded run again: verdict, ceilings, findings",
        "compare": "what became better or worse, also over time",
        "whatif": "a recorded run with other storage, settings or hosts",
        "advise": "recommended settings, reasons and predicted gains",
        "cost": "samples per dollar, dollars for a job and for waiting",
    },
    "keep": {
        "list": "names of workloads, datasets, formats, storage, ...",
        "doctor": "examine this machine and the storage behind a path",
        "clean": "remove a generated dataset or checkpoints",
    },
}
"""The verbs in the groups and the order of ``iobench --help``.

The request of a verb is in ``verbs.py``, and what it does in the module of its name, which is
imported only to do it.
"""

VERBS = tuple(verb for verbs in GROUPS.values() for verb in verbs)

_HELPS = ("--help", "-h", "--help-all")
_SHORT = {"--json": "--format=json", "--html": "--format=html"}
_EXIT_CODES = (
    "Exit codes: 0 ok, 1 failed, 2 wrong usage, no such directory, too little room, or in use, 3 "
    "INVALID run, 4 a --fail-on condition holds or advice was not confirmed, 5 verify could not "
    "read everything, 70 internal error, 130 interrupted.\n\nFor example:\n"
    "  iobench generate demo --to demo-data\n  iobench run demo --data demo-data"
)


def program(words: Sequence[str] = ()) -> App:
    """What understands the command line: the words of a verb become its request."""
    app = App(
        name="iobench",
        help="Will this storage starve these accelerators, why, and what would fix it?",
        help_epilogue=_EXIT_CODES,
        help_format="plaintext",
        help_formatter=_Help(),
        help_flags=_HELPS,
        version=__version__,
        default_parameter=Parameter(
            negative=(),
            show_default=False,
            json_list=False,
            name_transform=name_of,
            allow_repeating=True,  # the last one counts, as in a script that appends its own
        ),
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
    )
    app.command(_completion, name="--completion", show=False)
    for number, (group, verbs) in enumerate(GROUPS.items()):
        titled = Group(group, sort_key=number)
        for place, (verb, told) in enumerate(verbs.items()):
            request = f"{__package__}.verbs:{verb.capitalize()}Request"
            app.command(request, name=verb, group=titled, help=told, sort_key=place)
    if words and words[0] in app:
        asked = app[words[0]]
        asked.help = asked.default_command.__doc__ or ""
        asked.help_epilogue = _epilogue(words[0])
    return app


class _Help(DefaultFormatter):
    """The help of cyclopts: what must be given first, and no line breaks of a text's own."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        if panel.format == "parameter":
            panel = panel.copy(entries=sorted(panel.entries, key=lambda each: not each.required))
        for entry in panel.entries:
            text = getattr(entry.description, "primary_renderable", None)
            if isinstance(text, Text):
                text.plain = " ".join(text.plain.split())
        super().__call__(console, options, panel)


def _epilogue(verb: str) -> str:
    more = "" if WHOLE_HELP.asked else f"All flags: iobench {verb} --help-all. "
    return f"{more}Explained in docs/commands/{verb}.md."


def parse(words: Sequence[str]) -> VerbRequest | None:
    """What the words ask; None if it was a help or the like, which is printed.

    Raises CycloptsError, UsageError.
    """
    if words[:1] != ["__complete"]:  # a shell's question, which may end in an empty word
        _refuse_empty(words)
        _refuse_two_formats(words)
    given = map(_with_home, _with_negatives(words))
    request = program(words)([_SHORT.get(word, word) for word in given])
    if not isinstance(request, VerbRequest):
        return None
    return replace(request, command=("iobench", *words))


def _with_negatives(words: Sequence[str]) -> list[str]:
    """The words, with a negative value such as ``-5s`` joined to its flag: it is none by itself."""
    found: list[str] = []
    for word in words:
        if found and re.match(r"-\.?\d", word) and re.fullmatch(r"--[a-z-]+", found[-1]):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def _with_home(word: str) -> str:
    """The word, with the home directory for a ``~`` that bash has left, as in ``--results=~/x``."""
    return re.sub(r"(^|=)~(?=/|$)", lambda found: found[1] + os.path.expanduser("~"), word)


def _refuse_empty(words: Sequence[str]) -> None:
    """Raise UsageError for an empty word or value, which would be the current directory."""
    for before, word in zip(("", *words), words, strict=False):
        if not word or (word.startswith("--") and word.find("=") == len(word) - 1):
            after = f"the word after {before}" if before.startswith("-") else "a word"
            raise UsageError(
                f"{word} has no value" if word else f"{after} is empty",
                remedy="if it comes from a variable of the shell, set that variable",
            )


def _refuse_two_formats(words: Sequence[str]) -> None:
    """Raise UsageError for --json beside another format. Of --format alone the last one counts."""
    named = [word for word in words if word in _SHORT or word.split("=")[0] == "--format"]
    if len(set(named)) > 1 and {*named} & {*_SHORT}:
        raise UsageError(
            f"{named[0]} and {named[-1]} are two formats", remedy="leave out all but one"
        )


_FIRST_WORD = {
    "bash": ('[[ " $all', '[[ ${#cmd_path[@]} -eq 0 && " $all'),
    "fish": (
        'if string match -q -- "* $word *" " $all',
        'if test (count $subcommands) -eq 0; and string match -q -- "* $word *" " $all',
    ),
}
"""In a script of cyclopts each word that is a verb is one. Ours is the first (``run demo``)."""


def _completion(shell: Literal["bash", "fish", "zsh"], /) -> None:
    """Print the script by which a shell completes verbs, flags and names."""
    script = program().generate_completion(shell=shell)
    show_data(script.replace(*_FIRST_WORD.get(shell, ("", ""))))


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run the verb, and print an error in one line; return a documented exit code."""
    began = time.monotonic() - (_age_s() if argv is None else 0.0)
    survive_closed_readers()
    prepare_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    WHOLE_HELP.asked = not {"--help", "-h"} & {*words}
    try:
        interrupt_on_sigterm()
        import_whole("torch")
        _check_current_directory()
        request = parse(words)
        code = 0 if words else 2
        if request is not None:
            code = _do(replace(request, began_s=began))
        sys.stdout.flush()  # if standard output is on a full disk, this fails
        return code
    except CycloptsError as error:
        asked = " ".join(("iobench", *(error.command_chain or ())))
        warn(f"{printable(_worded(error), MAX_SHOWN)} See: {asked} --help")
        return 2
    except KeyboardInterrupt:
        # Another Ctrl-C must not interrupt the exit of the interpreter.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        warn("interrupted")
        return 130
    except Exception as error:
        if isinstance(error, InterruptedRun):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        verb = next((word for word in words if word in VERBS), "")
        return report_error(error, debug="--debug" in words, verb=verb)


def _check_current_directory() -> None:
    """Raise MissingPlaceError if it is gone. A library of torch ends the process without one."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise MissingPlaceError(
            "the current directory no longer exists", remedy="change to another one"
        ) from None


def document_of(words: Sequence[str]) -> tuple[Any, int]:
    """Do what the words ask; return what ``--json`` prints, as plain data, and the exit code.

    The document is None where another host prints it. Raises IobenchError.
    """
    try:
        request = parse([*words, "--json"]) if words else None
    except CycloptsError as error:
        raise UsageError(printable(_worded(error), MAX_SHOWN).removesuffix(".")) from None
    if request is None or request.output is not None:
        raise UsageError(
            f"{' '.join(('iobench', *words))} has no document to return",
            remedy="leave out --output and --help",
        )
    asked = replace(request, command=("iobench", *words), began_s=time.monotonic())
    taken: list[str] = []

    def do() -> int:
        TAKEN.set(taken)
        return _do(asked)

    code = copy_context().run(do)
    return (json.loads(taken[-1]) if taken else None), code


def _worded(error: CycloptsError) -> str:
    """The error in one line, in the words of the other errors."""
    verb = " ".join(error.command_chain or ("iobench",))
    if isinstance(error, UnknownOptionError | UnknownCommandError):
        tokens = [error.token.value] if isinstance(error, UnknownOptionError) else []
        unknown = (tokens or error.unused_tokens or [""])[0]
        if near := get_close_matches(unknown, _HELPS, n=1, cutoff=0.75):
            return f"Unknown option: {unknown}. Did you mean {near[0]}?"
    if isinstance(error, UnusedCliTokensError):
        return f"{verb} does not expect {' '.join(map(repr, error.unused_tokens or ()))}."
    if not isinstance(error, MissingArgumentError) or error.argument is None:
        return str(error)
    if error.keyword:
        return f"{error.keyword} needs {error.argument.parameter.metavar or 'a value'}."
    name = error.argument.name
    if error.argument.index is not None:
        name = name.removeprefix("--").upper()
    meant = str(error).partition("requires an argument.")[2]
    return f"{verb} needs {name}.{meant}"


def _do(request: VerbRequest) -> int:
    COMMAND.set(request.command)
    tagged: AbstractContextManager[None] = nullcontext()
    if texts := getattr(request, "tags", ()):
        from ..settings import tags

        tagged = tags.tagged(tags.parse_tags(texts))
    unwritten, code = None, 1
    with logging_to(request.log_level, request.log_file), output_to(request.output), tagged:
        if isinstance(request, HostsRequest):
            from .hosts import launched, printed_lines

            if printed_lines(request):
                return 0
            launched(request)  # sets what torch reads when it is imported, by the verb
        elif request.keeps:
            _say_alone(request)
        try:
            code = import_module(f"{__package__}.{request.verb}").run(request)
        except Exception as error:
            record = getattr(error, "record", None)
            if record is None:
                raise
            from .printing import show_unwritten

            show_unwritten(request, record)
            unwritten = error  # raised where the file of --output has been replaced
        sys.stdout.flush()
    if unwritten is not None:
        raise unwritten
    return code


def _say_alone(request: VerbRequest) -> None:
    """Say so where a launcher started this command on several hosts, each of which is alone."""
    from ..runner.hosts.launch import find_launch

    with suppress(UsageError):  # variables that fit no job are of another program
        if launch := find_launch(os.environ):
            note(
                f"{request.verb} is of one host: this is host {launch.index} of {launch.hosts}, "
                "and each measures alone, beside the others",
                quiet=request.quiet,
            )


_START_S = 30.0
"""A process that is older when its verb begins has run another program before, such as a script
that waited for its turn and then became iobench by exec."""


def _age_s() -> float:
    """Seconds since this process was started; 0 where that is not known."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    age_s = max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    return age_s if age_s <= _START_S else min(age_s, time.process_time())


if __name__ == "__main__":
    sys.exit(main())
