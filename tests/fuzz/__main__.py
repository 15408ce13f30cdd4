"""Fuzz: ``python -m tests.fuzz --minutes 10 [--target NAME ...] [--json] [--keep]``.

Each target gets an equal share of the time, in a process of its own, two at a time. Inputs that
crash are saved as ``tests/corpus/TARGET/crash-HASH``, which is a test from then on; then the exit
code is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CORPUS = ROOT / "tests/corpus"
AT_ONCE = 2
LIMITS = ("-rss_limit_mb=1024", "-timeout=20")
"""What one input may take. iobench with torch has about 400 MiB before any input."""

MIN_SECONDS = 5
"""A target's share at least, or nothing but imports would be run."""

MAX_CRASHES = 3
"""A target is left alone after so many: the first ones hide the others."""

GRACE_S = 120
"""Imports, the seeds and the last input, on a busy machine."""

_COVERAGE = re.compile(r"cov: (\d+) ft: (\d+)")
_UNITS = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_RAN = re.compile(r"^#(\d+)\s", re.MULTILINE)


@dataclass
class Result:
    """What became of one target. ``features`` are libFuzzer's; None where it tells none."""

    target: str
    executions: int = 0
    features: int | None = None
    seconds: float = 0.0
    crashes: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)  # of each crash, one line


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if importlib.util.find_spec("atheris") is None:
        print(
            "atheris is not installed, so nothing is fuzzed: it has wheels for Python 3.11 to 3.13 "
            "on x86-64 Linux; install it: pip install atheris==3.0.0",
            file=sys.stderr,
        )
        return 2
    names = args.target or sorted(_known())
    if unknown := sorted(set(names) - _known()):
        print(f"no target '{unknown[0]}'; known: {', '.join(sorted(_known()))}", file=sys.stderr)
        return 2
    share = max(MIN_SECONDS, args.minutes * 60 * min(AT_ONCE, len(names)) / len(names))
    with (
        tempfile.TemporaryDirectory(prefix="iobench-fuzz-") as scratch,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        fuzz = partial(_fuzz, seconds=share, scratch=Path(scratch), keep=args.keep)
        results = []
        for result in threads.map(fuzz, names):
            results.append(result)
            if not args.json:
                _print(result, first=len(results) == 1)
    if args.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    return 1 if any(result.crashes for result in results) else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="for all targets together")
    parser.add_argument("--target", action="append", metavar="NAME", help="this one; repeatable")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--keep", action="store_true", help="add inputs that reach new code to tests/corpus"
    )
    return parser.parse_args(argv)


def _known() -> set[str]:
    from tests.fuzz.targets import TARGETS

    return set(TARGETS)


def _print(result: Result, *, first: bool) -> None:
    if first:
        print(f"{'target':<22}{'executions':>12}{'features':>10}{'seconds':>9}{'crashes':>9}")
    features = "?" if result.features is None else result.features
    print(
        f"{result.target:<22}{result.executions:>12}{features:>10}{result.seconds:>9.0f}"
        f"{len(result.crashes):>9}",
        flush=True,
    )
    for path, why in zip(result.crashes, result.why, strict=True):
        print(f"  {path}: {why}", flush=True)


def _fuzz(name: str, *, seconds: float, scratch: Path, keep: bool) -> Result:
    """One target for so many seconds, begun again after each crash."""
    result, begun = Result(name), time.monotonic()
    home = scratch / name
    found, crashed = home / "found", home / "crashed"
    for folder in (found, crashed):
        folder.mkdir(parents=True)
    seeds = [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
    while len(result.crashes) < MAX_CRASHES:
        left = seconds - (time.monotonic() - begun)
        if left < min(MIN_SECONDS, seconds / 2):
            break
        output = _child(
            name,
            [
                *LIMITS,
                f"-max_total_time={max(1, int(left))}",
                "-print_final_stats=1",
                f"-artifact_prefix={crashed}/",
                str(found),
                *seeds,
            ],
            home,
            timeout_s=left + GRACE_S,
        )
        result.executions += _executions(output)
        if features := _COVERAGE.findall(output):
            result.features = max(result.features or 0, int(features[-1][1]))
        new = [path for path in crashed.iterdir() if path.is_file()]
        if not new:
            if "Done " not in output:
                result.crashes.append("(none)")
                result.why.append(f"it ended without a result: {_last(output)}")
            break
        for path in new:
            _save(name, path, output, result)
    result.seconds = time.monotonic() - begun
    if keep and not result.crashes:
        _merge(name, found, home)
    return result


def _child(name: str, options: list[str], home: Path, *, timeout_s: float) -> str:
    """The output of ``tests.fuzz.child``; its temporary files are in ``home``."""
    program = home / "program"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.fuzz.child {name} "$@"\n')
    program.chmod(0o755)
    temporary = home / "tmp"
    temporary.mkdir(exist_ok=True)
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    settings = {
        **os.environ,
        "TMPDIR": str(temporary),
        "IOBENCH_FUZZ_PROGRAM": str(program),
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.child", name, *options],
            cwd=ROOT,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
        )
        return done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(errors="replace")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _executions(output: str) -> int:
    """What libFuzzer says at its end; where it was killed, what it said last."""
    told = _UNITS.findall(output) or _RAN.findall(output)
    return int(told[-1]) if told else 0


def _save(name: str, path: Path, output: str, result: Result) -> None:
    """Keep an input that crashed."""
    import hashlib

    data = path.read_bytes()
    path.unlink()
    folder = CORPUS / name
    folder.mkdir(exist_ok=True)
    kept = folder / f"crash-{hashlib.sha256(data).hexdigest()[:12]}"
    kept.write_bytes(data)
    result.crashes.append(str(kept.relative_to(ROOT)))
    result.why.append(_why(output))


def _why(output: str) -> str:
    """The line that tells of a crash: an exception's, or libFuzzer's own."""
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if "Uncaught Python exception" in line:
            for text in lines[number + 1 :]:
                if re.match(r"[A-Za-z_.]+(Error|Exception|Refused|Interrupt)\b", text):
                    return text[:200]
    told = [line for line in lines if "ERROR: libFuzzer" in line]
    return f"({told[0].strip()[:200]})" if told else f"({_last(output)})"


def _last(output: str) -> str:
    return next((line for line in reversed(output.splitlines()) if line.strip()), "no output")[:200]


def _merge(name: str, found: Path, home: Path) -> None:
    """Add to the corpus what reaches code that its own inputs do not."""
    merged = home / "merged"
    shutil.copytree(CORPUS / name, merged) if (CORPUS / name).is_dir() else merged.mkdir()
    before = {path.name for path in merged.iterdir()}
    _child(name, ["-merge=1", *LIMITS, str(merged), str(found)], home, timeout_s=10 * GRACE_S)
    (CORPUS / name).mkdir(exist_ok=True)
    for path in _new(merged, before):
        shutil.copy(path, CORPUS / name / f"seed-{path.name[:12]}")


def _new(folder: Path, before: set[str]) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.name not in before)


if __name__ == "__main__":
    sys.exit(main())
