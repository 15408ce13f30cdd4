"""S3 from the command line: what the helps' examples say (``test_cli.py`` has the others), and
secrets, which are shown nowhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from iobench.cli.main import main
from tests.processes import printed
from tests.servers.s3 import KEY, SECRET, S3Server, rclone_s3, s3_environment

__all__ = ["rclone_s3", "s3_environment"]

pytestmark = pytest.mark.usefixtures("s3_environment")


QUICK = (
    *("--no-knockouts", "--repeat", "1", "--calibration", "0.1"),
    *("--set", "epochs=1", "--set", "loader.workers=1", "--json"),
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


SMALL = {
    "generate": "--samples 20",
    "checkpoint": "--scale 1/100000 --repeat 1",
    "probe": "--max-in-flight 1 --time 2s",
}
"""What is added to the examples of a verb, to make them small."""

ORDER = ("generate", "probe", "scan", "checkpoint", "verify", "clean")


@pytest.mark.slow
def test_the_examples_on_s3(
    rclone_s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of check and advise take a whole budget, and both have tests of their own."""
    rclone_s3.client().create_bucket(Bucket="bucket")
    monkeypatch.setenv("AWS_ENDPOINT_URL", rclone_s3.endpoint)
    monkeypatch.chdir(tmp_path)
    printed("generate demo --to s3://bucket/shards --samples 10 --set samples_per_shard=5")
    text = "\n".join(printed(f"{verb} --help") for verb in ORDER)
    examples = re.findall(r"^  iobench (.* s3://.*)$", text, flags=re.M)
    assert {example.split()[0] for example in examples} == set(ORDER)
    for example in examples:
        printed(example, *SMALL.get(example.split()[0], "").split())


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
    size = settings("sample_size.mean=20kB", "sample_size.stdev=1kB")
    assert main(["generate", "cosmoflow", "--to", where, "--samples", "8", *size]) == 0
    results = ["--results", str(tmp_path / "results")]
    run = ["run", "cosmoflow-h100", "--data", where, *results, *QUICK, *settings("batch_size=2")]
    checkpoint = ["checkpoint", "resnet50", "--to", rclone_s3.url(f"{tmp_path.name}/ckpt")]
    checkpoint += ["--scale", "1/2048", "--repeat", "1", *results]
    assert main(run) in (0, 3)
    assert main(checkpoint) == 0
    monkeypatch.setenv("AWS_SESSION_TOKEN", CANARY)
    _tried([*run, "--debug"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    for client in ("obstore", "s3fs", "boto3"):
        _tried([*run, *settings(f"storage.client={client}"), "--debug"])
    _tried([*checkpoint, "--debug"])
    for found in (tmp_path / "results").glob("*/run.json"):
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
