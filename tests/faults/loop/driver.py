"""Run a verb again and again, and let its 1st, 2nd, 3rd ... file operation fail, until none is left.

This process is started with ``shim.c`` preloaded (see ``start``); it imports iobench once and forks
for each attempt. After each attempt the scenario looks at what is on disk, and then gives the same
command again without a fault, which must succeed and lead to the same result as if nothing had
happened. What goes wrong is collected, and printed as one JSON document.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
_LAYOUT = struct.Struct("=qqqiiii1024s1024s")
_WRITE, _SYNC, _RENAME, _CREATE, _REMOVE = 1, 2, 4, 8, 16
_SHORT_WRITE, _KILL = 1000, 1001
_TIME_LIMIT_S = 180
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Kind:
    """One way to fail: what a system call answers, which calls, and whether later ones fail too."""

    name: str
    code: int
    mask: int
    sticky: bool = False

    @property
    def harmless(self) -> bool:
        """A short write is no error: the program writes the rest."""
        return self.code == _SHORT_WRITE


KINDS = (
    Kind("full-disk", errno.ENOSPC, _WRITE | _CREATE, sticky=True),
    Kind("write-error", errno.EIO, _WRITE),
    Kind("sync-error", errno.EIO, _SYNC),
    Kind("rename-error", errno.EIO, _RENAME),
    Kind("no-permission", errno.EACCES, _CREATE | _RENAME | _REMOVE),
    Kind("short-write", _SHORT_WRITE, _WRITE),
    Kind("killed", _KILL, _WRITE | _SYNC | _RENAME | _CREATE | _REMOVE),
)


class Shim:
    """The state that the preloaded library shares with all processes."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    def arm(self, kind: Kind, number: int, root: Path) -> None:
        text = os.fsencode(root)
        values = (0, number, 0, kind.code, kind.mask, kind.sticky, len(text), text, b"")
        self._map[:] = _LAYOUT.pack(*values)

    def disarm(self) -> tuple[int, str]:
        """How many operations failed, and the first of them."""
        found = _LAYOUT.unpack(self._map[:])
        self._map[8:16] = bytes(8)
        return found[2], found[8].rstrip(b"\0").decode(errors="replace")


def start(verb: str, *, stride: int = 1, kinds: str = "", limit_s: float = 3600) -> Report:
    """Compile the shim, and run this file with it. Raises RuntimeError where it fails itself."""
    with tempfile.TemporaryDirectory(prefix="loop-") as scratch:
        shim, state = Path(scratch) / "shim.so", Path(scratch) / "state"
        state.write_bytes(bytes(_LAYOUT.size))
        compiled = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(HERE / "shim.c"), "-ldl"]
        subprocess.run(compiled, check=True)
        environment = os.environ | {
            "LD_PRELOAD": str(shim),
            "IOBENCH_FAULT_STATE": str(state),
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(HERE.parent.parent.parent), os.environ.get("PYTHONPATH")])
            ),
        }
        command = [sys.executable, __file__, verb, "--stride", str(stride), "--scratch", scratch]
        done = subprocess.run(
            [*command, "--kinds", kinds],
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"the loop over {verb} failed: {done.stderr[-2000:]}")
    return Report(**json.loads(done.stdout))


@dataclass
class Report:
    """``injected``: attempts in which an operation failed; ``problems``: what should not be."""

    verb: str
    injected: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Scenario:
    """A verb and what must hold. All happens below ``home``; ``home/foreign`` is somebody else's."""

    verb = ""
    argv: tuple[str, ...] = ()

    def prepare(self, home: Path) -> None:
        """Before the fault: what the verb finds."""

    def after_fault(self, home: Path, code: int) -> Iterator[str]:
        """What is wrong after an attempt that ended with ``code``."""
        yield from ()

    def after_retry(self, home: Path) -> Iterator[str]:
        """What is wrong after the same command was given again without a fault."""
        yield from ()


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


def write_specs(home: Path, form: str = "tar") -> None:
    shards = "samples_per_shard: 4" if form != "files" else ""
    text = _DATASET.replace("FORMAT", form).replace("SHARDS", shards)
    (home / "small.yaml").write_text(text)
    (home / "small-run.yaml").write_text(_WORKLOAD)


def tree(folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Every file below, by its relative name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in without
    }


MARKER = ".iobench-dataset"
_DATED = (MARKER, "manifest.json")  # these hold the time at which they were made


class Generate(Scenario):
    verb = "generate"
    form = "tar"

    def __init__(self) -> None:
        self.argv = ("generate", "./small.yaml", "--to", "data", "--workers", "2", "--quiet")
        self.reference: dict[str, bytes] = {}

    def prepare(self, home: Path) -> None:
        write_specs(home, self.form)
        if not self.reference:
            with quiet():
                assert call(self.argv) == 0
            self.reference = tree(home / "data", without=_DATED)
            shutil.rmtree(home / "data")

    def after_fault(self, home: Path, code: int) -> Iterator[str]:
        if code != 0 and (home / "data/manifest.json").exists():
            with quiet():
                if call(("verify", "data")) != 0:
                    yield "it failed and left a manifest of a dataset that is not whole"

    def after_retry(self, home: Path) -> Iterator[str]:
        if tree(home / "data", without=_DATED) != self.reference:
            yield "the same command again made other bytes"
        (home / "data/mine.txt").write_text("mine")
        with quiet():
            code = call(("clean", "data"))
        left = sorted(tree(home / "data"))
        if code != 0 or left != ["mine.txt"]:
            yield f"clean ended with {code} and left {left}"


