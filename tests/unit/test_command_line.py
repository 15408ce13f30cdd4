"""Flags that all verbs share, flags that were renamed, and what a shell completes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from iobench.cli import common
from iobench.cli.completion import table
from iobench.cli.main import build_parser, main
from iobench.cli.verbs import RECORDS, VERBS, Verb, load_verbs, one_word

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"

RENAMED = {
    "run": {"--calibration-s": ("--calibration", "2.5")},
    "demo": {"--calibration-s": ("--calibration", "0.5")},
    "sweep": {"--calibration-s": ("--calibration", "1"), "--data-root": ("--to", "x")},
    "checkpoint": {
        "--count": ("--repeat", "3"),
        "--price": ("--accelerator-price-per-hour", "2.5"),
    },
    "cost": {
        "--price": ("--host-price-per-hour", "3"),
        "--spot": ("--host-spot-price-per-hour", "1"),
        "--interruptions": ("--interruptions-per-hour", "0.5"),
        "--checkpoint-every": ("--interval", "10m"),
    },
}
NEEDED = {"run": ["demo", "--data", "d"], "checkpoint": ["resnet50", "--to", "d"], "cost": ["r"]}


@pytest.fixture(autouse=True)
def _nothing_told_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "_renamed", set())


def parsed(verb: str, *words: str) -> dict[str, object]:
    return vars(build_parser().parse_args([verb, *NEEDED.get(verb, []), *words]))


@pytest.mark.parametrize(
    ("verb", "old"), [(verb, old) for verb, names in RENAMED.items() for old in names]
)
def test_an_old_spelling_works_and_says_its_new_name_once(
    verb: str, old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new, value = RENAMED[verb][old]
    assert parsed(verb, old, value) == parsed(verb, new, value)
    assert parsed(verb, f"{old}={value}") == parsed(verb, new, value)
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert new in told.err
    parsers = build_parser()._subparsers
    assert parsers is not None
    shown = parsers._group_actions[0].choices[verb].format_help()  # type: ignore[index,call-overload]
    assert new in shown
    assert not re.search(rf"{old}(?![\w-])", shown)


def test_every_verb_has_the_common_flags_under_the_same_names() -> None:
    parsers = build_parser()._subparsers
    assert parsers is not None
    choices = parsers._group_actions[0].choices
    assert isinstance(choices, dict)
    assert list(choices) == list(VERBS)
    for verb, parser in choices.items():
        flags = {name for action in parser._actions for name in action.option_strings}
        assert {"--format", "--json", "-o", "--output", "-q", "--quiet", "--debug"} <= flags, verb
        if "--repeat" in flags:
            assert "-n" in flags, verb
        times = [a for a in parser._actions if a.metavar == "TIME" and isinstance(a.default, str)]
        assert all(re.search(r"[a-z]$", action.default) for action in times), verb


def test_a_command_builds_the_parser_of_its_own_verb_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints what it would print if all parsers had been built, which takes ten times as long.

    A word that is no verb is compared with all of them.
    """
    built: list[str] = []

    def load(names: Sequence[str]) -> Iterator[tuple[str, Verb]]:
        built.extend(names)
        return load_verbs(names)

    def told(*words: str) -> tuple[list[str], str, str]:
        built.clear()
        with pytest.raises(SystemExit):
            main(words)
        return list(built), *capsys.readouterr()

    monkeypatch.setattr("iobench.cli.main.load_verbs", load)
    assert told("--help")[0] == list(VERBS)
    assert told("rnu")[0] == list(VERBS)
    whole = build_parser()
    for verb in VERBS:
        for words in (["--help"], ["--no-such-flag"], ["--format", "no-such-format"]):
            names, *short = told(*verb.split(), *words)
            assert names == [verb]
            with monkeypatch.context() as patch:
                patch.setattr("iobench.cli.main.build_parser", lambda _: whole)
                assert [*told(*verb.split(), *words)[1:]] == short


@pytest.mark.parametrize("text", ["3", "3s", "3000ms", "0.05min"])
def test_a_time_is_seconds_whatever_its_unit(text: str) -> None:
    assert parsed("run", "--calibration", text)["calibration_s"] == 3.0


