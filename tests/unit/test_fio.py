"""fio's output is understood in all its moods, and real runs read every byte they claim and change
none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from iobench.errors import StorageError
from iobench.measure import fio
from iobench.measure.fio_jobs import large_read_job, small_read_job, split_by_size
from iobench.measure.fio_process import parse

needs_fio = pytest.mark.skipif(not fio.available(), reason="fio is not installed")


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


def test_warnings_around_the_json_do_not_matter() -> None:
    noise = (
        "note: both iodepth >= 1 and synchronous I/O engine are selected, queue depth will be "
        "capped at 1\nfio: {strange} thing\n"
    )
    out = noise + json.dumps(recorded(), indent=2) + "\n{ not json\nfio: a note after it\n"
    assert parse(out, "", 0, kind="read").bytes == 2_000_000_000


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
        (
            "",
            "fio: engine io_uring not loadable\nfio: failed to load engine\n",
            1,
            "io_uring not loadable",
        ),
        ("", "", 1, "exit status 1"),
        ("no json at all", "", 0, "no json at all"),
        ('{"jobs": []}', "", 0, "exit status 0"),
    ],
)
def test_what_fio_says_when_it_fails_is_passed_on_in_one_line(
    out: str, err: str, code: int, message: str
) -> None:
    with pytest.raises(StorageError, match="fio failed") as caught:
        parse(out, err, code, kind="read")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_moved_is_an_error_not_a_zero() -> None:
    with pytest.raises(StorageError, match="no data"):
        parse(json.dumps(recorded()), "", 0, kind="write")


def test_json_of_another_shape_is_an_error() -> None:
    with pytest.raises(StorageError, match="lacks"):
        parse('{"jobs": [{"error": 0}]}', "", 0, kind="read")


def test_without_fio_the_way_to_get_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not fio.available()
    assert fio.version() is None
    with pytest.raises(StorageError, match=r"not installed.*fio"):
        fio.raw_read(
            [],
            block_size=4096,
            concurrency=1,
            direct=False,
            seconds=1,
            run_dir=tmp_path,
            sequential=True,
        )


def test_shards_are_large_though_the_last_is_short() -> None:
    shards = [(Path(f"/d/{i}"), 100 << 20) for i in range(20)] + [(Path("/d/last"), 1 << 20)]
    small, large = split_by_size(shards, 4 << 20)
    assert (len(small), len(large)) == (0, 20)
    samples = [(Path(f"/d/{i}"), 100_000) for i in range(20)] + [(Path("/d/tiny"), 100)]
    small, large = split_by_size(samples, 4 << 20)
    assert (len(small), len(large)) == (20, 0)  # fio cannot read less than a block of the device


@pytest.mark.parametrize(("files", "jobs"), [(1, 4), (3, 4), (4, 4), (9, 4), (2, 1), (5, 7)])
def test_jobs_read_disjoint_parts_and_together_everything(files: int, jobs: int) -> None:
    block, size = 1 << 20, 50 << 20
    shards = [(Path(f"/d/{i}"), size) for i in range(files)]
    job = large_read_job(
        shards,
        engine="psync",
        jobs=jobs,
        iodepth=1,
        block=block,
        direct=False,
        seconds=1,
        rw="read",
        seed=0,
    )
    assert job.jobs == jobs
    seen: set[tuple[str, int]] = set()
    for section in job.text.split("[job")[1:]:
        options = [line.partition("=") for line in section.splitlines() if "=" in line]
        values = {key: value for key, _, value in options}
        start = int(values.get("offset", 0))
        end = start + int(values.get("size", size))
        blocks = {
            (value, at)
            for key, _, value in options
            if key == "filename"
            for at in range(start, end, block)
        }
        assert not blocks & seen
        seen |= blocks
    assert len(seen) >= 0.9 * files * size / block  # pieces are whole blocks


def test_small_files_are_each_opened_read_whole_and_closed_once_when_buffered() -> None:
    samples = [(Path(f"/d/a/{i}.npz"), 4096 * (i % 7 + 1) + 17) for i in range(50)]
    job = small_read_job(samples, jobs=4, block=8192, direct=False, seconds=1, seed=1)
    actions = [line.split() for text in job.iologs.values() for line in text.splitlines()[1:]]
    read: dict[str, int] = {}
    for name, action, *rest in actions:
        if action == "read":
            assert int(rest[0]) == read.get(name, 0)  # front to back, no byte twice
            assert int(rest[1]) <= 8192
            read[name] = int(rest[0]) + int(rest[1])
    assert read == {f"{i}.npz": 4096 * (i % 7 + 1) for i in range(50)}
    for action in ("add", "open", "close"):
        assert sorted(row[0] for row in actions if row[1] == action) == sorted(read)


def test_names_that_a_job_file_cannot_carry_are_refused() -> None:
    with pytest.raises(StorageError, match="/d/a b"):
        small_read_job(
            [(Path("/d/a b"), 9000)], jobs=1, block=4096, direct=False, seconds=1, seed=0
        )


def digest(paths: list[Path]) -> list[tuple[str, str, int, int]]:
    return [
        (str(p), hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_size, p.stat().st_mtime_ns)
        for p in paths
    ]


def direct_works(path: Path) -> bool:
    from iobench.measure.direct import probe

    return bool(probe(path)["supported"])


@needs_fio
@pytest.mark.parametrize(("direct", "sequential"), [(True, True), (False, True), (False, False)])
def test_large_files_for_real(tmp_path: Path, direct: bool, sequential: bool) -> None:
    data = tmp_path / "with space" / "data"
    data.mkdir(parents=True)
    if direct and not direct_works(data):
        pytest.skip("no O_DIRECT here")
    files = [data / "a:b.bin", data / "c.bin"]
    for file in files:
        file.write_bytes(os.urandom(2_000_000))
    before = digest(files)
    found = fio.raw_read(
        [(f, f.stat().st_size) for f in files],
        block_size=65536,
        concurrency=3,
        direct=direct,
        seconds=0.5 if direct else 60,
        run_dir=tmp_path / "run: 1",
        sequential=sequential,
    )
    assert digest(files) == before
    assert sorted(path.name for path in data.iterdir()) == ["a:b.bin", "c.bin"]
    assert found.bytes_per_s > 0
    assert found.engine in found.how
    if direct:
        assert set(found.alternatives) == {"psync", "io_uring", "libaio"}
        assert found.bytes > 4_000_000  # goes round until the time is over
    else:
        assert 0.9 * 4_000_000 <= found.bytes <= 4_000_000  # each byte once
    assert Path(found.job_file).read_text().count("[job") == found.jobs
    assert json.loads(Path(found.job_file).with_suffix(".json").read_text())["jobs"]


@needs_fio
@pytest.mark.parametrize("direct", [True, False])
def test_small_files_of_uneven_size_for_real(tmp_path: Path, direct: bool) -> None:
    if direct and not direct_works(tmp_path):
        pytest.skip("no O_DIRECT here")
    data = tmp_path / "data"
    data.mkdir()
    files = [data / f"{i}.bin" for i in range(60)]
    for i, file in enumerate(files):
        file.write_bytes(os.urandom(5000 + 977 * i))
    before = digest(files)
    sizes = [(f, f.stat().st_size) for f in files]
    seconds = 0.5 if direct else 60  # buffered, it ends after one pass
    found = fio.raw_read(
        sizes,
        block_size=4 << 20,
        concurrency=4,
        direct=direct,
        seconds=seconds,
        run_dir=tmp_path / "run: 1",
        sequential=True,
    )
    assert digest(files) == before
    assert sorted(data.iterdir()) == sorted(files)
    once = sum(size - size % 4096 for _, size in sizes)
    assert found.bytes >= once if direct else found.bytes == once
    assert found.files == 60
    assert (found.engine, found.jobs) == ("psync", 4)


@needs_fio
def test_the_command_can_be_run_again(tmp_path: Path) -> None:
    file = tmp_path / "x.bin"
    file.write_bytes(os.urandom(1 << 20))
    found = fio.raw_read(
        [(file, 1 << 20)],
        block_size=65536,
        concurrency=1,
        direct=False,
        seconds=1,
        run_dir=tmp_path / "run",
        sequential=True,
    )
    again = subprocess.run(["sh", "-c", found.command], capture_output=True, text=True, check=True)
    assert parse(again.stdout, again.stderr, 0, kind="read").bytes == 1 << 20
    assert shlex.quote(found.job_file) in found.command
    assert Path(found.job_file).read_text().startswith("# cd ")


@needs_fio
def test_a_missing_file_is_fios_error_and_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="fio failed"):
        fio.raw_read(
            [(tmp_path / "gone.bin", 1 << 20)],
            block_size=4096,
            concurrency=1,
            direct=False,
            seconds=0.5,
            run_dir=tmp_path / "run",
            sequential=True,
        )
    assert not (tmp_path / "gone.bin").exists()


@needs_fio
def test_write_leaves_nothing_and_moves_what_was_asked(tmp_path: Path) -> None:
    target = tmp_path / "disk"
    target.mkdir()
    (target / "mine").write_text("keep")
    found = fio.seq_write(
        target, bytes=4 << 20, block_size=1 << 20, jobs=2, direct=False, run_dir=tmp_path / "run"
    )
    assert found.bytes == 4 << 20
    assert [path.name for path in target.iterdir()] == ["mine"]
    assert "end_fsync=1" in Path(found.job_file).read_text()
    assert "fallocate=none" in Path(found.job_file).read_text()


@needs_fio
def test_write_refuses_what_does_not_fit_before_writing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="free"):
        fio.seq_write(
            tmp_path,
            bytes=1 << 60,
            block_size=1 << 20,
            jobs=1,
            direct=False,
            run_dir=tmp_path / "run",
        )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StorageError, match="gone"):
        fio.seq_write(
            tmp_path / "gone",
            bytes=1 << 20,
            block_size=1 << 20,
            jobs=1,
            direct=False,
            run_dir=tmp_path / "run",
        )


def fake_fio(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    tool = directory / "bin" / "fio"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")


def test_an_engine_that_does_not_work_here_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.json").write_text(json.dumps(recorded()))
    refuse = (
        'if grep -q io_uring "$job"; then '
        'echo "fio: io_uring: Operation not permitted" >&2; exit 1; fi'
    )
    script = f"for job; do :; done\n{refuse}\ncat {tmp_path}/good.json"
    fake_fio(tmp_path, monkeypatch, script)
    (tmp_path / "x").write_bytes(bytes(1 << 20))
    found = fio.raw_read(
        [(tmp_path / "x", 1 << 20)],
        block_size=4096,
        concurrency=1,
        direct=True,
        seconds=1,
        run_dir=tmp_path / "run",
        sequential=True,
    )
    assert found.engine in ("psync", "libaio")
    assert "not permitted" in str(found.alternatives["io_uring"])


def test_a_hanging_fio_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from iobench.measure.fio_jobs import write_job
    from iobench.measure.fio_process import run_fio

    fake_fio(tmp_path, monkeypatch, "exec sleep 60")
    job = write_job(tmp_path, jobs=1, each=4096, block=4096, direct=False)
    with pytest.raises(StorageError, match="did not end"):
        run_fio(job, tmp_path / "run", "x", kind="write", timeout_s=0.2)
