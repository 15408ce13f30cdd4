"""A release agrees with itself: its versions, dependencies, workflows and citation."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import iobench

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CONDA = {"torch": "pytorch", "xxhash": "python-xxhash"}
"""Distributions whose conda packages have other names."""


def loaded(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_every_place_has_the_version() -> None:
    assert loaded("CITATION.cff")["version"] == iobench.__version__
    assert loaded("deploy/conda/recipe.yaml")["context"]["version"] == iobench.__version__
    assert f"## {iobench.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_conda_recipe_has_the_dependencies_of_the_package() -> None:
    wanted = {}
    for text in PROJECT["dependencies"]:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        wanted[CONDA.get(name, name)] = requirement.specifier
    listed = loaded("deploy/conda/recipe.yaml")["requirements"]["run"]
    listed.remove("__linux")
    found = {Requirement(line).name: Requirement(line).specifier for line in listed}
    assert found.pop("python") == PROJECT["requires-python"]
    assert found == wanted


def test_a_workflow_tries_each_python_that_the_package_names() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert loaded(".github/workflows/test.yml")["jobs"]["fast"]["strategy"]["matrix"] == {
        "python": named
    }
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_only_the_job_that_publishes_may_ask_for_an_identity() -> None:
    workflow = loaded(".github/workflows/publish.yml")
    assert workflow["permissions"] == {"contents": "read"}
    assert {name: job.get("permissions") for name, job in workflow["jobs"].items()} == {
        "build": None,
        "publish": {"id-token": "write"},
    }
    assert workflow["jobs"]["publish"]["steps"][-1]["with"]["attestations"] is True


WORKFLOWS = ".github/workflows/test.yml", ".github/workflows/publish.yml"


@pytest.mark.parametrize(
    ("schema", "names"),
    [("github-workflows", WORKFLOWS), ("citation-file-format", ("CITATION.cff",))],
)
def test_a_file_for_others_is_as_their_schema_demands(schema: str, names: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    command += ["--default-filetype", "yaml", *names]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_program_that_builds_conda_packages_reads_the_recipe() -> None:
    import rattler_build

    recipe = rattler_build.Stage0Recipe.from_file(ROOT / "deploy/conda/recipe.yaml")
    (rendered,) = recipe.render(rattler_build.VariantConfig())
    assert rendered.recipe.package.name == "iobench"
