"""A folder that is exchanged for a link while iobench removes: nothing at the link's end goes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from iobench.errors import StorageError
from iobench.safety import remove_exactly


@pytest.mark.parametrize("moment", ["the root is listed", "the folder is listed", "a file is gone"])
def test_an_exchange_while_files_are_removed(moment: str, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "data", outside):
        folder.mkdir(parents=True)
        for name in ("a", "b", "c"):
            (folder / name).write_text(name)
    asked: list[str] = []

    def exchange() -> None:
        if not (root / "data").is_symlink():
            (root / "data").rename(tmp_path / "moved")
            (root / "data").symlink_to(outside)

    def owned(name: str) -> bool:
        asked.append(name)
        if moment == "the folder is listed" or len(asked) > 1:
            exchange()
        return True

    def folders(name: str) -> bool:
        if moment == "the root is listed" and name == "data":
            exchange()
        return True

    with suppress(StorageError):  # what is to be removed in the end is a folder no more
        remove_exactly(root, owned, last=(), folders=folders)
    assert (root / "data").is_symlink()
    assert sorted(path.name for path in outside.iterdir()) == ["a", "b", "c"]
