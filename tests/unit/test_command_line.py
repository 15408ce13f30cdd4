"""Flags that all verbs share, flags that were renamed, and what a shell completes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from iobench.cli.completion import table
from iobench.cli.main import build_parser, main
from iobench.cli.verbs import VERBS, Verb, load_verbs

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"


def test_every_verb_has_the_common_flags_under_the_same_names() -> None:
    parsers = build_parser()._subparsers
    choices = parsers._group_actions[0].choices
    assert isinstance(choices, dict)
    assert list(choices) == list(VERBS)
    for verb, parser in choices.items():
        flags = {name for action in parser._actions for name in action.option_strings}
        assert {"--format", "--json", "-o", "--output", "-q", "--quiet", "--debug"} <= flags, verb
        assert all(action.help for action in parser._actions), verb
        if "--repeat" in flags:
            assert "-n" in flags, verb
        times = [a for a in parser._actions if a.metavar == "TIME" and isinstance(a.default, str)]
        assert all(re.search(r"[a-z]$", action.default) for action in times), verb
        budgets = [a for a in parser._actions if "--budget" in a.option_strings and a.metavar]
        assert all(action.metavar == "TIME" for action in budgets), verb


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
    for verb in ("run", "plan", "report"):
        for words in (["--help"], ["--no-such-flag"], ["--format", "no-such-format"]):
            names, *short = told(*verb.split(), *words)
            assert names == [verb]
            with monkeypatch.context() as patch:
                patch.setattr("iobench.cli.main.build_parser", lambda _: whole)
                assert [*told(*verb.split(), *words)[1:]] == short


@pytest.mark.parametrize("form", ["text", "json"])
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


@pytest.mark.parametrize("target", ["file", "nothing"])
def test_no_document_is_written_through_a_link(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to(target)
    assert main(["list", "codecs", "-o", str(tmp_path / "link")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "link").is_symlink()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir() if path.is_file()] == [
        ("file", "before"), *([("link", "before")] if target == "file" else [])
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        *("run/run.json", "run/events.parquet", "sweep.json", "ab.json", "run/resources.parquet"),
        *("data/manifest.json", "data/samples.arrow", "data/.iobench-dataset"),
        *("data/data/demo-000000.tar", "scanned/manifest.json", "scanned/shards.arrow"),
        *("checkpoints/step-1/model.pt", "checkpoints/.iobench-checkpoints"),
    ],
)
def test_no_document_replaces_what_iobench_has_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = ("manifest.json", "samples.arrow", "shards.arrow")
    for each in (
        *(f"{folder}/{own}" for folder in ("data", "scanned") for own in tables),
        *("data/.iobench-dataset", "checkpoints/.iobench-checkpoints", name),
    ):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text("precious")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.chdir((tmp_path / name).parent)
    for place in (tmp_path / name, (tmp_path / name).name):
        assert main(["list", "codecs", "-o", str(place)]) == 2
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1)
        assert Path(name).name in told.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    # A file that is not there yet is nobody's.
    assert main(["list", "codecs", "-o", "page.html"]) == 0


def test_a_full_disk_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "codecs", "-o", "/dev/full"]) == 1
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "/dev/full" in told.err


@pytest.mark.slow
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


# Completion


def test_what_is_completed_is_what_the_parsers_know() -> None:
    found = table(build_parser())
    assert list(found) == list(VERBS)
    flags = {name for flag in found["run"].flags for name in flag.names}
    assert {"--data", "--calibration", "-n", "--format"} <= flags
    assert "--calibration-s" not in flags
    assert "resnet50-h100" in found["run"].words
    assert "llama3-8b" in found["plan"].words


def test_a_file_with_a_hostile_name_is_not_in_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "x'; touch pwned; '.yaml").write_text("")
    (tmp_path / "workloads" / "mine.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    words = table(build_parser())["run"].words
    assert "mine" in words
    assert not [word for word in words if "pwned" in word]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["checkp"], ["checkpoint"]),
        (["run", "resnet50-h"], ["resnet50-h100"]),
        (["plan", "--stall"], ["--stall-budget"]),
        (["report", "x", "--format", "m"], ["markdown", "mlperf"]),
    ],
)
def test_bash_completes(
    typed: list[str], expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--completion", "bash"])
    assert left.value.code == 0
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
    with pytest.raises(SystemExit) as left:
        main(["--completion", shell])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert "resnet50-h100" in text
    if shell == "fish":  # every line is a command or the comment, with its quotes closed
        assert all(line.startswith(("#", "complete -c iobench ")) for line in text.splitlines())
        assert all(line.replace("\\'", "").count("'") % 2 == 0 for line in text.splitlines())
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(text)
        subprocess.run([shell, "-n", str(script)], check=True, timeout=60)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "out"
    file.write_text("before")
    file.chmod(mode)
    assert main(["list", "codecs", "-o", str(file)]) == 0
    assert "zstd" in file.read_text()
    assert file.stat().st_mode & 0o7777 == mode


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
