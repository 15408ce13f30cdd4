"""The verbs that write: what they find, what must hold when they say ok, and how to clear up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from iobench.record.sweep import load_sweep


class Call(Protocol):
    """Gives a command in a process of its own; its exit status. ``said``: its output."""

    @property
    def said(self) -> str: ...

    def __call__(self, argv: tuple[str, ...]) -> int: ...


MARKER = ".iobench-dataset"
CHECKPOINTS = ".iobench-checkpoints"
_JOURNAL = ".iobench-journal"
DATED = (MARKER, "manifest.json")  # these hold the time at which they were made
_MAX_SECONDS = 1200.0  # any duration of a verb is below that, on a busy machine as well

_DATASET = """
name: small
description: A dataset of a few kilobytes.
source: Made for the tests.
samples: 12
sample_size: {distribution: constant, mean: 900}
format: FORMAT
content: raw
SHARDS
"""
_WORKLOAD = """
name: small
description: A run of a few steps.
source: Made for the tests.
dataset: ./small.yaml
accelerator: {kind: emulated, name: small, step_time: 1ms}
batch_size: 4
epochs: 1
cache: any
reader: {}
loader: {workers: 0}
"""


class Scenario:
    """A verb. All happens below ``home``, which is the current directory.

    ``foreign`` names the files below ``home`` that are somebody else's.
    """

    verb = ""
    argv: tuple[str, ...] = ()
    target = ""  # the folder that the verb writes into, and others may have files in
    marker = MARKER
    killed = False  # whether the attempt is one that is killed
    watched: tuple[Path, ...] = ()  # folders outside ``home`` where others have files

    def __init__(self, call: Call) -> None:
        self.call = call

    def must(self, argv: tuple[str, ...]) -> None:
        """Give a command that nothing keeps from success."""
        if code := self.call(argv):
            raise RuntimeError(f"{' '.join(argv)} ended with {code}: {self.call.said}")

    def prepare(self, home: Path) -> None:
        """Make what the verb finds; once, for all attempts."""

    def fresh(self) -> None:
        """Put back what lies outside ``home``."""

    def holds(self, home: Path, *, after_retry: bool) -> Iterator[str]:
        """What is wrong although the verb has ended with 0.

        ``after_retry``: nothing may be left of the attempt before.
        """
        yield from ()

    def after_failure(self, home: Path) -> Iterator[str]:
        """What is wrong after an attempt that did not end with 0."""
        yield from ()

    def plant(self, home: Path) -> None:
        """Put files of others in and beside the target, where it is marked as ours."""
        beside = home / "foreign"
        beside.mkdir(exist_ok=True)
        (beside / "precious").write_text("precious")
        target = home / self.target
        if self.target and (target / self.marker).exists():
            (target / "mine.txt").write_text("mine")
            if not (target / "link").is_symlink():
                (target / "link").symlink_to(beside)

    def is_done(self, home: Path) -> bool:
        """Whether the same command again has nothing to do, and may say so by an error."""
        return False

    def clear_up(self, home: Path) -> Iterator[str]:
        """The documented way to remove what was made; what it has left, or has taken of others."""
        yield from ()


def write_specs(home: Path, form: str = "tar") -> None:
    shards = "samples_per_shard: 4" if form != "files" else ""
    text = _DATASET.replace("FORMAT", form).replace("SHARDS", shards)
    (home / "small.yaml").write_text(text)
    (home / "small-run.yaml").write_text(_WORKLOAD)


def tree(folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Every regular file below, by its relative name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name not in without
    }


def is_foreign(name: str) -> bool:
    return Path(name).name in ("mine.txt", "link") or name.startswith("foreign")


def ours_in(folder: Path) -> list[str]:
    """What is left in a folder, empty folders included, but for what others have put there."""
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if not is_foreign(path.name)
    ]


def wrong_times(value: Any, where: str = "") -> Iterator[str]:
    """Durations and rates of a record that can't be: negative, or longer than the attempt."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from wrong_times(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from wrong_times(inner, where)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        timed = where.endswith("_s") or ".timings." in f".{where}."
        measured = any(part in f".{where}." for part in _MEASURED) and ".meaning." not in where
        if timed and measured and not 0 <= value < (_MAX_SECONDS if _is_time(where) else 1e15):
            yield f"{where} is {value}"


_MEASURED = (".timings.", ".saves.", ".restores.", ".repetitions.", ".points.", ".study.")


def _is_time(where: str) -> bool:
    return not where.endswith(("_per_s", "bytes_per_s"))


def recorded(results: Path) -> Iterator[str]:
    """What is wrong with the records of a verb that says ok."""
    records = [json.loads(path.read_text()) for path in results.rglob("run.json")]
    if not any(record["status"] == "ok" for record in records):
        yield "it says ok, and there is no record that is ok"
    for record in records:
        yield from wrong_times(record)


def not_whole(checkpoints: Path) -> Iterator[str]:
    """Files of committed checkpoints that are missing or have another size."""
    for path in checkpoints.glob("step-*/checkpoint.json"):
        for part in json.loads(path.read_text())["parts"]:
            for name, size in part["files"].items():
                file = path.parent / name
                if not file.exists() or file.stat().st_size != size:
                    yield f"{path.parent.name} is committed, and {name} is not whole"


