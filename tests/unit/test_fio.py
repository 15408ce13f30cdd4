"""fio's output is understood in all its moods. (What fio reads of a dataset: test_curve_reads.)"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import StorageError
from iobench.host import fio
from iobench.host.fio import parse


def recorded(**changes: Any) -> dict[str, Any]:
    """fio 3.33, two psync jobs with group_reporting, cut down to what matters."""
    job = {
        "jobname": "j0",
        "error": 0,
        "job_runtime": 2000,
        "usr_cpu": 5.0,
        "sys_cpu": 20.0,
        "read": {
            "io_bytes": 2_000_000_000,
            "bw_bytes": 1_998_001_998,
            "runtime": 1001,
            "total_ios": 500,
            "clat_ns": {"percentile": {"50.000000": 1351680, "99.000000": 1630208}},
        },
        "write": {"io_bytes": 0, "runtime": 0, "total_ios": 0, "clat_ns": {}},
    }
    return {"fio version": "fio-3.33", "jobs": [{**job, **changes}]}


def test_figures_come_from_the_json() -> None:
    found = parse(json.dumps(recorded()), "", 0, kind="read")
    assert found.bytes == 2_000_000_000
    assert found.seconds == 1.001
    assert found.bytes_per_s == pytest.approx(1_998_001_998, rel=1e-6)  # as fio says itself
    assert found.iops == pytest.approx(499.5, abs=0.01)
    assert found.latency_p50_s == pytest.approx(0.00135168)
    assert found.latency_p99_s == pytest.approx(0.001630208)
    assert found.cpu_s == pytest.approx(0.5)  # a quarter of two seconds of job time


@pytest.mark.parametrize(
    ("out", "err", "code", "message"),
    [
        (
            "x: you need to specify size=\nfio: pid=0, err=22/file:filesetup.c:1155, "
            "func=total_file_size, error=Invalid argument\n" + json.dumps(recorded(error=22)),
            "",
            1,
            "Invalid argument",
        ),
        (
            json.dumps(recorded(error=5)),
            "fio: io_u error on file data/0.tar: Input/output error: read offset=0\n",
            0,
            "data/0.tar: Input/output error",
        ),
        (json.dumps(recorded(error=28)), "", 0, "No space left on device"),
        ("", "", 1, "exit status 1"),
        ('{"jobs": []}', "", 0, "exit status 0"),
    ],
)
def test_what_fio_says_when_it_fails_is_passed_on_in_one_line(
    out: str, err: str, code: int, message: str
) -> None:
    with pytest.raises(StorageError, match="fio failed") as caught:
        parse(out, err, code, kind="read")
    assert message in str(caught.value)


def test_nothing_moved_is_an_error_not_a_zero() -> None:
    with pytest.raises(StorageError, match="no data"):
        parse(json.dumps(recorded()), "", 0, kind="write")


def test_without_fio_the_way_to_get_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not fio.available()
    assert fio.version() is None
    assert "fio" in fio.install_hint()
