"""A command line becomes a request: one parser for each model of ``requests``."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, NoReturn

from ..base.errors import UsageError, nearest
from ..base.text import MAX_SHOWN, printable
from ..report.media import helps
from .requests.flags import ALL, OUTPUT, Verb, VerbFlag, VerbRequest, flags_of

OPTIONS = "options"
_CHOICE = re.compile(
    r"argument (?P<argument>.+?): invalid choice: '(?P<value>.*)' \(choose from (?P<choices>.+)\)",
    re.DOTALL,
)
_UNKNOWN = re.compile(r"unrecognized arguments: (?P<flag>--[^ =]+).*", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """An argument parser that prints errors in one line, with what was probably meant."""

    def error(self, message: str) -> NoReturn:
        if known := _CHOICE.fullmatch(message):
            names = [name.strip("'\"") for name in known["choices"].split(", ")]
            message = unknown(f"{known['argument']}: unknown value", known["value"], names)
        elif wrong := _UNKNOWN.fullmatch(message):
            flags = [name for name in self._option_string_actions if name.startswith("--")]
            if nearest(wrong["flag"], flags):
                message = unknown("unknown flag", wrong["flag"], flags)
        shown = printable(message, MAX_SHOWN)
        stop = "" if shown.endswith("?") else "."
        self.exit(2, f"iobench: {shown}{stop} See: {self.prog} --help\n")


def unknown(what: str, value: str, names: Sequence[str]) -> str:
    """The message for a value that is not one of ``names``, of which there may be many."""
    near = nearest(value, names)
    told = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return f"{what} '{value}': {told}"


def parse(verb: Verb, words: Sequence[str], *, began_s: float = 0.0) -> VerbRequest:
    """Return what the words after the verb ask. Raises UsageError, SystemExit."""
    flags = flags_of(verb.request)
    parsed = vars(parser_of(verb, whole=ALL in words).parse_args(words))
    found = {name: text for name, text in parsed.items() if text is not None}
    given = frozenset(flags[name].name for name in found)
    for name in found:
        _check_company(flags[name], given, flags)
    values: dict[str, Any] = {name: _value(flags[name], text) for name, text in found.items()}
    return verb.request(
        **{"format": verb.formats[0], **values},
        verb=verb.name,
        given=given,
        command=("iobench", verb.name, *words),
        began_s=began_s,
    )


def _check_company(flag: VerbFlag, given: frozenset[str], flags: Mapping[str, VerbFlag]) -> None:
    """Raise UsageError for a flag that lacks another one, or can't be used with another one."""
    if flag.requires and not given & set(flag.requires):
        needed = [_spelled(each) for each in flags.values() if each.name in flag.requires]
        raise UsageError(
            f"{flag.name} can only be used with {' or '.join(flag.requires)}",
            remedy=f"add {' or '.join(needed)}, or leave {flag.name} out",
        )
    if other := next((name for name in flag.excludes if name in given), ""):
        raise UsageError(
            f"{other} can't be used with {flag.name}",
            remedy=f"leave {other} out, or {flag.name}",
        )


def _value(flag: VerbFlag, found: Any) -> object:
    if flag.kind is None:
        return found
    if isinstance(found, list):
        return tuple(flag.value_of(text) for text in found)
    return flag.value_of(found)


def parser_of(verb: Verb, *, whole: bool) -> Parser:
    """The parser of a verb. ``whole``: its help shows all flags, and not the first ones alone."""
    width = max(40, shutil.get_terminal_size().columns - 2)
    flags = flags_of(verb.request)
    required = _required(verb.request)
    ordered = sorted(flags.items(), key=lambda item: (item[1].group != "", item[0] not in required))
    description = " ".join((verb.request.__doc__ or "").split())
    parser = Parser(
        prog=f"iobench {verb.name}",
        usage=_usage(verb.name, [(flag, name in required) for name, flag in ordered]),
        description=textwrap.fill(description, width),
        epilog=_epilog(verb, sum(flag.more for flag in flags.values()), whole=whole),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        argument_default=argparse.SUPPRESS,
    )
    groups: dict[str, argparse._ActionsContainer] = {}
    for name, flag in ordered:
        title = "arguments" if flag.is_word else flag.group or OPTIONS
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add(groups[title], name, flag, verb, required=name in required, whole=whole)
    asked = groups[OUTPUT.title]
    asked.add_argument("-h", "--help", action="help", help="show the flags that matter first")
    asked.add_argument(ALL, action="help", help="show all flags")
    return parser


def _required(request: type[VerbRequest]) -> set[str]:
    return {each.name for each in fields(request) if each.default is MISSING}


def _add(
    group: argparse._ActionsContainer,
    name: str,
    flag: VerbFlag,
    verb: Verb,
    *,
    required: bool,
    whole: bool,
) -> None:
    help_text = flag.help.replace("%", "%%") if whole or not flag.more else argparse.SUPPRESS
    choices = verb.formats if name == "format" else flag.choices
    if name == "format" and (told := helps(verb.formats)):
        help_text = f"{help_text}; {told}"
    options: dict[str, Any] = {"help": help_text}
    if flag.kind is None:
        options["action"] = "store_true"
    elif choices:
        options["choices"] = choices
    else:
        options["metavar"] = flag.name if flag.is_word else flag.kind.metavar
    if flag.is_word:
        if choices:
            options["metavar"] = flag.name
        nargs = "+" if flag.several else None if required else "?"
        group.add_argument(name, nargs=nargs, default=None, **options)
        return
    if flag.several:
        options["action"] = "append"
    names = [flag.short, flag.name] if flag.short else [flag.name]
    group.add_argument(*names, dest=name, required=required, **options)
    if name != "format":
        return
    for form, text in (
        ("json", "same as --format json: one JSON document on stdout and nothing else"),
        ("html", "same as --format html: one page with charts that any browser shows, offline"),
    ):
        if form in verb.formats:
            group.add_argument(f"--{form}", action="store_const", const=form, dest=name, help=text)


def _usage(name: str, flags: Iterable[tuple[VerbFlag, bool]]) -> str:
    known = list(flags)
    words = [f"{each.name}" if must else f"[{each.name}]" for each, must in known if each.is_word]
    must = [_spelled(each) for each, is_required in known if is_required and not each.is_word]
    return " ".join(["iobench", name, *words, *must, "[options]"]).replace("%", "%%")


def _spelled(flag: VerbFlag) -> str:
    return flag.name if flag.kind is None else f"{flag.name} {flag.kind.metavar}"


def _epilog(verb: Verb, hidden: int, *, whole: bool) -> str:
    lines = ["examples:", verb.examples, f"explained in docs/commands/{verb.name}.md"]
    if hidden and not whole:
        lines.append(f"{hidden} more flags: iobench {verb.name} {ALL}")
    return "\n".join(lines)
