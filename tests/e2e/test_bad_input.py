"""Bad input gets one clear line and loses nothing: every promise of that kind, through the command
as a user calls it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from iobench.cli.main import main
from tests.processes import completed

Tree = dict[str, tuple[int, int, str]]

SPEC = """
name: demo
samples: 60
sample_size: {distribution: constant, mean: 20kB}
format: tar
samples_per_shard: 20
"""
QUICK = (
    "--repeat",
    "1",
    "--calibration",
    "0",
    "--set",
    "batch_size=5",
    "--set",
    "reader.crop=null",
    "--set",
    "epochs=1",
)


def refused(
    code: int, *arguments: str | Path, says: tuple[str, ...] = (), cwd: Path | None = None
) -> str:
    """The one line on stderr of a command that ends with ``code`` and prints nothing else."""
    found = completed(*arguments, cwd=cwd)
    told = (
        f"{' '.join(map(str, arguments))}\nexit {found.returncode}\n{found.stdout}\n{found.stderr}"
    )
    assert "Traceback" not in found.stderr, told
    assert found.returncode == code, told
    assert found.stdout == "", told
    assert found.stderr.startswith("iobench: "), told
    assert found.stderr.endswith("\n"), told
    assert found.stderr.count("\n") == 1, told
    for text in says:
        assert text in found.stderr, told
    return found.stderr


Refuse = Callable[..., str]


@pytest.fixture
def refused_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Refuse:
    """``refused`` in this process, with ``tmp_path`` for its working directory: a new interpreter
    for each of 150 numbers takes minutes.
    """

    def go(code: int, *arguments: str | Path, says: tuple[str, ...] = ()) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["iobench", *map(str, arguments)])
        try:
            ended: object = main()
        except SystemExit as left:
            ended = left.code
        out, err = capfd.readouterr()
        told = f"{' '.join(map(str, arguments))}\nexit {ended}\n{out}\n{err}"
        assert (ended, out) == (code, ""), told
        assert err.startswith("iobench: "), told
        assert err.endswith("\n"), told
        assert err.count("\n") == 1, told
        for text in says:
            assert text in err, told
        return err

    return go


def tree(root: Path) -> Tree:
    """Kind and mode, time of change, and digest of everything below ``root``."""
    found = {}
    for path in sorted([root, *root.rglob("*")]):
        info = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(info.st_mode) else ""
        found[str(path.relative_to(root))] = (info.st_mode, info.st_mtime_ns, digest)
    return found


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bad")
    (root / "demo.yaml").write_text(SPEC)
    assert completed("generate", root / "demo.yaml", "--to", root / "data").returncode == 0
    return root


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    """A complete dataset that the test may spoil."""
    shutil.copytree(original / "data", tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def spec(original: Path) -> Path:
    return original / "demo.yaml"


# Datasets that are not what they should be


def test_missing(tmp_path: Path) -> None:
    for verb in (("run", "demo", "--data"), ("verify",), ("clean",)):
        refused(1, *verb, tmp_path / "nowhere", says=(str(tmp_path / "nowhere"),), cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_foreign(tmp_path: Path, refused_here: Refuse) -> None:
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter.txt").write_text("precious")
    before = tree(foreign)
    refused_here(1, "run", "demo", "--data", foreign)
    refused_here(1, "verify", foreign)
    refused_here(2, "clean", foreign)
    refused_here(2, "generate", "demo", "--to", foreign, "--samples", "3", says=("chapter.txt",))
    (foreign / "manifest.json").write_text(
        '{"manifest_version": 3, "extensions": []}'
    )  # a browser extension's
    before["manifest.json"] = tree(foreign)["manifest.json"]
    before["."] = tree(foreign)["."]
    refused_here(1, "run", "demo", "--data", foreign)
    refused_here(1, "verify", foreign)
    refused_here(2, "clean", foreign)
    assert tree(foreign) == before


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"x"', "\x00\x01", '{"format": {}}'])
def test_a_manifest_that_is_none(
    data: Path, tmp_path: Path, content: str, refused_here: Refuse
) -> None:
    (data / "manifest.json").write_text(content)
    before = tree(data)
    refused_here(1, "run", "demo", "--data", data)
    refused_here(1, "verify", data)
    assert tree(data) == before


def test_half_generated(data: Path, tmp_path: Path, spec: Path) -> None:
    (data / "manifest.json").unlink()
    refused(1, "run", "demo", "--data", data, *QUICK, says=("iobench generate",), cwd=tmp_path)
    refused(1, "verify", data, says=("iobench generate",))
    assert completed("generate", spec, "--to", data).returncode == 0
    assert completed("verify", data).returncode == 0


def test_a_shard_is_gone_or_shorter(data: Path, tmp_path: Path, refused_here: Refuse) -> None:
    shard = max((data / "data").iterdir())
    shard.write_bytes(shard.read_bytes()[:-4096])
    refused_here(1, "run", "demo", "--data", data, *QUICK, says=(shard.name,))
    shard.unlink()
    refused_here(1, "run", "demo", "--data", data, *QUICK, says=(shard.name,))
    assert not (tmp_path / "results").exists()


def test_of_another_spec(data: Path, tmp_path: Path, spec: Path, refused_here: Refuse) -> None:
    before = tree(data)
    refused_here(1, "run", "resnet50-h100", "--data", data, *QUICK, says=("'demo'", "resnet50"))
    refused_here(2, "generate", spec, "--to", data, "--seed", "9", says=("iobench clean",))
    refused_here(
        2, "generate", "cosmoflow", "--to", data, "--samples", "2", says=("iobench clean",)
    )
    refused_here(2, "generate", spec, "--to", data, "--set", "codec=zstd", says=("iobench clean",))
    assert tree(data) == before


# Damage


def _flip(data: Path, sample: int) -> Path:
    """Flip one bit in the middle of a sample of the first shard (20 samples of 20 kB behind tar
    headers).
    """
    shard = min((data / "data").iterdir())
    content = bytearray(shard.read_bytes())
    content[len(content) * (2 * sample + 1) // 40] ^= 0x10
    shard.write_bytes(content)
    return shard


def test_a_flipped_bit_is_named(data: Path, tmp_path: Path) -> None:
    shard = _flip(data, 7)
    line = refused(
        1,
        "run",
        "demo",
        "--data",
        data,
        *QUICK,
        "--set",
        "reader.check=content",
        cwd=tmp_path,
        says=(shard.name, "sample"),
    )
    assert " 7" in line.partition("sample")[2], line
    (directory,) = (tmp_path / "results").iterdir()
    document = json.loads((directory / "run.json").read_text())
    assert document["status"] == "failed"
    assert shard.name in document["error"]
    found = completed("verify", data, "--json")
    assert (found.returncode, found.stderr) == (1, "")
    (damage,) = json.loads(found.stdout)["damages"]
    assert damage["shard"] == f"data/{shard.name}"
    assert damage["sample"] == 7


def test_a_flipped_bit_fails_every_transport(data: Path, tmp_path: Path) -> None:
    shard = _flip(data, 3)
    for setting in (
        ("loader.workers=0", "loader.transport=tensor"),
        ("loader.workers=2", "loader.transport=thread"),
    ):
        sets = [text for key in setting for text in ("--set", key)]
        refused(
            1,
            "run",
            "demo",
            "--data",
            data,
            *QUICK,
            *sets,
            "--set",
            "reader.check=content",
            cwd=tmp_path,
            says=(shard.name,),
        )


def test_a_bad_jpeg_is_named_without_any_check(tmp_path: Path, spec: Path) -> None:
    data = tmp_path / "jpegs"
    assert completed("generate", spec, "--to", data, "--set", "content=jpeg").returncode == 0
    shard = min((data / "data").iterdir())
    content = bytearray(shard.read_bytes())
    content[1024:1536] = bytes(
        512
    )  # somewhere in the first two images, the start-of-image marker perhaps with it
    content[512:516] = bytes(4)
    shard.write_bytes(content)
    refused(1, "run", "demo", "--data", data, *QUICK, cwd=tmp_path, says=(shard.name,))


# Targets


def test_targets_that_are_refused(tmp_path: Path, refused_here: Refuse) -> None:
    link = tmp_path / "link"
    link.symlink_to("/")
    plain = tmp_path / "plain"
    plain.write_text("mine")
    targets: list[str | Path] = [
        "/",
        "//",
        "/.",
        "/home",
        "/root",
        "~",
        "/tmp",
        "/proc",
        "/sys/x",
        "/usr/x",
        "/dev/shm",
        "/etc/x",
        link,
        plain,
    ]
    targets += [plain / "below", "/dev/null", *_block_devices()]
    for target in targets:
        refused_here(2, "generate", "demo", "--to", target, "--samples", "2")
    assert plain.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "plain"]


def _block_devices() -> list[str]:
    """Every node of a block device here, each with its own refusal; a loop device at least, where
    nodes are there at all.
    """
    return [
        str(path) for path in sorted(Path("/dev").iterdir()) if stat.S_ISBLK(path.stat().st_mode)
    ][:4]


@pytest.mark.parametrize("verb", ["clean", "verify"])
def test_what_is_no_dataset_is_not_touched(verb: str, tmp_path: Path, refused_here: Refuse) -> None:
    for target in ("/", "/root", "/tmp", "/dev/null"):
        line = refused_here(2 if verb == "clean" else 1, verb, target)
        assert "Permission" not in line


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount)],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip("mounting a small tmpfs needs root: full and read-only targets were NOT tried")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_mount_root_a_full_and_a_read_only_target(
    small_disk: Path, spec: Path, data: Path, tmp_path: Path
) -> None:
    refused(2, "generate", spec, "--to", small_disk)
    refused(1, "generate", spec, "--to", small_disk / "d", "--size", "20MB", says=("free",))
    assert list(small_disk.iterdir()) == []
    (small_disk / "ballast").write_bytes(bytes(8 << 20))
    line = refused(1, "run", "demo", "--data", data, *QUICK, "--results", small_disk / "results")
    assert "space" in line.lower()
    (small_disk / "ballast").unlink()
    shutil.rmtree(small_disk / "results", ignore_errors=True)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    refused(1, "generate", spec, "--to", small_disk / "d", says=("read-only",))
    refused(1, "run", "demo", "--data", data, *QUICK, "--results", small_disk / "results")
    assert list(small_disk.iterdir()) == []


# Names


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("run", "resnet50-h10", "--data", "x"), "resnet50-h100"),
        (("plan", "unet3d-h10O"), "unet3d-h100"),
        (("generate", "unet3", "--to", "x"), "unet3d"),
        (("generate", "demo", "--to", "x", "--set", "codec=ztsd"), "zstd"),
        (("generate", "demo", "--to", "x", "--set", "format=tarr"), "tar"),
        (("generate", "demo", "--to", "x", "--set", "content=jpg"), "jpeg"),
        (("run", "demo", "--data", "throtled+x?bandwidth=1MB"), "throttled"),
        (("plan", "demo", "--set", "accelerator.kind=emulatd"), "emulated"),
        (
            ("run", "demo", "--data", "x", "--fail-on", "acelerator_utilization<0.9"),
            "accelerator_utilization",
        ),
        (("runn", "demo"), "run"),
        (("list", "workload"), "workloads"),
        (("report", "x", "--format", "cvs"), "csv"),
    ],
)
def test_an_unknown_name_gets_the_nearest(
    tmp_path: Path, arguments: tuple[str, ...], hint: str, refused_here: Refuse
) -> None:
    refused_here(2, *arguments, says=(hint,))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("plan", "demo", "--set", "reader.chek=none"), "reader.chek"),
        (("plan", "demo", "--set", "loder.workers=2"), "loader"),
        (("plan", "demo", "--set", "batch_size"), "batch_size"),
        (("plan", "demo", "--set", "=3"), "=3"),
        (("plan", "demo", "--set", "batch_size=[1"), "batch_size"),
        (("plan", "demo", "--set", "batch_size.x=1"), "batch_size"),
        (("generate", "demo", "--to", "x", "--set", "sample_size.meen=1"), "mean"),
        (("generate", "demo", "--to", "x", "--set", "smaples=1"), "samples"),
    ],
)
def test_unknown_keys_and_broken_overrides(
    tmp_path: Path, arguments: tuple[str, ...], hint: str, refused_here: Refuse
) -> None:
    refused_here(2, *arguments, says=(hint,))
    assert list(tmp_path.iterdir()) == []


# Numbers


@pytest.mark.parametrize(
    "value", ["0", "-1", "1e400", "abc", "NaN", "-inf", "1.5.2MB", "12 parsecs", "9e30"]
)
def test_sizes_that_make_no_sense(tmp_path: Path, value: str, refused_here: Refuse) -> None:
    refused_here(2, "generate", "demo", "--to", "x", f"--size={value}")
    for key in ("sample_size.mean", "shard_size"):
        refused_here(2, "generate", "demo", "--to", "x", "--set", f"{key}={value}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        *[
            ("generate", "demo", "--to", "x", f"--samples={value}")
            for value in ("0", "-1", "abc", "1.5", "1e400", "NaN", "99999999999")
        ],
        *[
            ("generate", "demo", "--to", "x", f"--memory-multiple={value}")
            for value in ("0", "-1", "abc", "1e400", "NaN")
        ],
        *[
            ("generate", "demo", "--to", "x", f"--seed={value}")
            for value in ("-1", "abc", "1e400", "99999999999999999999")
        ],
        *[("generate", "demo", "--to", "x", f"--workers={value}") for value in ("0", "-1", "abc")],
        *[("plan", "demo", f"--accelerators={value}") for value in ("0", "-1", "abc", "NaN")],
        *[("plan", "demo", f"--repeat={value}") for value in ("0", "-1", "abc")],
        *[
            ("plan", "demo", "--set", f"batch_size={value}")
            for value in ("0", "-1", "abc", ".nan", "1e400", "true", "null", "[]")
        ],
        *[
            ("plan", "demo", "--set", f"accelerator.step_time={value}")
            for value in ("0", "-1ms", "abc", ".nan", "1e400", "null")
        ],
        *[
            ("plan", "demo", "--set", f"reader.concurrency={value}")
            for value in ("0", "-1", "abc", "100000")
        ],
        ("generate", "demo", "--to", "x", "--samples", "3", "--size", "1MB"),
        ("generate", "demo"),
        ("run", "demo"),
        (),
    ],
    ids=" ".join,
)
def test_numbers_that_make_no_sense(
    tmp_path: Path, arguments: tuple[str, ...], refused_here: Refuse
) -> None:
    refused_here(2, *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "option",
    [
        *[f"--accelerators={value}" for value in ("0", "-1", "abc", "61")],
        *[f"--repeat={value}" for value in ("0", "-1", "abc")],
        *[f"--calibration={value}" for value in ("-1", "abc", "nan", "inf", "1e400")],
        *[f"--seed={value}" for value in ("-1", "abc")],
        "--rules=mlperff",
        "--fail-on=accelerator_utilization",
        "--fail-on=headroom<<1",
        "--fail-on=wall_s<nan",
    ],
)
def test_options_of_run_that_make_no_sense(
    data: Path, tmp_path: Path, option: str, refused_here: Refuse
) -> None:
    refused_here(2, "run", "demo", "--data", data, *QUICK, option)
    assert not (tmp_path / "results").exists()


def test_more_samples_than_fit_anywhere_is_refused_before_they_are_counted(
    tmp_path: Path, refused_here: Refuse
) -> None:
    refused_here(1, "generate", "demo", "--to", "x", "--samples", "9999999999")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        "xyzzy://bucket/data",
        "nfs://",
        "s3://bucket/data?color=red",
        "memory+{data}",
        "file+{data}",
        "throttled+{data}?bandwidth=-1",
        "throttled+{data}?speed=3",
    ],
)
def test_storage_urls_that_are_none(
    data: Path, tmp_path: Path, url: str, refused_here: Refuse
) -> None:
    line = refused_here(2, "run", "demo", "--data", url.format(data=data), *QUICK)
    assert "iobench generate" not in line, "generating there is no remedy"
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("url", ["s3://bucket", "throttled+/tmp/x?bandwidth=1MB://"])
def test_some_urls_are_no_target(tmp_path: Path, url: str, refused_here: Refuse) -> None:
    refused_here(2, "generate", "demo", "--to", url, "--samples", "2")
    assert list(tmp_path.iterdir()) == []


def test_an_epoch_without_a_single_batch_is_no_run(data: Path, tmp_path: Path) -> None:
    """60 samples hold no batch of 100, and incomplete ones are to be dropped: nothing would be
    measured.
    """
    found = completed(
        *(
            "run",
            "demo",
            "--data",
            data,
            *QUICK,
            "--set",
            "batch_size=100",
            "--set",
            "reader.tail=drop",
            "--results",
            tmp_path / "results",
        )
    )
    assert found.returncode != 0, found.stdout[:200]
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize("setting", ["accelerator.kind=null", "loader.transport=null"])
def test_the_name_null_can_be_given(setting: str, capfd: pytest.CaptureFixture[str]) -> None:
    """``iobench list accelerators`` offers ``null``; on the command line it is a name, whatever
    YAML makes of the word.
    """
    assert main(["plan", "demo", "--set", setting]) == 0
    assert capfd.readouterr().err == ""


def test_yaml_files_that_are_none(tmp_path: Path, refused_here: Refuse) -> None:
    for content in (
        "",
        "- a\n- b\n",
        "a: [",
        "name: x\nname: y\n",
        "name: x\nsamples: many\n",
        "\x00",
    ):
        (tmp_path / "mine.yaml").write_text(content)
        refused_here(2, "generate", "./mine.yaml", "--to", "x", says=("mine.yaml",))
        refused_here(2, "plan", "./mine.yaml", says=("mine.yaml",))
    refused_here(2, "plan", "./absent.yaml", says=("absent.yaml",))
    refused_here(2, "plan", ".")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


# Results


@pytest.mark.parametrize(
    "content",
    [None, "", "{", "[]", '{"schema_version": "99.0"}', '{"schema_version": "1.0"}', "\x00"],
)
def test_reports_of_what_is_no_run(
    tmp_path: Path, content: str | None, refused_here: Refuse
) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    before = tree(tmp_path)
    refused_here(1, "report", tmp_path)
    assert tree(tmp_path) == before


def test_events_that_are_none(data: Path, tmp_path: Path, refused_here: Refuse) -> None:
    assert completed("run", "demo", "--data", data, *QUICK, cwd=tmp_path).returncode == 0
    (directory,) = (tmp_path / "results").iterdir()
    events = directory / "events.parquet"
    whole = events.read_bytes()
    for content in (b"", b"PAR1", whole[: len(whole) // 2], whole[:-1], os.urandom(500)):
        events.write_bytes(content)
        refused_here(1, "report", directory, says=("events.parquet",))


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    found = completed("verify", tmp_path / "nowhere", "--debug")
    assert found.returncode != 0
    assert "Traceback (most recent call last)" in found.stderr
    assert "DatasetError" in found.stderr
