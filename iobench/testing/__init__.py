"""Contracts of plug-ins, for the tests of those who write them.

Each contract is a class of pytest tests. A subclass in the author's own tests has the fixture that
the class names, and everything else is inherited::

    from iobench.testing import StorageContract

    class TestMine(StorageContract):
        @pytest.fixture
        def storage(self, tmp_path):
            return MyStorage(tmp_path)

iobench's own plug-ins run through the same classes. docs/plug-ins.md describes each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

# pytest then shows the values behind a failed assertion of a contract, too.
pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in ("storage", "data", "loaders", "writers"))
)

__all__ = [
    "CodecContract",
    "ContentContract",
    "FormatContract",
    "LoaderContract",
    "StorageContract",
    "WriterContract",
]

if TYPE_CHECKING:
    from .data import CodecContract, ContentContract, FormatContract
    from .loaders import LoaderContract
    from .storage import StorageContract
    from .writers import WriterContract
else:
    from ..base.lazily import lazily

    __getattr__ = lazily(globals())


def __dir__() -> list[str]:
    return sorted(__all__)
