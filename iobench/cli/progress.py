"""A progress bar of bytes on stderr.

It uses no thread, since worker processes are forked while it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[int, int], None]
"""Called with (bytes done, bytes in total)."""


@contextmanager
def progress_bar(what: str, *, enabled: bool) -> Iterator[Tell]:
    """Yield a function that shows the progress; it does nothing if not ``enabled``."""
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
