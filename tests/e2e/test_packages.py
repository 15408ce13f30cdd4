"""The wheel and the source distribution install into an empty environment, and work from there."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.actions import run_action
from tests.environments import empty_environment, link_dependencies, run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it alone."""
    folder = tmp_path_factory.mktemp("packages")
    checkout = folder / "checkout"
    listed = run("git", "ls-files", "-z", "-co", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)
    run(sys.executable, "-m", "build", "--outdir", folder, checkout, cwd=folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def test_the_source_distribution_has_what_the_tests_need(packages: tuple[Path, Path]) -> None:
    with tarfile.open(packages[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE"} <= names
    for folder in ("iobench", "workloads", "datasets", "tests", "docs"):
        tracked = run("git", "ls-files", "-z", folder, cwd=ROOT).split("\0")
        missing = {name for name in tracked if name and (ROOT / name).is_file()} - names
        assert not missing


def test_an_index_would_take_both(packages: tuple[Path, Path]) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *packages, cwd=ROOT)


def test_the_wheel_has_the_package_and_its_data(packages: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(packages[1]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "iobench").rglob("*.py")}
    expected.add("iobench/py.typed")
    for folder in ("workloads", "datasets"):
        expected |= {f"iobench/{folder}/{path.name}" for path in (ROOT / folder).iterdir()}
    assert expected <= names
    assert {name.partition("/")[0] for name in names} == {"iobench"}


def test_the_container_builds_the_same_wheel(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """From the files that the Dockerfile copies, and from no other."""
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (.+) (/src/\S*)$", text, re.MULTILINE)
    for names, place in copied:
        for name in names.split():
            source, target = ROOT / name, tmp_path / place.lstrip("/")
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
    wheels = tmp_path / "wheels"
    run(
        sys.executable, "-m", "build", "--wheel", "--outdir", wheels, tmp_path / "src", cwd=tmp_path
    )
    (wheel,) = wheels.glob("*.whl")
    assert contents(wheel) == contents(packages[1])


def contents(wheel: Path) -> dict[str, int]:
    """The name and the CRC of each file; RECORD lists them in the order of the file system."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            each.filename: each.CRC for each in archive.infolist() if "RECORD" not in each.filename
        }


def test_what_the_container_installs_is_there() -> None:
    """Its extras are those that pyproject.toml names."""
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    known = {
        canonicalize_name(each)
        for each in distribution("iobench").metadata.get_all("Provides-Extra")
    }
    assert set(extras.split(",")) <= known


def test_the_demo_runs_with_the_stated_dependencies_alone(
    packages: tuple[Path, Path], tmp_path: Path
) -> None:
    commands = empty_environment(tmp_path / "env")
    run(commands / "pip", "install", "-q", "--no-index", packages[1], cwd=tmp_path)
    run(commands / "pip", "check", cwd=tmp_path)
    place = run(
        *(commands / "python", "-I", "-c", "import iobench; print(iobench.__file__)"), cwd=tmp_path
    )
    assert Path(place.strip()).is_relative_to(tmp_path / "env")
    shown = run(
        *(commands / "iobench", "demo", "--json", "--samples", "100", "--repeat", "1"),
        *("--calibration", "0s"),
        cwd=tmp_path,
    )
    assert json.loads(shown)["job"]["repetitions"]
    run(commands / "iobench", "clean", "demo-data", cwd=tmp_path)
    assert not (tmp_path / "demo-data").exists()


def test_the_action_installs_it(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """What it needs is linked afterwards: an installer must never write through a link."""
    offline = {"GITHUB_ACTION_PATH": str(packages[1]), "PIP_NO_DEPS": "1"}
    ended = run_action(tmp_path, {"command": "list"}, only="Install iobench", variables=offline)
    assert ended.code == 0, ended.printed
    link_dependencies(tmp_path / "iobench")
    assert "workloads" in run(tmp_path / "iobench/bin/iobench", "list", cwd=tmp_path)
