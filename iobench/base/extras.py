"""Which packages are installed, and the command that installs an extra of ``pyproject.toml``."""

from __future__ import annotations

import json
import shlex
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit


@cache
def package_version(name: str) -> str | None:
    """The version of an installed package, without importing it; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def install_command(extra: str) -> str:
    """Return the pip command that adds the packages of ``extra`` to this installation.

    It names the place that iobench was installed from, as pip has recorded it in
    ``direct_url.json`` (PyPA specification "Recording the Direct URL Origin of installed
    distributions"). Only if iobench came from an index, the name alone is the right one.
    """
    recorded = _recorded()
    if recorded is None:
        return _pip(f"iobench[{extra}]")
    url = str(recorded.get("url", ""))
    if isinstance(commit := recorded.get("vcs_info"), dict):
        return _pip(f"iobench[{extra}] @ {commit.get('vcs', 'git')}+{_without_user(url)}")
    path = Path(unquote(urlsplit(url).path)) if url.startswith("file:") else None
    if path is None or path.is_file():  # an archive or a wheel
        return _pip(f"iobench[{extra}] @ {_without_user(url)}")
    if not (path / "pyproject.toml").is_file():
        return f"{_pip(f'.[{extra}]')} in a directory with the source of iobench"
    how = recorded.get("dir_info")
    return _pip(f"{path}[{extra}]", editable=isinstance(how, dict) and how.get("editable") is True)


def _recorded() -> dict[str, object] | None:
    """Return the recorded origin of the installation; None if it is an index."""
    try:
        text = metadata.distribution("iobench").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return {"url": Path(__file__).resolve().parents[2].as_uri()}  # a directory on PYTHONPATH
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _pip(what: str, *, editable: bool = False) -> str:
    return f"pip install {'-e ' if editable else ''}{shlex.quote(what)}"


def _without_user(url: str) -> str:
    """Return the URL without a user's name and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
