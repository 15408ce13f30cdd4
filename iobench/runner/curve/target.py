"""What a curve reads: what a plan's own reader requests, or the objects of any place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ...base.documents import require_place
from ...base.errors import UsageError
from ...base.text import quoted
from ...base.units import format_bytes
from ...data.dataset import find_dataset
from ...data.formats import FORMATS
from ...data.formats.base import Blocks
from ...load.layouts import layout_keys
from ...record.manifest import MANIFEST, MARKER, Manifest, hash_bytes
from ...settings.dataset import share_of_columns
from ...storage import is_local, open_storage
from ...storage.base import Entry, MaybeDirect, Storage, exists, innermost, local_root
from ...storage.locks.lock import reading
from ..cache import Others
from ..plan import Plan
from .places import Places, blocks, samples

MAX_LISTED = 200_000
"""Objects that are looked at in a place without a dataset."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """``storage``: open for O_DIRECT where its files allow that. ``manifest``: of a dataset."""

    url: str
    storage: Storage
    objects: list[Entry]
    manifest: Manifest | None
    notes: list[str]

    def fingerprint(self) -> str:
        """A hash of what there is to read: names and sizes."""
        known = sorted((entry.key, entry.size) for entry in self.objects)
        return hash_bytes(repr(known).encode())


@contextmanager
def open_target(
    url: str, *, origin: str | None, least_bytes: int, hold: bool = True
) -> Iterator[Target]:
    """What lies at a path or URL, held against writers if it is a dataset.

    ``hold`` False: another host of the same job holds it, and looks who else does.
    ``least_bytes``: of an object to be read, where there is no dataset. Nothing is written, but for
    the readers' lock of a dataset. Raises UsageError if there is nothing to read; DatasetError for
    a dataset that is half generated or in use; StorageError.
    """
    home = open_storage(url)
    root = local_root(innermost(home))
    if root is not None:
        require_place(root, "name the directory or URL that holds a dataset, or files to read")
    if any(exists(innermost(home), key) for key in (MANIFEST, MARKER)):
        manifest, place = find_dataset(url, origin=origin)
        with reading(home, manifest, verb="probe") if hold else nullcontext() as lease:
            sizes = manifest.shards["size"].tolist()
            objects = [Entry(key, size) for key, size in zip(manifest.keys(), sizes, strict=True)]
            found = Others(lease).findings() if lease is not None else []
            notes = [finding.evidence for finding in found]
            yield _opened(url, place, objects, manifest, notes)
        return
    if origin is not None:
        raise UsageError(
            f"--origin is for a scanned dataset, but {url} has no {MANIFEST}",
            remedy="leave --origin out",
        )
    listed = list(islice(home.list(), MAX_LISTED + 1))
    notes = []
    if len(listed) > MAX_LISTED:
        listed.pop()
        notes.append(f"only the first {MAX_LISTED:,} objects of this place were considered")
    objects = [entry for entry in listed if entry.size >= least_bytes]
    if not objects:
        if listed:
            raise UsageError(
                f"{url} has no file of {format_bytes(least_bytes)} or more",
                remedy="use a smaller --request, or name a place with larger files",
            )
        raise UsageError(
            f"there are no files at {url}",
            remedy=f"generate data to read: iobench generate demo --to {quoted(f'{url}/probe')}"
            if is_local(url) and "+" not in url
            else "generate data to read there: iobench generate demo --to URL",
        )
    yield _opened(url, url, objects, None, notes)


def _opened(
    url: str, place: str, objects: list[Entry], manifest: Manifest | None, notes: list[str]
) -> Target:
    storage = open_storage(place)
    inner = innermost(storage)
    largest = max(objects, key=lambda entry: entry.size)
    if isinstance(inner, MaybeDirect) and inner.supports_direct(largest.key):
        storage = open_storage(place, direct=True)
    return Target(url=url, storage=storage, objects=objects, manifest=manifest, notes=notes)


def objects_of(plan: Plan) -> list[Entry]:
    """The objects that the plan's loader reads, without empty ones."""
    keys = layout_keys(plan.storage, plan.workload.loader.kind) if plan.subject.reads_itself else []
    if keys:
        found = [Entry(key, plan.storage.size(key)) for key in keys]
    else:
        sizes = plan.manifest.shards["size"].tolist()
        found = [Entry(key, size) for key, size in zip(plan.keys, sizes, strict=True)]
    return [entry for entry in found if entry.size > 0]


def requests(plan: Plan, objects: Sequence[Entry]) -> tuple[Places, str]:
    """The requests that the plan's reader issues, and a note if they are not exactly known.

    Random access: the samples, one by one. Sequential access: blocks of at most
    ``reader.block_size``, or what a batch needs of one shard if that is less. Files of one sample
    are read whole. What a loader library requests is not known: blocks of its files are read.
    Raises UsageError if no object has a byte to read.
    """
    manifest, reading, step = plan.manifest, plan.workload.reader, plan.storage.alignment
    largest = max((entry.size for entry in objects), default=0)
    if largest < step:
        raise UsageError("the dataset has nothing to read")
    grouped = isinstance(FORMATS.open(manifest.spec.format), Blocks)
    share = share_of_columns(manifest.spec, reading.columns)
    library = plan.subject.reads_itself
    single = manifest.sample_count <= manifest.shard_count
    converted = library and bool(layout_keys(plan.storage, plan.workload.loader.kind))
    apart = single or (not library and (not plan.sequential or share < 1))
    if apart and not converted:
        places = samples(
            manifest,
            max_bytes=reading.block_size,
            alignment=step,
            seed=plan.seed,
            share=share,
        )
        return places, ""
    together = float(reading.block_size)
    if grouped and not library:
        together = float(np.median(manifest.samples["stored"]))
    elif not library:
        per_shard = manifest.sample_count / manifest.shard_count
        together = min(plan.workload.batch_size, per_shard) * manifest.mean_stored_bytes
    usual = float(np.median([entry.size for entry in objects]))
    size = int(min(reading.block_size, together, usual)) // step * step
    size = min(max(step, size), largest // step * step)
    places = blocks(objects, size, order="sequential", seed=plan.seed)
    if not library:
        return places, ""
    return places, (
        f"what loader '{plan.workload.loader.kind}' requests is not known: blocks of "
        f"{format_bytes(size)} of the files that it reads were requested"
    )
