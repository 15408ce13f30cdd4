"""The README's commands are run, and what it says of files and options is true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from iobench.cli.main import build_parser
from iobench.cli.verbs import VERBS, one_word
from tests.processes import completed, printed

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
    shown = {one_word(shlex.split(command)[1:])[0] for command in COMMANDS}
    assert shown == set(VERBS)


def test_the_readmes_answer_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = ("report", "results/reference/storage-binds")
    assert shlex.join(["iobench", *words]) in COMMANDS
    assert completed(*words).stdout in BLOCKS


def test_every_command_parses() -> None:
    parser, refused = build_parser(), []
    for command in COMMANDS:
        arguments = one_word(shlex.split(command.replace("<", "").replace(">", ""))[1:])
        try:
            understood = parser.parse_args(arguments).verb == arguments[0]
        except SystemExit:
            understood = False
        if not understood:
            refused.append(command)
    assert refused == []


@pytest.mark.nightly
def test_the_readmes_story_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands in their order, at /mnt/fast -> a temporary directory, small enough to be
    quick.
    """
    monkeypatch.chdir(tmp_path)
    small = {
        "generate": "--samples 200",
        "probe": "--max-in-flight 2 --time 3s",
        "run": "--set batch_size=20 --set loader.workers=1 --set epochs=1 --calibration 0.1s "
        "--knockouts 2s",
    }
    story = next(block for block in BLOCKS if "iobench clean" in block)
    # The search has its own tests; here it would take minutes.
    commands = [each for each in COMMANDS if each in story and "--find-max" not in each]
    assert len(commands) > 5
    for command in commands:
        verb, *words = shlex.split(command.replace("/mnt/fast", str(tmp_path)))[1:]
        if verb == "generate":
            words = [word for word in words if word not in ("--size", "20GiB")]
        if verb == "report":
            words[0] = str(next((tmp_path / "results").iterdir()))
        assert printed(verb, *words, *small.get(verb, "").split()).strip(), command
    assert not (tmp_path / "resnet50").exists()  # clean took back what generate made
    assert (tmp_path / "results").exists()


def test_the_exit_codes_are_the_documented_ones() -> None:
    from iobench import errors

    table = {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.M)}
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.IobenchError)
    ]
    assert table == {0} | {kind.exit_code for kind in kinds}
