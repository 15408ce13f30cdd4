"""An object as a file, for libraries that read files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from iobench.storage import open_storage
from iobench.storage.files import buffered


def test_torch_reads_archives_behind_one_another_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.checkpoint.utils import _create_file_view  # imports sympy

    tensors = [torch.arange(number * 100_000) for number in range(1, 8)]
    content, places = bytearray(), []
    for tensor in tensors:
        torch.save(tensor, archive := io.BytesIO())
        places.append((len(content), archive.tell()))
        content += archive.getvalue()
    (tmp_path / "archives").write_bytes(content)
    storage = open_storage(str(tmp_path))
    read, asked = storage.read_into, []

    def counted(key: str, offset: int, view: Any) -> int:
        asked.append(len(view))
        return read(key, offset, view)

    monkeypatch.setattr(storage, "read_into", counted)
    file = buffered(storage, "archives")
    for tensor, (begin, length) in zip(tensors, places, strict=True):
        loaded = torch.load(_create_file_view(file, begin, length), weights_only=True)
        assert torch.equal(loaded, tensor)
    assert sum(asked) < 1.2 * len(content)
    assert file.seek(0) == 0
    assert file.read() == content
    assert file.read(1) == b""