@pytest.mark.parametrize("text", ["3x", "nan", "-1s", "", "inf", "1e99h"])
def test_what_is_no_time_is_refused_in_one_line(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        parsed("run", f"--calibration={text}")
    assert left.value.code == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)


def test_json_is_one_of_the_formats(capsys: pytest.CaptureFixture[str]) -> None:
    run = str(GOLDEN / "calibrated")
    assert main(["report", run, "--json"]) == 0
    short = capsys.readouterr().out
    assert main(["report", run, "--format", "json"]) == 0
    assert capsys.readouterr().out == short
    assert json.loads(short)["status"] == "ok"


@pytest.mark.parametrize("form", [form for form in RECORDS if form != "html"])
def test_output_goes_to_a_file_as_it_went_to_stdout(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", str(GOLDEN / "calibrated"), "--format", form]
    assert main(words) == 0
    shown = capsys.readouterr().out
    file = tmp_path / "out"
    file.write_text("what was there before")
    assert main([*words, "-o", str(file)]) == 0
    assert capsys.readouterr().out == ""
    assert file.read_text(encoding="utf-8") == shown
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_output_that_cannot_be_written_is_told_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "data"
    for place in (tmp_path, tmp_path / "no" / "file", "x\0y"):
        words = ["generate", "demo", "--to", str(made), "--samples", "1", "--output", str(place)]
        assert main(words) == 2
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1)
        assert not made.exists()