def saved(checkpoints: Path, results: Path) -> Iterator[str]:
    """What is wrong with a study that says ok and was to keep its checkpoints."""
    yield from not_whole(checkpoints)
    if not list(checkpoints.glob("step-*/checkpoint.json")):
        yield "it says ok, and has kept no checkpoint"
    yield from recorded(results)


def cleaned(call: Call, place: str, left: Callable[[], list[str]]) -> Iterator[str]:
    """Give ``clean``; what is wrong afterwards. ``left`` names what is still there of ours."""
    code = call(("clean", place))
    found = left()
    if code != 0 or found:
        yield f"clean ended with {code} and left {found}"


class Generate(Scenario):
    verb = "generate"
    form = "tar"
    target = "data"

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.argv = ("generate", "./small.yaml", "--to", "data", "--workers", "2", "--quiet")
        self.reference: dict[str, bytes] = {}

    def prepare(self, home: Path) -> None:
        write_specs(home, self.form)
        self.must(self.argv)
        self.reference = tree(home / "data", without=DATED)
        self.must(("verify", "data"))
        self.must(("clean", "data"))

    def holds(self, home: Path, *, after_retry: bool) -> Iterator[str]:
        found = {
            name: data
            for name, data in tree(home / "data", without=DATED).items()
            if not is_foreign(name) and (after_retry or not name.startswith(_JOURNAL))
        }
        if found != self.reference:
            differ = {
                name
                for name in found | self.reference
                if found.get(name) != self.reference.get(name)
            }
            yield f"it says ok, and {sorted(differ)[:4]} differ"
        if self.call(("verify", "data")) != 0:
            yield "it says ok, and verify finds something"

    def after_failure(self, home: Path) -> Iterator[str]:
        if (home / "data/manifest.json").exists() and self.call(("verify", "data")) != 0:
            yield "it failed and left a manifest of a dataset that is not whole"

    def clear_up(self, home: Path) -> Iterator[str]:
        yield from cleaned(self.call, "data", lambda: ours_in(home / "data"))


class GenerateFiles(Generate):
    verb = "generate-files"
    form = "files"


class Clean(Scenario):
    verb = "clean"
    argv = ("clean", "data")
    target = "data"

    def prepare(self, home: Path) -> None:
        write_specs(home)
        self.must(("generate", "./small.yaml", "--to", "data", "--workers", "1"))

    def plant(self, home: Path) -> None:
        super().plant(home)
        if (home / "data/data").is_dir():
            (home / "data/data/mine.txt").write_text("mine too")

    def is_done(self, home: Path) -> bool:
        return not ours_in(home / "data") or ours_in(home / "data") == ["data"]

    def holds(self, home: Path, *, after_retry: bool) -> Iterator[str]:
        if not self.is_done(home):
            yield f"it says ok, and {ours_in(home / 'data')[:5]} are left"

    def after_failure(self, home: Path) -> Iterator[str]:
        if not (home / "data" / MARKER).exists() and not self.is_done(home):
            yield f"the marker is gone, and {ours_in(home / 'data')[:5]} can't be cleaned any more"


class Scan(Scenario):
    verb = "scan"
    argv = ("scan", "theirs", "--save", "mine.yaml", "--checksums")
    plan = ("plan", "./small-run.yaml", "--data", "mine.manifest", "--origin", "theirs")

    def prepare(self, home: Path) -> None:
        write_specs(home)
        for number in range(6):
            path = home / "theirs" / f"{number}.bin"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes([number]) * 700)
        self.before = tree(home / "theirs")
        self.must(self.argv)
        self.spec = (home / "mine.yaml").read_bytes()
        self.tables = tree(home / "mine.manifest", without=DATED)
        self.must(self.plan)
        (home / "mine.yaml").unlink()
        shutil.rmtree(home / "mine.manifest")

    def is_done(self, home: Path) -> bool:
        return (home / "mine.yaml").exists() and (home / "mine.manifest/manifest.json").exists()

    def holds(self, home: Path, *, after_retry: bool) -> Iterator[str]:
        yield from self.after_failure(home)
        if (home / "mine.yaml").read_bytes() != self.spec:
            yield "it says ok, and the spec is another"
        if tree(home / "mine.manifest", without=DATED) != self.tables:
            yield "it says ok, and the tables are others"
        if self.call(self.plan) != 0:
            yield "it says ok, and the manifest can't be read"
        known = {"mine.yaml", "mine.manifest", "small.yaml", "small-run.yaml", "theirs"}
        left = {path.name for path in home.iterdir()} - known - {"foreign", "tmp"}
        if after_retry and left:
            yield f"{sorted(left)} are left"

    def after_failure(self, home: Path) -> Iterator[str]:
        if tree(home / "theirs") != self.before:
            yield "the scanned data was changed"


