"""``python -m tools.environments``: install iobench into empty environments, and use it there.

Without more words, each extra is installed alone, its packages are imported, and the plug-ins that
need it are loaded. ``--lowest`` installs the oldest version of each dependency that pyproject.toml
allows, and runs the tests that are named. ``--python 3.13`` tries another Python, without torch.

torch is the one of this environment, since it has gigabytes; its own oldest version is not tried.
It lies outside of the folder into which uv installs, and uv is told to leave it out: an installer
that finds a link where it writes would write through it, into this environment. Everything else
comes from the package index, by uv.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
DEVELOPMENT = "dev"

TESTERS = (
    "pytest",
    "pytest-timeout",
    "pytest-rerunfailures",
    "pytest-benchmark",
    "hypothesis",
    "jsonschema",
    "pillow",
)
"""What the tests themselves need, at the versions of constraints.txt, beside what is tried."""

USE = """
import importlib, sys
from importlib.metadata import packages_distributions
from iobench.checkpoint import WRITERS
from iobench.data.formats import FORMATS
from iobench.load.libraries import LOADERS
from iobench.serve.loaders import MODEL_LOADERS
from iobench.storage import STORAGE
extra, *names = sys.argv[1:]
spelled = lambda name: name.lower().replace("_", "-").replace(".", "-")
modules = {}
for module, packages in packages_distributions().items():
    for package in packages:
        modules.setdefault(spelled(package), []).append(module)
for name in names:
    public = [each for each in modules.get(name, []) if not each.startswith("_")]
    for module in sorted(public, key=lambda each: (spelled(each) != name, each))[:1]:
        importlib.import_module(module)
for registry in (STORAGE, FORMATS, LOADERS, WRITERS, MODEL_LOADERS):
    for name, plug_in in registry.entries().items():
        if plug_in.extra == extra:
            registry.load(name)
            print(registry.kind, name)
"""
"""Imports the packages of an extra, and loads each plug-in that needs it."""

WITHOUT_TORCH = (
    "--version",
    "list workloads",
    "size unet3d-h100 --accelerators 8",
    "report {root}/results/reference/storage-bound --details",
    "cost {root}/results/reference/run --instance g5.xlarge --epochs 90",
    "generate demo --to d --samples 64 --quiet",
    "verify d --quiet",
    "clean d --quiet",
)
"""Commands that need no torch."""


def uv(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "uv", "-q", *map(str, words)], check=True, timeout=900)


def environment(folder: Path, python: str = "") -> Path:
    """Make an empty environment, which sees this one's torch where it fits; return its python."""
    uv("venv", "-p", python or sys.executable, folder)
    if not python:
        seen = folder / "torch-of-another-environment"
        seen.mkdir()
        torch = distribution("torch")
        for top in {file.parts[0] for file in torch.files or ()} - {"..", "__pycache__"}:
            (seen / top).symlink_to(Path(str(torch.locate_file(top))))
        (site,) = (folder / "lib").glob("*/site-packages")
        (site / "torch.pth").write_text(f"{seen}\n")
    return folder / "bin" / "python"


def install(python: Path, *what: str | Path) -> None:
    """Install packages, and what they need but torch, into the environment of ``python``.

    Raises subprocess.CalledProcessError, and SystemExit if torch came along all the same.
    """
    environment_of = python.parent.parent
    overrides = environment_of / "overrides.txt"
    overrides.write_text("torch; sys_platform == 'never'\n")
    uv("pip", "install", "-p", python, "--override", overrides, *what, *needs_of_torch())
    if list((environment_of / "lib").glob("*/site-packages/torch")):
        sys.exit("torch was installed, although it was to be left out")


def needs_of_torch() -> list[str]:
    """What torch here says that it needs."""
    stated = map(Requirement, distribution("torch").requires or ())
    return [
        f"{each.name}{each.specifier}"
        for each in stated
        if each.marker is None or each.marker.evaluate({"extra": ""})
    ]


def names_of(requirements: Sequence[str]) -> list[str]:
    return [Requirement(text).name.lower().replace("_", "-") for text in requirements]


def try_extra(extra: str, wheel: Path, folder: Path) -> str:
    """What happened to an extra in an environment of its own."""
    python = environment(folder)
    try:
        install(python, f"{wheel}[{extra}]")
    except subprocess.CalledProcessError:
        return "can't be installed"
    used = subprocess.run(
        [python, "-c", USE, extra, *names_of(EXTRAS[extra])],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if used.returncode:
        return f"fails: {used.stderr.strip().splitlines()[-1]}"
    return ", ".join(["works", *used.stdout.splitlines()])


def try_python(version: str, wheel: Path, folder: Path) -> str:
    """What happened to the commands without torch on another Python."""
    python = environment(folder, version)
    install(python, wheel)
    for words in WITHOUT_TORCH:
        command = [python, "-m", "iobench", *words.format(root=ROOT).split()]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            return f"iobench {words}: {done.stderr.strip()}"
    return f"works, as far as {len(WITHOUT_TORCH)} commands without torch tell"


def try_lowest(tests: Sequence[str], folder: Path) -> int:
    """Run tests with the oldest dependencies; return the exit code of pytest."""
    python = environment(folder)
    plain = [text for text in PROJECT["dependencies"] if Requirement(text).name != "torch"]
    optional = [text for extra in ("s3", "hdf5", "lmdb", "checkpoint") for text in EXTRAS[extra]]
    needs = folder / "needs.in"
    needs.write_text("\n".join([*plain, *optional]))
    pinned = folder / "needs.txt"
    uv("pip", "compile", "-p", python, "--resolution", "lowest-direct", needs, "-o", pinned)
    install(python, "-r", pinned)
    install(python, *TESTERS)
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "fast", *tests)
    return subprocess.run([python, *words], cwd=ROOT, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--python", help="try this Python instead of extras")
    parser.add_argument("--lowest", action="store_true", help="try the oldest dependencies")
    parser.add_argument("names", nargs="*", help="extras; with --lowest, files of tests")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="iobench-environments-") as place:
        folder = Path(place)
        if args.lowest:
            return try_lowest(args.names or ["tests/e2e/test_every_verb.py"], folder / "env")
        uv("build", "--wheel", "-o", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        if args.python:
            told = {args.python: try_python(args.python, wheel, folder / "env")}
        else:
            extras = args.names or [extra for extra in EXTRAS if extra != DEVELOPMENT]
            told = {}
            for extra in extras:
                told[extra] = try_extra(extra, wheel, folder / extra)
                print(f"{extra:20} {told[extra]}", flush=True)
        if args.python:
            print(*told.items())
    return int(not all(text.startswith("works") for text in told.values()))


if __name__ == "__main__":
    sys.exit(main())
