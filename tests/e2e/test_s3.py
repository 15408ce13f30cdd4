"""S3 from the command line: what the helps' examples say (``test_cli.py`` has the others), and
secrets, which are shown nowhere.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from iobench.cli.main import build_parser, main
from iobench.cli.verbs import VERBS
from tests.servers.s3 import KEY, SECRET, S3Server, rclone_s3, s3_environment

__all__ = ["rclone_s3", "s3_environment"]

pytestmark = pytest.mark.usefixtures("s3_environment")


QUICK = (
    "--no-knockouts",
    "--repeat",
    "1",
    "--calibration",
    "0.1",
    "--set",
    "epochs=1",
    "--set",
    "loader.workers=1",
    "--json",
)


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.fixture
def iobench(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*words: str, code: int = 0) -> str:
        found = main([*words, "--quiet"])
        shown = capsys.readouterr()
        assert (found, shown.err) == (code, ""), (words, shown)
        return shown.out

    return call


# The examples of the helps that name s3://


def _examples() -> Iterator[list[str]]:
    parser = build_parser()
    actions: Any = parser._subparsers
    for verb in VERBS:
        help_text = actions._group_actions[0].choices[verb].format_help()
        for line in re.findall(r"^  (iobench .*)$", help_text, flags=re.M):
            words = shlex.split(line)[1:]
            if words[0] in ("check", "advise"):
                continue  # one takes its whole budget, the other needs a run: both have tests
            if any("s3://" in word for word in words):
                yield words


def test_the_examples_on_s3(
    rclone_s3: S3Server,
    iobench: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rclone_s3.client().create_bucket(Bucket="bucket")
    monkeypatch.setenv("AWS_ENDPOINT_URL", rclone_s3.endpoint)
    monkeypatch.chdir(tmp_path)
    examples = sorted(
        _examples(),
        key=lambda words: (
            "generate",
            "probe",
            "scan",
            "checkpoint",
            "run",
            "verify",
            "clean",
        ).index(words[0]),
    )
    assert {words[0] for words in examples} >= {"generate", "clean", "checkpoint"}
    for words in examples:
        small = list(words)
        if words[0] == "generate":
            small += ["--samples", "20", "--quiet"]
        if words[0] == "checkpoint":
            small += [
                "--scale",
                "1/100000",
                "--repeat",
                "1",
                "--results",
                str(tmp_path / "results"),
            ]
        if words[0] in ("scan", "probe"):
            small += ["--quiet"]
        if words[0] == "probe":
            small += ["--max-in-flight", "2", "--time", "2s"]
        if words[0] in ("clean", "scan") and not _there(rclone_s3, words[1]):
            main(
                [
                    "generate",
                    "resnet50",
                    "--to",
                    words[1],
                    "--samples",
                    "10",
                    "--quiet",
                    "--set",
                    "samples_per_shard=5",
                ]
            )
        assert main(small) == 0, small


def _there(server: S3Server, url: str) -> bool:
    prefix = url.removeprefix("s3://bucket/")
    return bool(server.client().list_objects_v2(Bucket="bucket", Prefix=prefix).get("KeyCount"))


# Secrets

CANARY = "canary-9d2c41e7a6f05b38"


@pytest.mark.slow
def test_a_secret_is_found_nowhere(
    rclone_s3: S3Server,
    record_property: Callable[[str, object], None],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs that succeed, and runs that fail because of the credentials, with a traceback asked for:
    neither shows them.
    """
    where = rclone_s3.url(f"{tmp_path.name}/secret")
    words = (
        "generate",
        "cosmoflow",
        "--to",
        where,
        "--samples",
        "8",
        *settings("sample_size.mean=20kB", "sample_size.stdev=1kB"),
    )
    assert main(list(words)) == 0
    results = ("--results", str(tmp_path / "results"))
    run = ("run", "cosmoflow-h100", "--data", where, *results, *QUICK, *settings("batch_size=2"))
    checkpoint = (
        "checkpoint",
        "resnet50",
        "--to",
        rclone_s3.url(f"{tmp_path.name}/ckpt"),
        "--scale",
        "1/16",
        "--repeat",
        "1",
        *results,
    )
    assert main(list(run)) in (0, 3)
    assert main(list(checkpoint)) == 0
    monkeypatch.setenv("AWS_SESSION_TOKEN", CANARY)
    _tried([*run, "--debug"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    for client in ("obstore", "s3fs", "boto3"):
        _tried([*run, *settings(f"storage.client={client}"), "--debug"])
    _tried([*checkpoint, "--debug"])
    (tmp_path / "results" / "reported").mkdir()
    for found in [
        path for path in (tmp_path / "results").iterdir() if (path / "run.json").exists()
    ]:
        for form in ("text", "json", "csv", "markdown"):
            main(["report", str(found), "--format", form])
    shown = capfd.readouterr()
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert files
    haystack = (shown.out + shown.err).encode() + b"".join(path.read_bytes() for path in files)
    needles = (CANARY, SECRET, hashlib.sha256(CANARY.encode()).hexdigest())
    found = sum(haystack.count(needle.encode()) for needle in needles)
    record_property("files and outputs searched for secrets", len(files) + 2)
    record_property("secrets found", found)
    assert found == 0
    assert KEY.encode() not in b"".join(path.read_bytes() for path in files)


def _tried(words: list[str]) -> None:
    """Whatever comes of it; ``--debug`` raises what it would have said in one line."""
    import traceback

    try:
        main(words)
    except Exception:
        traceback.print_exc()