class Run(Scenario):
    verb = "run"
    argv = (
        *("run", "./small-run.yaml", "--data", "data", "--repeat", "1"),
        *("--calibration", "0", "--results", "results", "--quiet"),
    )
    target = "data"
    can_fail_later = False  # once its record is written; it can be killed then, at its page

    def prepare(self, home: Path) -> None:
        write_specs(home)
        self.must(("generate", "./small.yaml", "--to", "data", "--workers", "1"))
        self.before = tree(home / "data")

    def holds(self, home: Path, *, after_retry: bool) -> Iterator[str]:
        yield from self._data(home)
        yield from recorded(home / "results")

    def after_failure(self, home: Path) -> Iterator[str]:
        yield from self._data(home)
        for path in (home / "results").rglob("run.json"):
            record = json.loads(path.read_text())
            whole = record["job"]["repetitions"] and record["metrics"]
            if record["status"] == "ok" and not (whole and (self.killed or self.can_fail_later)):
                yield "it did not end with 0, and run.json says ok"

    def _data(self, home: Path) -> Iterator[str]:
        now = {name: data for name, data in tree(home / "data").items() if not is_foreign(name)}
        if now != self.before:
            yield "the dataset was changed"


class RunWithSaves(Run):
    verb = "run-with-saves"
    argv = (
        *Run.argv,
        *("--checkpoint", "llama3-8b", "--checkpoint-scale", "1/500000"),
        *("--checkpoint-every", "2", "--checkpoint-to", "ckpt"),
    )
    can_fail_later = True  # where it removes its checkpoints

    def plant(self, home: Path) -> None:
        super().plant(home)
        if (home / "ckpt" / CHECKPOINTS).exists():
            (home / "ckpt/mine.txt").write_text("mine")

    def clear_up(self, home: Path) -> Iterator[str]:
        # Of a run that came to its end nothing is left, of one before that it did not remove all.
        if (home / "ckpt" / CHECKPOINTS).exists():
            yield from cleaned(self.call, "ckpt", lambda: ours_in(home / "ckpt"))
        elif left := ours_in(home / "ckpt"):
            yield f"the run has left {left}"


class Checkpoint(Scenario):
    verb = "checkpoint-stream"
    writer = "stream"
    target = "ckpt"
    marker = CHECKPOINTS

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.argv = (
            *("checkpoint", "llama3-8b", "--to", "ckpt", "--scale", "1/500000", "--repeat", "2"),
            *("--writer", self.writer, "--results", "results", "--keep-data", "--quiet"),
        )

    def prepare(self, home: Path) -> None:
        self.must(self.argv)  # so that all that is imported later is known
        shutil.rmtree(home / "ckpt")
        shutil.rmtree(home / "results")

    def holds(self, home: Path, *, after_retry: bool) -> Iterator[str]:
        yield from saved(home / "ckpt", home / "results")

    def after_failure(self, home: Path) -> Iterator[str]:
        yield from not_whole(home / "ckpt")

    def clear_up(self, home: Path) -> Iterator[str]:
        yield from cleaned(self.call, "ckpt", lambda: ours_in(home / "ckpt"))


class CheckpointTorch(Checkpoint):
    verb = "checkpoint-torch"
    writer = "torch"


class CheckpointSafetensors(Checkpoint):
    verb = "checkpoint-safetensors"
    writer = "safetensors"


class CheckpointDcp(Checkpoint):
    verb = "checkpoint-dcp"
    writer = "dcp"


class CheckpointDcpAsync(Checkpoint):
    verb = "checkpoint-dcp-async"
    writer = "dcp-async"


class Sweep(Scenario):
    verb = "sweep"
    argv = (
        *("sweep", "./small-run.yaml", "--to", "swept", "--samples", "12", "--repeat", "1"),
        *("--sweep", "reader.concurrency=1,2", "--calibration", "0", "--results", "results"),
        *("--budget", "15m", "--quiet"),
    )
    target = "swept"

    def prepare(self, home: Path) -> None:
        write_specs(home)
        (home / "swept").mkdir()
        (home / "swept/mine.txt").write_text("mine")
        self.must(self.argv)
        shutil.rmtree(home / "results")

    def holds(self, home: Path, *, after_retry: bool) -> Iterator[str]:
        sweeps = [load_sweep(file.parent) for file in (home / "results").rglob("sweep.json")]
        whole = [sweep for sweep in sweeps if sweep.status == "ok"]
        if not whole:
            yield f"it says ok, and no sweep is: {[sweep.status for sweep in sweeps]}"
        for point in (point for sweep in whole for point in sweep.points):
            if not point.figures and not point.failed:
                yield "it says ok, and neither measured a point nor said why"
        # A kill between mkdir and the marker leaves an empty folder that nobody can tell from a
        # user's own.
        left = list(tree(home / "swept")) if self.killed else ours_in(home / "swept")
        left = [name for name in left if not is_foreign(name)]
        if after_retry and left:
            yield f"the sweep has left {left[:5]}"


ALL: tuple[type[Scenario], ...] = (
    *(Generate, GenerateFiles, Clean, Scan, Run, RunWithSaves, Sweep),
    *(Checkpoint, CheckpointTorch, CheckpointSafetensors, CheckpointDcp, CheckpointDcpAsync),
)
