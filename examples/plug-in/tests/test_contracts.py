"""Each plug-in keeps the contract of its kind."""

from __future__ import annotations

import pytest
from iobench_example.data import Bz2, Lengths, Stamped

from iobench.storage import open_storage
from iobench.testing import (
    CodecContract,
    ContentContract,
    FormatContract,
    LoaderContract,
    StorageContract,
    WriterContract,
)


class TestSqlite(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        return open_storage(f"sqlite://{tmp_path}/data.db")


class TestBz2(CodecContract):
    @pytest.fixture
    def codec(self):
        return Bz2()


class TestStamped(ContentContract):
    @pytest.fixture
    def content(self):
        return Stamped()


class TestLengths(FormatContract):
    @pytest.fixture
    def form(self):
        return Lengths()


class TestOneByOne(LoaderContract):
    @pytest.fixture
    def kind(self):
        return "onebyone"


class TestSaving(WriterContract):
    @pytest.fixture
    def writer(self):
        return "saving"
