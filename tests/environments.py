"""Empty environments of Python, into which only what the package states is linked."""

from __future__ import annotations

import os
import subprocess
import tomllib
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]

TIME_LIMIT_S = 500
"""Of one command. The limit of pytest is not far above."""


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command in an environment that knows nothing of this checkout."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "IOBENCH", "VIRTUAL_ENV"))
    }
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=kept,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def needed(name: str, extras: Iterable[str] = ()) -> Iterator[Distribution]:
    """The distribution of this environment, and all that it says that it needs."""
    found = distribution(name)
    yield found
    for text in found.requires or ():
        wanted = Requirement(text)
        if wanted.marker is None or any(
            wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        ):
            yield from needed(wanted.name, wanted.extras)


def link_dependencies(folder: Path) -> set[str]:
    """Link what iobench states that it needs into the environment in ``folder``; their names.

    ``make setup`` has installed it with pip, which takes a minute for torch.
    """
    (site,) = (folder / "lib").glob("*/site-packages")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    stated = map(Requirement, project["dependencies"])
    dependencies = {part.name: part for each in stated for part in needed(each.name)}
    for each in dependencies.values():
        for top in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(each.locate_file(top))))
    return set(dependencies)


def empty_environment(folder: Path) -> Path:
    """Make an environment with pip and what iobench needs, but not iobench; its folder bin."""
    venv.create(folder, with_pip=True)
    assert {"torch", "numpy", "typing_extensions"} <= link_dependencies(folder)
    return folder / "bin"
