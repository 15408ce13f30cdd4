"""The hint for a missing package is a command that works for how iobench was installed."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from iobench.errors import UsageError
from iobench.extras import install_command
from iobench.load.libraries import LOADERS


def installed(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    """Let pip have recorded this origin of iobench: None for an index."""

    class Recorded(metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            assert filename == "direct_url.json"
            return None if origin is None else json.dumps(origin)

        def locate_file(self, path: object) -> Path:  # type: ignore[override]
            raise NotImplementedError

    monkeypatch.setattr(metadata, "distribution", lambda name: Recorded())


def source(tmp_path: Path) -> Path:
    folder = tmp_path / "my source"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[project]\nname = 'iobench'\n")
    return folder


def test_from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    assert shlex.split(install_command("s3")) == ["pip", "install", "iobench[s3]"]


@pytest.mark.parametrize("editable", [False, True])
def test_from_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, editable: bool) -> None:
    folder = source(tmp_path)
    installed(monkeypatch, {"url": folder.as_uri(), "dir_info": {"editable": editable}})
    words = shlex.split(install_command("s3"))
    assert words == ["pip", "install", *(["-e"] if editable else []), f"{folder}[s3]"]


def test_from_a_checkout_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, {"url": (tmp_path / "gone").as_uri(), "dir_info": {}})
    assert shlex.split(install_command("s3"))[:3] == ["pip", "install", ".[s3]"]


def test_from_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "iobench-1-py3-none-any.whl"
    wheel.write_bytes(b"")
    installed(monkeypatch, {"url": wheel.as_uri(), "archive_info": {}})
    assert shlex.split(install_command("s3")) == [
        "pip",
        "install",
        f"iobench[s3] @ {wheel.as_uri()}",
    ]


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


@pytest.mark.parametrize("recorded", ["", "{", "[]", '"x"'])
def test_a_damaged_record_counts_as_none(monkeypatch: pytest.MonkeyPatch, recorded: str) -> None:
    class Damaged(metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            return recorded

        def locate_file(self, path: object) -> Path:  # type: ignore[override]
            raise NotImplementedError

    monkeypatch.setattr(metadata, "distribution", lambda name: Damaged())
    assert shlex.split(install_command("s3")) == ["pip", "install", "iobench[s3]"]


def test_a_loader_without_its_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("webdataset", "iobench.load.libraries.wds"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "iobench.load.libraries.wds")
    with pytest.raises(UsageError) as caught:
        LOADERS.load("webdataset")
    assert install_command("webdataset") in caught.value.remedy
