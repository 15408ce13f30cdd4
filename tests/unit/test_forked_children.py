"""What a forked process does with what it has from its parent: nothing, not even finalise it."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Mapping
from typing import Any

from iobench.base import processes
from iobench.storage import open_storage
from iobench.storage.s3 import storage as s3
from tests.servers.s3 import S3Server, rclone_s3, s3_environment

__all__ = ["rclone_s3", "s3_environment"]


def in_child(work: Any) -> bool:
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


class Finalised:
    count = 0

    def __del__(self) -> None:
        Finalised.count += 1


def test_a_parents_garbage_is_not_collected_in_a_child() -> None:
    assert processes.watch is not None
    gc.collect()
    gc.disable()
    try:
        cycle: list[Any] = [Finalised()]
        cycle.append(cycle)
        del cycle

        def collect() -> bool:
            gc.collect()
            own: list[Any] = [Finalised()]
            own.append(own)
            del own
            gc.collect()
            return Finalised.count == 1  # its own, and not the parent's

        assert in_child(collect)
        gc.collect()
        assert Finalised.count == 1
    finally:
        gc.enable()


def test_a_parents_connections_are_kept(
    rclone_s3: S3Server, s3_environment: Mapping[str, str]
) -> None:
    """And a child has some of its own."""
    storage: Any = open_storage(rclone_s3.url())
    storage.replace("x", b"data")
    client = weakref.ref(storage._open)

    def look() -> bool:
        return client() is not None and storage._open is None and storage.size("x") == 4

    assert in_child(look)
    assert s3._inherited == []
    storage.delete("x")
    storage.close()
