"""``iobench verify``: compare every byte of a dataset with its manifest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields
from typing import TYPE_CHECKING

from ..base.errors import DatasetError, MissingObjectError, StorageError, UnreadableError
from ..base.text import quoted
from ..base.units import counted, format_bytes, format_rate
from ..data.dataset import find_dataset
from ..data.verify import VerifyReport, check_share, verify
from ..data.verify.shards import PartialReport
from ..record.manifest import Manifest, hash_bytes
from ..runner.hosts.control import Control
from ..runner.hosts.serving import Same, Served, SharedWork
from ..runner.hosts.sharing import HostShare, SharedTasks
from ..storage import open_storage
from ..storage.base import Storage
from ..storage.locks.lock import reading
from .hosts import HostPart, host_lines, hosts_document, on_all_hosts
from .live import progress_bar
from .terminal import show_lines
from .verbs import VerifyRequest

if TYPE_CHECKING:
    Found = tuple[Manifest, Storage, Storage]
    """A dataset: its manifest, where that is, and where its shards are."""


def run(request: VerifyRequest) -> int:
    with ExitStack() as held:

        def prepared(part: HostPart) -> Found:
            return _found(request, held)

        def same(found: Found) -> Same:
            manifest, home, storage = found
            header = hash_bytes(manifest.header.model_dump_json().encode())
            return {"data": f"{home.url} at {storage.url}", "dataset": header}

        # Each host compares a share of the shards; the first one reports what all have found.

        def lead(control: Control | None, found: Found) -> int:
            manifest, _, storage = found
            shared = SharedTasks(control, PartialReport, weigh=lambda part: part.bytes_read)
            with progress_bar("verifying", quiet=request.quiet) as tell:
                done = verify(storage, manifest, workers=request.workers, progress=tell, run=shared)
            return _print(request, manifest, storage, done, shared.hosts)

        def serve(found: Found) -> Served:
            manifest, _, storage = found
            work = SharedWork(
                PartialReport,
                lambda name, tasks, _, check: check_share(
                    storage, manifest, tasks, host=name, workers=request.workers, check=check
                ),
            )
            return Served(shared=work)

        return on_all_hosts(request, prepared, same, lead=lead, serve=serve)


def _found(request: VerifyRequest, held: ExitStack) -> Found:
    """The dataset, which is ``held`` together with other readers."""
    try:
        manifest, place = find_dataset(request.dir, origin=request.origin)
        home = open_storage(request.dir)
        held.enter_context(reading(home, manifest, verb="verify", break_dead=request.break_lock))
        return manifest, home, open_storage(place)
    except MissingObjectError:
        raise  # without one of its tables it is not a dataset
    except StorageError as error:
        raise UnreadableError(error.what, remedy=error.remedy) from error


def _print(
    request: VerifyRequest,
    manifest: Manifest,
    storage: Storage,
    report: VerifyReport,
    hosts: Sequence[HostShare],
) -> int:
    """Print the report; return the exit code for it."""
    code = DatasetError.exit_code if report.damages else UnreadableError.exit_code
    found = {each.name: getattr(report, each.name) for each in fields(report)}
    place = {"path": request.dir, "data": storage.url, "ok": report.ok}
    told = _lines(request.dir, storage.url if manifest.header.origin else "", report)
    show_lines(
        {**place, **found, **hosts_document(hosts)}, [*told, *host_lines(hosts)], json=request.json
    )
    return 0 if report.ok else code


def _lines(path: str, origin: str, report: VerifyReport) -> Iterator[str]:
    """The report as text.

    ``origin`` is the place of data that iobench did not write and must not remove; '' if it did.
    """
    where = f"{path} (read at {origin})" if origin else path
    if report.ok:
        rate = format_rate(report.bytes_read / max(report.wall_s, 1e-9))
        what = f"{counted(report.samples, 'sample')} in {counted(report.shards, 'shard')}"
        size = format_bytes(report.bytes_read)
        yield f"ok: {what}, {size}, as the manifest says ({rate}): {where}"
        return
    yield from map(str, (*report.damages, *report.unreadable))
    rest = "; the rest was not checked" if report.stopped else ""
    if report.damages:
        found = _count(len(report.damages), "difference", rest)
        remedy = (
            f"Restore the data at {origin}, or remove what is damaged and scan it again"
            if origin
            else f"Remove it (iobench clean {quoted(path)}) and generate it again"
        )
        yield f"DAMAGED: {found}, in {where}. {remedy}"
        rest = ""
    if report.unreadable:
        found = _count(len(report.unreadable), "shard", rest)
        yield (
            f"NOT READ: {found} could not be read, in {where}. They may be undamaged: remove "
            "the causes above, and verify again"
        )


def _count(count: int, what: str, rest: str) -> str:
    more = " and more" if rest else ""
    return f"{count} {what}{'' if count == 1 else 's'}{more}{rest}"
