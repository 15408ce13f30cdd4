"""Bad input gets one clear line and loses nothing.

``tests/snapshots/errors.txt`` has the typical mistakes, with the words that they get. Here are the
others, in one table.
"""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from iobench.base.errors import IobenchError
from iobench.cli.main import main
from iobench.runner.results import new_directory
from tests.datasets import tree
from tests.processes import printed, refused

SPEC = "{name: demo, samples: 12, sample_size: {mean: 4kB}, format: tar, samples_per_shard: 4}\n"
WALK = """
name: walk
workload: ./tiny.yaml
walk:
  - {name: batch size, key: batch_size, values: [16]}
"""
QUICK = (
    "--repeat 1 --calibration 0 --no-ablations --set batch_size=2 --set reader.crop=null "
    "--set epochs=1"
)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets, and what a user may point to by mistake."""
    home = tmp_path_factory.mktemp("bad")
    files = {
        "demo.yaml": SPEC,
        "tiny.yaml": "{name: tiny, dataset: ./demo.yaml, batch_size: 2, accelerator: {kind: null}}",
        "walk.yaml": WALK,
        "huge.yaml": "{name: huge, samples: 9, sample_size: {mean: 900TiB}}",
        "thesis/chapter.txt": "precious",
        "extension/manifest.json": '{"manifest_version": 3, "extensions": []}',
        "bytes/a.bin": "x" * (1 << 20),
    }
    for name, text in files.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    (home / "empty").mkdir()
    (home / "link").symlink_to("/")
    printed("generate demo.yaml --to data", cwd=home)
    columns = "--set format=parquet --set content=raw --set columns=10 --set sample_size.mean=2000"
    printed(f"generate demo.yaml --to columns {columns}", cwd=home)
    shutil.copytree(home / "data", home / "half")
    (home / "half/manifest.json").unlink()
    printed("scan bytes --save scanned.yaml", cwd=home)
    return home


@pytest.fixture
def data(workplace: Path, tmp_path: Path) -> Path:
    """A complete dataset that the test may spoil."""
    shutil.copytree(workplace / "data", tmp_path / "data")
    return tmp_path / "data"


# A table of mistakes

NUMBERS = {
    "generate demo --to new --size": "0 NaN -inf 9e30",
    "generate demo --to new --samples": "1.5 1e400 99999999999",
    "generate demo --to new --memory-multiple": "-1 NaN",
    "generate demo --to new --seed": "abc 99999999999999999999",
    "generate demo --to new --set sample_size.mean": "0 1e400",
    "generate demo --to new --set shard_size": "0 9e30",
    f"run demo --data data {QUICK} --accelerators": "61",
    f"run demo --data data {QUICK} --repeat": "0",
    f"run demo --data data {QUICK} --calibration": "-1 inf",
    "probe bytes --request": "128MiB 4KiB,4KiB 4KiB,many",
    "probe bytes --max-in-flight": "1000",
    "probe bytes --budget": "10ms 2h",
    "check empty --budget": "9s soon",
    "sweep ./tiny.yaml --to new --sweep loader.workers=1,2 --data-budget": "1kB",
    "sweep ./tiny.yaml --to new --sweep loader.workers=1,2 --instance": "no-such.type",
}
"""Values that make no sense, by the flag or the setting that gets them."""

LOADER = "--loader tests.planted_loaders:of_files"
COMMANDS = f"""
generate demo --to link --samples 3
generate demo --to demo.yaml --samples 3
generate demo --to demo.yaml/below --samples 3
generate demo --to s3://bucket --samples 2
generate demo --to throttled+/tmp/x?bandwidth=1MB:// --samples 2
clean extension
clean scanned.manifest
clean /
run demo --data data {QUICK} --fail-on=wall_s<nan
run demo --data data {QUICK} --set reader.tail=drop --set batch_size=100
run demo --data data {QUICK} --set loader.kind=torch-map --set reader.direct=true
run demo --data columns {QUICK} --set loader.kind=webdataset
run demo --data columns {QUICK} --set reader.columns=50
run demo --data columns {QUICK} --set reader.mmap=true --set reader.direct=true
run demo --data columns {QUICK} --set reader.columns=3 --set reader.check=content
run tiny.yaml --data scanned.manifest --origin bytes {QUICK} --set reader.check=content
run demo --data nfs://
run demo --data file+data
run demo --data data --headspace
run demo --data throttled+data?bandwidth=1GB --loader a:b
run demo --data data {LOADER} --loader-args typo
run demo --data data {LOADER} --loader-args unknown=1
run demo --data data {LOADER} --find-max
run demo --data data {LOADER} --headspace --checkpoint resnet50 --checkpoint-to new
run demo --data data {LOADER} --headspace --fail-on samples_per_s<1
run demo --data data --log-file thesis
run demo --data data --log-file no/log
plan .
probe bytes/a.bin
probe bytes --origin elsewhere
check demo.yaml
check nosuch+storage
checkpoint llama3-8b --to new --writer torch --set concurrency=2
checkpoint llama3-1t --to new --ranks 1
sweep walk.yaml
sweep walk.yaml --to new --data data
sweep walk.yaml --data data --one-at-a-time
verify /dev/null
generate demo --to new --samples 9999999999
generate huge.yaml --to new
"""
"""Each ends with 2: the command itself is wrong, or what it names is not there or has no room."""

PLACES = f"""
run demo --data extension
run demo --data half {QUICK}
run resnet50-h100 --data data {QUICK}
verify extension
verify half
verify /
"""
"""Each ends with 1: what it names is there, and is something else."""


@pytest.mark.parametrize(
    ("code", "command"),
    [
        *((2, f"{flag}={value}") for flag, values in NUMBERS.items() for value in values.split()),
        *((2, line) for line in COMMANDS.splitlines() if line),
        *((1, line) for line in PLACES.splitlines() if line),
    ],
    ids=lambda value: str(value).replace(f" {QUICK}", ""),
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    code: int, command: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace)
    before = tree(workplace)
    line = refused(command, code=code)
    assert "Traceback" not in line
    assert "Permission" not in line
    assert tree(workplace) == before


@pytest.mark.parametrize("setting", ["accelerator.kind=null", "loader.transport=null"])
def test_the_name_null_can_be_given(setting: str) -> None:
    """``iobench list accelerators`` offers ``null``; on the command line it is a name, whatever
    YAML makes of the word.
    """
    assert printed(f"plan demo --set {setting}")


def test_targets_that_are_refused() -> None:
    targets = ["/", "//", "/.", "/home", "/root", "~", "/tmp", "/dev/null", "/dev/shm"]
    targets += ["/proc", "/sys/x", "/usr/x", "/etc/x"]
    for target in targets + _block_devices():
        refused("generate demo --samples 2 --to", target)


def _block_devices() -> list[str]:
    """Some nodes of block devices, where there are any: each has its own refusal."""
    return [
        str(path) for path in sorted(Path("/dev").iterdir()) if stat.S_ISBLK(path.stat().st_mode)
    ][:4]


# Files that are not what they should be


def test_a_shard_is_gone_or_shorter(data: Path, tmp_path: Path) -> None:
    shard = max((data / "data").iterdir())
    shard.write_bytes(shard.read_bytes()[:-4096])
    for _ in range(2):
        assert shard.name in refused(f"run demo --data {data} {QUICK}", code=1, cwd=tmp_path)
        shard.unlink(missing_ok=True)
    assert not (tmp_path / "results").exists()


def test_the_current_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert main(["plan", "demo"]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "current directory" in told.err


def test_a_link_to_nothing_in_place_of_results_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(IobenchError, match=f"the link {tmp_path}/link points to"):
        new_directory(tmp_path / "link", "run")


def test_a_file_in_place_of_a_dataset_is_not_said_to_be_generated(workplace: Path) -> None:
    told = refused("verify bytes/a.bin", cwd=workplace)
    assert "scan its folder: iobench scan" in told
    assert "generate" not in told
