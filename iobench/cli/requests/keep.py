"""What can be asked about this machine and what iobench knows: ``list``, ``doctor``, ``clean``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from cyclopts import Parameter

from .flags import BreakLock, VerbRequest

KINDS = (
    *("workloads", "datasets", "sweeps", "formats", "contents", "codecs", "storage"),
    *("accelerators", "networks", "loaders", "writers", "models", "instances"),
)

SCHEMAS = ("run", "ab", "sweep")
"""The documents of ``record.published``, which is imported only if one is asked for."""


@dataclass(frozen=True, kw_only=True)
class ListRequest(VerbRequest):
    """List everything that iobench knows by name, with one line about each.

    For example:

      iobench list
      iobench list workloads
      iobench list codecs --json
      iobench list --schema run
    """

    kind: Annotated[str | None, Parameter(choices=KINDS)] = field(kw_only=False, default=None)
    """list only this kind of names"""
    schema: Annotated[str | None, Parameter(choices=SCHEMAS)] = None
    """print the JSON schema (draft 2020-12) of run.json, ab.json or sweep.json instead"""


@dataclass(frozen=True, kw_only=True)
class DoctorRequest(VerbRequest):
    """Show cores, limits, memory, huge pages, file system, device, O_DIRECT, page cache, fio and
    GPU, and what to change.

    For example:

      iobench doctor
      iobench doctor /mnt/fast
      iobench doctor /mnt/fast --json
    """

    path: str = field(kw_only=False, default=".")
    """directory on the storage to examine (default: the current directory)"""


@dataclass(frozen=True, kw_only=True)
class CleanRequest(VerbRequest):
    """Remove a dataset or checkpoints, complete or partial: exactly the files that iobench made.
    Other files are kept and listed. A directory that iobench did not make is refused.

    For example:

      iobench clean /mnt/fast/resnet50 --dry-run
      iobench clean /mnt/fast/resnet50
      iobench clean s3://bucket/resnet50
      iobench clean /mnt/ckpt
    """

    dir: str = field(kw_only=False)
    """directory or URL of a dataset or of checkpoints"""
    dry_run: bool = False
    """show what would be removed, but remove nothing"""
    break_lock: BreakLock = False
