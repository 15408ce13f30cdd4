"""The README's commands are run, and what it says of files and options is true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from iobench.cli.main import build_parser
from iobench.cli.verbs import VERBS, one_word
from tests.processes import in_process

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


def test_the_readmes_story_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands in their order, at /mnt/fast -> a temporary directory, small enough to be
    quick.
    """
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "resnet50"
    small = {
        "generate": ["--samples", "200"],
        "probe": ["--max-in-flight", "2", "--time", "5s"],
        "run": [
            "--set",
            "batch_size=20",
            "--set",
            "loader.workers=1",
            "--set",
            "epochs=1",
            *("--calibration", "0.3s", "--knockouts", "5s"),
        ],
    }
    story = [
        command
        for command in COMMANDS
        if command in next(block for block in BLOCKS if "iobench clean" in block)
    ]
    assert len(story) > 6
    for command in story:
        arguments = shlex.split(command)[1:]
        if arguments[0] == "run" and "--find-max" in arguments:
            continue  # the search has its own tests; here it would take minutes
        arguments = [
            a.replace("/mnt/fast/resnet50", str(data)).replace("/mnt/fast", str(tmp_path))
            for a in arguments
        ]
        arguments = [a.replace("20GiB", "60MiB") for a in arguments]
        if arguments[0] == "generate":
            arguments = [a for a in arguments if a not in ("--size", "60MiB")]
        if arguments[0] == "report":
            arguments[1] = str(next((tmp_path / "results").iterdir()))
        code, out, err = in_process(*arguments, *small.get(arguments[0], []))
        assert code == 0, f"{arguments}: {err}"
        assert out.strip(), arguments
        assert "Traceback" not in err
    assert not data.exists()  # clean took back what generate made
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
