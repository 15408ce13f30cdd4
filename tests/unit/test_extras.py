"""The hint for a missing package is a command that works for how iobench was installed."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path

import pytest

from iobench.base.extras import install_command


def installed(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    """Let pip have recorded this origin of iobench: None for an index."""

    class Recorded(metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            assert filename == "direct_url.json"
            return None if origin is None else json.dumps(origin)

        def locate_file(self, path: object) -> Path:  # type: ignore[override]
            raise NotImplementedError

    monkeypatch.setattr(metadata, "distribution", lambda name: Recorded())


def test_from_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://user:secret@example.org/iobench.git"
    installed(monkeypatch, {"url": url, "vcs_info": {"vcs": "git", "commit_id": "1"}})
    assert shlex.split(install_command("s3")) == [
        *("pip", "install", "iobench[s3] @ git+https://example.org/iobench.git")
    ]


def test_not_installed_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    root = Path(__file__).resolve().parents[2]
    assert shlex.split(install_command("s3")) == ["pip", "install", f"{root}[s3]"]
