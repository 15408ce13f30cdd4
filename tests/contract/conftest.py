"""Loaders that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from iobench.load.build import make_loader
from iobench.load.loader import BatchLoader

Load = Callable[..., Any]


@pytest.fixture
def load() -> Iterator[Load]:
    """``load(path, ("ring", 2), batch_size=7, ...)`` is ``make_loader`` with that transport and so
    many workers. The loaders end with the test, whatever became of it.
    """
    made: list[BatchLoader] = []

    def make(data: Any, way: tuple[str, int] = ("ring", 0), **more: Any) -> BatchLoader:
        loading = {"transport": way[0], "workers": way[1], **more.pop("loader", {})}
        made.append(make_loader(data, **{"batch_size": 7, "loader": loading, **more}))
        return made[-1]

    yield make
    for loader in made:
        loader.shutdown()