class GenerateFiles(Generate):
    verb = "generate-files"
    form = "files"


class Clean(Scenario):
    verb = "clean"
    argv = ("clean", "data")

    def prepare(self, home: Path) -> None:
        write_specs(home)
        with quiet():
            assert call(("generate", "./small.yaml", "--to", "data", "--workers", "1")) == 0
        (home / "data/mine.txt").write_text("mine")
        (home / "data/data/mine.txt").write_text("mine too")

    def after_fault(self, home: Path, code: int) -> Iterator[str]:
        left = sorted(tree(home / "data"))
        if code != 0 and MARKER not in left and left != ["data/mine.txt", "mine.txt"]:
            yield f"the marker is gone, and {left} can't be cleaned any more"

    def after_retry(self, home: Path) -> Iterator[str]:
        left = sorted(tree(home / "data"))
        if left != ["data/mine.txt", "mine.txt"]:
            yield f"{left} is left"


class Scan(Scenario):
    verb = "scan"
    argv = ("scan", "theirs", "--save", "mine.yaml", "--checksums")

    def prepare(self, home: Path) -> None:
        for number in range(6):
            path = home / "theirs" / f"{number}.bin"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes([number]) * 700)
        self.before = tree(home / "theirs")

    def after_fault(self, home: Path, code: int) -> Iterator[str]:
        if tree(home / "theirs") != self.before:
            yield "the scanned data was changed"

    def after_retry(self, home: Path) -> Iterator[str]:
        yield from self.after_fault(home, 0)
        with quiet():
            if call(("plan", "./small-run.yaml", "--data", "mine.manifest")) not in (0, 2):
                yield "the manifest can't be read"


class Run(Scenario):
    verb = "run"
    argv = (
        *("run", "./small-run.yaml", "--data", "data", "--repeat", "1"),
        *("--calibration-s", "0", "--results", "results"),
    )

    def prepare(self, home: Path) -> None:
        write_specs(home)
        with quiet():
            assert call(("generate", "./small.yaml", "--to", "data", "--workers", "1")) == 0
        self.before = tree(home / "data")

    def after_fault(self, home: Path, code: int) -> Iterator[str]:
        if tree(home / "data") != self.before:
            yield "the dataset was changed"
        for path in (home / "results").rglob("run.json"):
            status = json.loads(path.read_text())["status"]
            if code != 0 and status == "ok":
                yield f"it ended with {code}, and run.json says ok"

    def after_retry(self, home: Path) -> Iterator[str]:
        runs = [json.loads(path.read_text()) for path in (home / "results").rglob("run.json")]
        if not any(run["status"] == "ok" for run in runs):
            yield "the second run left no record that is ok"


class Checkpoint(Scenario):
    writer = "stream"

    def __init__(self) -> None:
        self.verb = f"checkpoint-{self.writer}"
        self.argv = (
            *("checkpoint", "llama3-8b", "--to", "ckpt", "--scale", "1/500000", "--count", "2"),
            *("--writer", self.writer, "--results", "results", "--keep-data"),
        )

    def after_fault(self, home: Path, code: int) -> Iterator[str]:
        for path in (home / "ckpt").glob("step-*/checkpoint.json"):
            found = json.loads(path.read_text())
            sizes = {name: size for part in found["parts"] for name, size in part["files"].items()}
            for name, size in sizes.items():
                file = path.parent / name
                if not file.exists() or file.stat().st_size != size:
                    yield f"{path.parent.name} is committed, and {name} is not whole"
        for path in (home / "results").rglob("run.json"):
            if code != 0 and json.loads(path.read_text())["status"] == "ok":
                yield f"it ended with {code}, and run.json says ok"

    def after_retry(self, home: Path) -> Iterator[str]:
        (home / "ckpt/mine.txt").write_text("mine")
        with quiet():
            code = call(("clean", "ckpt"))
        left = sorted(tree(home / "ckpt"))
        if code != 0 or left != ["mine.txt"]:
            yield f"clean ended with {code} and left {left}"


class CheckpointTorch(Checkpoint):
    writer = "torch"


class CheckpointSafetensors(Checkpoint):
    writer = "safetensors"


class CheckpointDcp(Checkpoint):
    writer = "dcp"


class CheckpointDcpAsync(Checkpoint):
    writer = "dcp-async"


