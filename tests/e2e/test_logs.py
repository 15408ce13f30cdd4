"""What ``--log-level`` and ``--log-file`` show, of which process, and where."""

from __future__ import annotations

import logging
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from iobench.cli.main import main
from tests.processes import printed

LINE = re.compile(
    r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z host=(?P<host>\S+)( rank=(?P<rank>\d+))? "
    r"pid=(?P<pid>\d+) (?P<level>debug|info|warning|error) (?P<module>[\w.]+): ."
)


def lines(text: str) -> list[dict[str, str | None]]:
    found = [LINE.match(line) for line in text.splitlines()]
    assert found
    assert all(found), text
    return [match.groupdict() for match in found if match]


def test_a_runs_log_has_the_ranks_in_it(tmp_path: Path, make_dataset: Any) -> None:
    _, root = make_dataset()
    file = tmp_path / "log"
    printed(
        f"run demo --data {root} --results {tmp_path}/results -n 1 --calibration 0s "
        "--no-knockouts --accelerators 2 --set batch_size=5 --set loader.workers=1 "
        f"--set reader.crop=null --set epochs=1 --log-file {file} --log-level debug"
    )
    found = lines(file.read_text())
    assert {line["host"] for line in found} == {socket.gethostname()}
    assert {line["rank"] for line in found} == {None, "0", "1"}
    assert len({line["pid"] for line in found}) == 3
    assert {"iobench.runner.experiment", "iobench.runner.crew"} <= {
        line["module"] for line in found
    }


def test_the_log_goes_to_stderr_where_no_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", "demo", "--to", str(tmp_path / "d"), "--samples", "2", "--workers", "1"]
    assert main([*words, "--json", "--log-level", "info"]) == 0
    told = capsys.readouterr()
    assert {line["module"] for line in lines(told.err)} == {"iobench.generator.engine"}
    assert main([*words, "--log-level", "warning"]) == 0
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    assert logging.getLogger("iobench").level == logging.NOTSET


def test_a_save_and_a_restore_are_logged(tmp_path: Path) -> None:
    file = tmp_path / "log"
    place = f"--to {tmp_path}/c --results {tmp_path}/r"
    printed(f"checkpoint resnet50 {place} --scale 1/2048 -n 1 --log-file {file}")
    text = file.read_text()
    saving = [line for line in lines(text) if line["module"] == "iobench.checkpoint.saving"]
    assert [line["rank"] for line in saving] == ["0", "0"]


def test_a_retry_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    from iobench.storage.s3.errors import Failure, Kind, Retrier
    from iobench.storage.s3.options import S3Options

    def attempt(number: int) -> int:
        if number == 0:
            raise Failure(Kind.THROTTLED, detail="slow down")
        return number

    with caplog.at_level(logging.INFO, "iobench"):
        assert Retrier(S3Options()).run(attempt) == 1
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("iobench.storage.s3.errors", logging.INFO)


def test_a_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from iobench.cli.logs import logging_to

    with logging_to("info", None):
        logging.getLogger("iobench.x").info("two\nlines %s", "\x1b[31m")
        logging.getLogger("library.y").info("not shown")
        logging.getLogger("library.y").warning("shown")
    told = lines(capsys.readouterr().err)
    assert [line["module"] for line in told] == ["iobench.x", "library.y"]