def test_a_link_is_written_through_and_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to("file")
    assert main(["list", "codecs", "-o", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert "zstd" in (tmp_path / "file").read_text()


def test_a_demos_document_is_alone_on_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["demo", "--samples", "40", "-n", "1", "--calibration", "0s", "--format", "csv"]
    assert main([*words, "-o", "out.csv"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "generated" in told.err
    rows = (tmp_path / "out.csv").read_text().splitlines()
    assert len({row.count(",") for row in rows if '"' not in row}) == 1


def test_a_verb_that_fails_leaves_the_output_of_before(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("before")
    assert main(["report", str(tmp_path / "nosuch"), "-o", str(file)]) == 1
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert main(["list", "codecs", "-o", "/dev/null"]) == 0


def test_a_models_plan_is_a_verb_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "iobench.runner.checkpoint_plan.available_bytes", lambda: 8 << 30
    )  # it changes all the time
    assert main(["checkpoint", "plan", "llama3-8b", "--ranks", "2"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert main(["plan", "llama3-8b", "--ranks", "2"]) == 0  # as it was written before
    again = capsys.readouterr()
    assert again.out == shown.out
    assert "checkpoint plan" in again.err
    assert main(["plan", "demo", "--ranks", "2"]) == 2
    assert one_word(["checkpoint", "plan", "x"]) == ["checkpoint plan", "x"]
    assert one_word(["checkpoint", "x", "plan"]) == ["checkpoint", "x", "plan"]


def test_asynchronous_is_asked_of_writers_that_can_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from iobench.checkpoint.base import asynchronous_version
    from iobench.errors import UnknownNameError, UsageError
    from iobench.registry import WRITERS

    for name in WRITERS.entries():
        with suppress(UsageError):
            assert WRITERS.load(asynchronous_version(name)).asynchronous
    with pytest.raises(UsageError, match="torch-nocrc"):
        asynchronous_version("torch-nocrc")
    assert asynchronous_version("dcp") == "dcp-async"
    assert asynchronous_version("dcp-async-process") == "dcp-async-process"
    with pytest.raises(UnknownNameError):
        asynchronous_version("nosuch")
    words = ["checkpoint", "resnet50", "--to", str(tmp_path / "c"), "--async"]
    assert main([*words, "--writer", "torch-nocrc"]) == 2
    assert "torch-nocrc-async" not in capsys.readouterr().err


# Completion


def test_what_is_completed_is_what_the_parsers_know() -> None:
    found = table()
    assert list(found) == list(VERBS)
    flags = {name for flag in found["run"].flags for name in flag.names}
    assert {"--data", "--calibration", "-n", "--format"} <= flags
    assert "--calibration-s" not in flags
    assert "resnet50-h100" in found["run"].words
    assert "llama3-8b" in found["checkpoint plan"].words


def test_a_file_with_a_hostile_name_is_not_in_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "x'; touch pwned; '.yaml").write_text("")
    (tmp_path / "workloads" / "mine.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    words = table()["run"].words
    assert "mine" in words
    assert not [word for word in words if "pwned" in word]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["checkp"], ["checkpoint"]),
        (["run", "resnet50-h"], ["resnet50-h100"]),
        (["run", "--rules", ""], ["quick", "mlperf"]),
        (["checkpoint", "pl"], ["plan"]),
        (["checkpoint", "plan", "--stall"], ["--stall-budget"]),
        (["report", "x", "--format", "m"], ["markdown", "mlperf"]),
    ],
)
def test_bash_completes(
    typed: list[str], expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "iobench.bash"
    script.write_text(capsys.readouterr().out)
    ask = (
        'source "$1"; shift; COMP_WORDS=(iobench "$@"); COMP_CWORD=$#; _iobench; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    told = subprocess.run(
        ["bash", "-c", ask, "bash", str(script), *typed],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (told.stdout.split(), told.stderr) == (expected, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_scripts_of_other_shells(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "resnet50-h100" in text
    if shell == "fish":  # every line is a command or the comment, with its quotes closed
        assert all(line.startswith(("#", "complete -c iobench ")) for line in text.splitlines())
        assert all(line.replace("\\'", "").count("'") % 2 == 0 for line in text.splitlines())
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(text)
        subprocess.run([shell, "-n", str(script)], check=True, timeout=60)


def test_parsers_have_no_argument_without_help() -> None:
    parsers = build_parser()._subparsers
    assert parsers is not None
    choices = parsers._group_actions[0].choices
    assert isinstance(choices, dict)
    for verb, parser in choices.items():
        for action in parser._actions:
            assert action.help, (verb, action.dest)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "out"
    file.write_text("before")
    file.chmod(mode)
    assert main(["list", "codecs", "-o", str(file)]) == 0
    assert "zstd" in file.read_text()
    assert file.stat().st_mode & 0o7777 == mode


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["--repeat", "0"], ["--repeat"]),
        (["--accelerators", "0"], ["--accelerators"]),
        (["--seed=-1"], ["--seed"]),
        (["--calibration", "2h"], ["--calibration"]),
    ],
)
@pytest.mark.parametrize(
    "verb",
    [
        ["run", "demo", "--data", "d"],
        ["sweep", "demo", "--to", "d", "--sweep", "loader.workers=1,2"],
    ],
)
def test_a_number_out_of_range_is_named_with_its_flag(
    verb: list[str],
    words: list[str],
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*verb, *words]) == 2
    assert re.findall(r"--[a-z]+", capsys.readouterr().err) == flags
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["--resume", "--confirm"])
def test_a_flag_that_would_change_a_sweep_is_named(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, --accelerators, --seed and --calibration were accepted and had no effect."""
    changes = (
        ["--samples", "9"],
        ["--size", "1MB"],
        ["--one-at-a-time"],
        ["--accelerators", "1"],
        ["--seed", "42"],
        ["--calibration", "1s"],
        *([["--repeat", "5"]] if word == "--resume" else []),
    )
    for change in changes:
        assert main(["sweep", word, str(tmp_path / "sweep"), *change]) == 2, change
        told = capsys.readouterr().err
        assert (change[0] in told, word in told) == (True, True), change


def test_the_commands_of_a_demo_can_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    results = "my results; $(touch x)"
    assert main(["demo", "--samples", "0", "--results", results]) == 2  # nothing is generated
    told = capsys.readouterr().err
    (tmp_path / "demo-data").mkdir()
    (tmp_path / "demo-data" / "manifest.json").write_text("{}")
    assert main(["demo", "--results", results]) == 1
    told += capsys.readouterr().err
    commands = [line.removeprefix("$ ") for line in told.splitlines() if line.startswith("$ ")]
    assert [shlex.split(command)[1] for command in commands] == ["generate", "run"]
    assert results in shlex.split(commands[1])