class Sweep(Scenario):
    verb = "sweep"
    argv = (
        *("sweep", "./small-run.yaml", "--data-root", "swept", "--samples", "12", "--repeat", "1"),
        *("--sweep", "reader.concurrency=1,2", "--calibration-s", "0", "--results", "results"),
    )

    def prepare(self, home: Path) -> None:
        write_specs(home)

    def after_fault(self, home: Path, code: int) -> Iterator[str]:
        for path in (home / "results").rglob("sweep.json"):
            status = json.loads(path.read_text())["status"]
            if code not in (0, 1) and status == "ok":
                yield f"it ended with {code}, and sweep.json says ok"

    def after_retry(self, home: Path) -> Iterator[str]:
        left = [name for name in tree(home / "swept") if not name.startswith(".")]
        if left and any("manifest.json" in name for name in left):
            yield f"the second sweep left {left[:5]}"


SCENARIOS: dict[str, type[Scenario]] = {
    scenario().verb: scenario
    for scenario in (
        *(Generate, GenerateFiles, Clean, Scan, Run, Sweep),
        *(Checkpoint, CheckpointTorch, CheckpointSafetensors, CheckpointDcp, CheckpointDcpAsync),
    )
}


class quiet:  # noqa: N801
    """Neither stdout nor stderr of what runs inside is shown."""

    def __enter__(self) -> None:
        sys.stdout.flush()
        self._saved = [os.dup(1), os.dup(2)]
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        for number, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, number)
            os.close(saved)


def call(argv: tuple[str, ...]) -> int:
    """The verb in a process of its own; its exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            from iobench.cli.main import main

            code = main(list(argv))
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            sys.stdout.flush()
            os._exit(code)
    deadline = time.monotonic() + _TIME_LIMIT_S
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -99


def reap() -> str:
    """Wait for what an attempt has left running; '' once nobody is left."""
    deadline = time.monotonic() + 60
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    return "a process was left"
                time.sleep(0.005)
        except ChildProcessError:
            return ""


def attempt(scenario: Scenario, shim: Shim, kind: Kind, number: int, home: Path) -> Iterator[str]:
    """One fault and what follows; yields problems, and returns through ``attempt.fired``."""
    scenario.prepare(home)
    foreign = home.parent / "foreign"
    foreign.mkdir(exist_ok=True)
    (foreign / "precious").write_text("precious")
    with (home.parent / "out").open("w+b") as out:
        sys.stdout.flush()
        saved = [os.dup(1), os.dup(2)]
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        shim.arm(kind, number, home)
        code = call(scenario.argv)
        orphan = reap()
        fired, what = shim.disarm()
        for stream, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, stream)
            os.close(copy)
    attempt.fired = fired  # type: ignore[attr-defined]
    if not fired:
        if code != 0:
            yield f"it ended with {code} although nothing failed"
        return
    said = (home.parent / "out").read_text(errors="replace")
    where = f"after {kind.name} {number} ({what})"
    if orphan:
        yield f"{where}: {orphan}"
    if "Traceback" in said or code in (70, 99):
        yield f"{where}: a traceback: {' '.join(said.split())[-300:]}"
    if kind.harmless and code != 0:
        yield f"{where}: it ended with {code}: {said.strip()[-200:]}"
    if code not in (0, 1, 2) and not (kind.code == _KILL and code == -signal.SIGKILL):
        yield f"{where}: it ended with {code}: {said.strip()[-200:]}"
    for problem in scenario.after_fault(home, code):
        yield f"{where}: {problem}"
    with (home.parent / "again").open("w+b") as out:
        saved = [os.dup(1), os.dup(2)]
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        again = call(scenario.argv)
        for stream, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, stream)
            os.close(copy)
    if again != 0 and not (scenario.verb == "clean" and code == 0):
        said = (home.parent / "again").read_text(errors="replace")
        yield f"{where}: the same command again ended with {again}: {said.strip()[-200:]}"
    else:
        for problem in scenario.after_retry(home):
            yield f"{where}: {problem}"
    if (foreign / "precious").read_text() != "precious" or len(list(foreign.iterdir())) != 1:
        yield f"{where}: somebody else's files were touched"
    if left := [path.name for path in (home / "tmp").iterdir()]:
        yield f"{where}: temporary files are left: {left[:3]}"


def loop(verb: str, shim: Shim, scratch: Path, stride: int, wanted: set[str]) -> Report:
    report = Report(verb)
    scenario = SCENARIOS[verb]()
    for kind in KINDS:
        if wanted and kind.name not in wanted:
            continue
        number = 1
        while True:
            home = scratch / "home"
            shutil.rmtree(home, ignore_errors=True)
            (home / "tmp").mkdir(parents=True)
            os.chdir(home)
            os.environ["TMPDIR"] = tempfile.tempdir = str(home / "tmp")
            report.problems += attempt(scenario, shim, kind, number, home)
            if not attempt.fired:  # type: ignore[attr-defined]
                break
            report.injected += 1
            report.by_kind[kind.name] = report.by_kind.get(kind.name, 0) + 1
            number += stride
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=sorted(SCENARIOS))
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--scratch", type=Path, required=True)
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    import iobench.cli.main  # noqa: F401
    import iobench.run.runner  # noqa: F401

    shim = Shim(args.scratch / "state")
    wanted = set(filter(None, args.kinds.split(",")))
    print(json.dumps(asdict(loop(args.verb, shim, args.scratch, args.stride, wanted))))


if __name__ == "__main__":
    main()
