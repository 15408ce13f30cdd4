"""What can be asked about this machine and what iobench knows: ``list``, ``doctor``, ``clean``."""

from __future__ import annotations

from dataclasses import dataclass

from .flags import BREAK_LOCK, NAME, VerbRequest, flag, shared, switch, verb, word

KINDS = (
    *("workloads", "datasets", "sweeps", "formats", "contents", "codecs", "storage"),
    *("accelerators", "networks", "loaders", "writers", "models", "instances"),
)

SCHEMAS = ("run", "ab", "sweep")
"""The documents of ``record.published``, which is imported only if one is asked for."""


@verb(
    "list",
    "names of workloads, datasets, formats, storage, ...",
    examples=("", "workloads", "codecs --json", "--schema run"),
)
@dataclass(frozen=True, kw_only=True)
class ListRequest(VerbRequest):
    """List everything that iobench knows by name, with one line about each."""

    kind: str | None = word("KIND", "list only this kind of names", default=None, choices=KINDS)
    schema: str | None = flag(
        NAME,
        "print the JSON schema (draft 2020-12) of run.json, ab.json or sweep.json instead",
        choices=SCHEMAS,
    )


@verb(
    "doctor",
    "examine this machine and the storage behind a path",
    examples=("", "/mnt/fast", "/mnt/fast --json"),
)
@dataclass(frozen=True, kw_only=True)
class DoctorRequest(VerbRequest):
    """Show cores, limits, memory, huge pages, file system, device, O_DIRECT, page cache, fio and
    GPU, and what to change.
    """

    path: str = word(
        "PATH", "directory on the storage to examine (default: the current directory)", default="."
    )


@verb(
    "clean",
    "remove a generated dataset or checkpoints",
    examples=(
        "/mnt/fast/resnet50 --dry-run",
        "/mnt/fast/resnet50",
        "s3://bucket/resnet50",
        "/mnt/ckpt",
    ),
)
@dataclass(frozen=True, kw_only=True)
class CleanRequest(VerbRequest):
    """Remove a dataset or checkpoints, complete or partial: exactly the files that iobench made.
    Other files are kept and listed. A directory that iobench did not make is refused.
    """

    dir: str = word("DIR", "directory or URL of a dataset or of checkpoints")
    dry_run: bool = switch("show what would be removed, but remove nothing")
    break_lock: bool = shared(BREAK_LOCK)
