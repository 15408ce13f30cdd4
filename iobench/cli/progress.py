"""A progress bar of bytes on stderr, without a thread of its own (worker processes are forked while it is up)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[int, int], None]
"""(done bytes, total bytes)"""


@contextmanager
def progress_bar(what: str, *, enabled: bool) -> Iterator[Tell]:
    """A function to tell the progress to; it does nothing where not ``enabled``."""
    if not enabled:
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    task = bar.add_task(what, total=None)
    with bar:

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            bar.refresh()

        yield tell
