"""GitHub's runner, as far as the action of this repository needs it: step after step."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import yaml

ROOT = Path(__file__).resolve().parents[1]
ACTION = ROOT / "action.yml"


@dataclass
class Ended:
    """How a job ended: its exit code, outputs, summary, and what its steps printed."""

    code: int = 0
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    printed: str = ""
    kept: list[str] = field(default_factory=list)


def run_action(
    folder: Path,
    inputs: dict[str, str],
    *,
    skip: tuple[str, ...] = (),
    only: str = "",
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Ended:
    """Run the action in ``folder`` as a job would. ``skip``: names of steps that are left out.
    ``only``: the only step that is run. ``variables``: of the job, beside GitHub's.

    An action that a step uses is not run; what would be uploaded is in ``kept``.
    """
    action = yaml.safe_load(ACTION.read_text("utf-8"))
    known = {name: str(each.get("default", "")) for name, each in action["inputs"].items()}
    assert inputs.keys() <= known.keys()
    values = {f"inputs.{name}": value for name, value in {**known, **inputs}.items()}
    files = {name: folder / f"runner-{name}" for name in ("OUTPUT", "STEP_SUMMARY", "PATH")}
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
        **{f"GITHUB_{name}": str(file) for name, file in files.items()},
        "GITHUB_ACTION_PATH": str(ROOT),
        "RUNNER_TEMP": str(folder),
        **variables,
    }
    ended = Ended()
    files["STEP_SUMMARY"].touch()
    for step in action["runs"]["steps"]:
        if step["name"] in skip or step["name"] != (only or step["name"]):
            continue
        if "uses" in step:
            ended.kept.append(filled(step["with"]["path"], values))
            continue
        for name in ("OUTPUT", "PATH"):
            files[name].write_text("")
        own = {name: filled(text, values) for name, text in step.get("env", {}).items()}
        shell = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"])
        done = subprocess.run(
            shell,
            cwd=folder,
            env={**environment, **own},
            capture_output=True,
            text=True,
            check=False,
        )
        ended.printed += done.stdout + done.stderr
        for line in files["OUTPUT"].read_text().splitlines():
            key, _, value = line.partition("=")
            values[f"steps.{step['id']}.outputs.{key}"] = value
        environment["PATH"] = os.pathsep.join(
            [*files["PATH"].read_text().splitlines(), environment["PATH"]]
        )
        if done.returncode:
            ended.code = done.returncode
            break
    ended.summary = files["STEP_SUMMARY"].read_text()
    ended.outputs = {
        name: filled(each["value"], values) for name, each in action["outputs"].items()
    }
    return ended


def filled(text: str, values: dict[str, str]) -> str:
    """The text with its expressions replaced; what a step has not stated is empty."""
    return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: values.get(found[1], ""), text)
