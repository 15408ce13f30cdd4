"""``iobench --completion``: a script with which a shell completes verbs, flags and names.

The script is generated from the requests and does not call iobench when the user types. So it must
be generated again after an update.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..checkpoint.models import MODELS
from ..settings.base import known_specs
from .requests.flags import ALL, VerbFlag, flags_of
from .verbs import VERBS, verb_of

_PLAIN = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Completions:
    """The completions of a verb: its line of help, its flags and its words."""

    help: str
    flags: tuple[VerbFlag, ...]
    words: tuple[str, ...]


def table() -> dict[str, Completions]:
    """Return the completions of each verb."""
    return {name: _completions(name) for name in VERBS}


def _completions(name: str) -> Completions:
    verb = verb_of(name)
    flags, words = [], _names(name)
    for flag in flags_of(verb.request).values():
        if flag.is_word:
            words += flag.choices
        elif flag.name == "--format":
            flags.append(replace(flag, choices=verb.formats))
        else:
            flags.append(flag)
    alike = [f"--{form}" for form in ("json", "html") if form in verb.formats]
    flags += [VerbFlag(name=each, help="") for each in (*alike, "--help", ALL)]
    return Completions(verb.help, tuple(flags), tuple(words))


def _names(verb: str) -> list[str]:
    """Return the names that a verb takes as its first argument: workloads, datasets or models.

    The name of a file in this folder is left out if it has characters that are special to a shell.
    """
    found: Iterable[str] = ()
    if verb in ("run", "plan", "size", "sweep"):
        found = known_specs("workload")
        if verb == "plan":
            found = {*found, *MODELS}
        if verb == "sweep":
            found = {*found, *known_specs("sweep")}
    elif verb == "generate":
        found = known_specs("dataset")
    elif verb == "checkpoint":
        found = MODELS
    return sorted(name for name in found if _PLAIN.fullmatch(name))


def script(shell: str) -> str:
    """Return the script for one of ``SHELLS``."""
    return _SCRIPTS[shell](table())


def _bash(found: Mapping[str, Completions]) -> str:
    cases, values = [], []
    for verb, follows in found.items():
        flags = [name for flag in follows.flags for name in _spellings(flag)]
        cases.append(
            f"    '{verb}') flags='{' '.join(flags)}' words='{' '.join(follows.words)}' ;;"
        )
        for flag in follows.flags:
            if flag.choices:
                names = "|".join(f"'{verb} {name}'" for name in _spellings(flag))
                values.append(f"    {names}) words='{' '.join(flag.choices)}' only=1 ;;")
    first = " ".join(found)
    return "\n".join(
        [
            "# bash completion for iobench",
            "_iobench() {",
            "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
            "  local verb=${COMP_WORDS[1]} flags='' words='' only=''",
            '  if [ "$COMP_CWORD" = 1 ]; then',
            f"    COMPREPLY=($(compgen -W '{first} --help --version --completion' -- \"$word\"))",
            "    return",
            "  fi",
            '  case "$verb" in',
            *cases,
            "  esac",
            '  case "$verb $before" in',
            *values,
            "  esac",
            '  if [ -n "$only" ]; then COMPREPLY=($(compgen -W "$words" -- "$word")); return; fi',
            '  case "$word" in',
            '    -*) COMPREPLY=($(compgen -W "$flags" -- "$word")) ;;',
            '    *) COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word")) ;;',
            "  esac",
            "}",
            "complete -o filenames -F _iobench iobench",
        ]
    )


def _zsh(found: Mapping[str, Completions]) -> str:
    """Return the bash script with a header: zsh can run it with bashcompinit."""
    return "\n".join(
        [
            "#compdef iobench",
            "# zsh completion for iobench",
            "autoload -U +X bashcompinit && bashcompinit",
            _bash(found),
        ]
    )


def _fish(found: Mapping[str, Completions]) -> str:
    lines = ["# fish completion for iobench"]
    for verb, follows in found.items():
        when = f"__fish_seen_subcommand_from {verb}"
        lines.append(
            f"complete -c iobench -n __fish_use_subcommand -f -a {verb} -d {_quoted(follows.help)}"
        )
        if follows.words:
            lines.append(f"complete -c iobench -n '{when}' -a {_quoted(' '.join(follows.words))}")
        for flag in follows.flags:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in _spellings(flag)
            )
            value = f" -x -a {_quoted(' '.join(flag.choices))}" if flag.choices else ""
            value = value or (" -r" if flag.kind else "")
            told = _quoted(flag.help.partition(";")[0])
            lines.append(f"complete -c iobench -n '{when}' {names}{value} -d {told}")
    return "\n".join(lines)


def _spellings(flag: VerbFlag) -> list[str]:
    return [name for name in (flag.short, flag.name) if name]


def _quoted(text: str) -> str:
    """Quote a text as one word for fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS = {"bash": _bash, "fish": _fish, "zsh": _zsh}
