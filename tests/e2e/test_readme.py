"""The README's commands are run, and what it says of files and options is true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from iobench.cli.main import build_parser
from iobench.cli.verbs import VERBS
from tests.processes import completed

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.S | re.M)
BLOCKS = [body for language, body in FENCED if not language]
COMMANDS = [
    line.partition("#")[0].strip()
    for block in BLOCKS
    for line in block.splitlines()
    if line.startswith("iobench ")
]


def test_the_readme_shows_every_verb() -> None:
    shown = {shlex.split(command)[1] for command in COMMANDS}
    assert shown == set(VERBS)


def test_the_readmes_answer_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = ("report", "results/reference/storage-bound")
    assert shlex.join(["iobench", *words]) in COMMANDS
    assert completed(*words).stdout in BLOCKS


def test_every_command_parses() -> None:
    parser, refused = build_parser(), []
    for command in COMMANDS:
        arguments = shlex.split(command.replace("<", "").replace(">", ""))[1:]
        try:
            understood = parser.parse_args(arguments).verb == arguments[0]
        except SystemExit:
            understood = False
        if not understood:
            refused.append(command)
    assert refused == []


def test_the_exit_codes_are_the_documented_ones() -> None:
    from iobench import errors

    table = {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.M)}
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.IobenchError)
    ]
    assert table == {0} | {kind.exit_code for kind in kinds}
