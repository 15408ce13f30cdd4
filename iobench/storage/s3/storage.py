"""``s3://bucket/prefix``: objects on any S3 server, through the client library that is chosen."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Lock
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlencode

from ...base.beneath import key_problem
from ...base.errors import (
    MissingObjectError,
    StorageError,
    TargetLostError,
    TargetRefusedError,
    UsageError,
)
from ...base.processes import watch
from ..base import (
    Buffer,
    Entry,
    ParallelSink,
    Retries,
    Sink,
    StorageTraits,
    check_key,
    check_prefix,
)
from .clients import check_installed, versions
from .clients.base import Client, ObjectInfo, Upload, Wired
from .connection import Deletions, NoConnectionError, OwnConnection
from .errors import TRANSIENT, Failure, Kind, Retrier, explain
from .options import NAMES, S3Options, parse_options
from .session import ENFORCED, UNKNOWN, NewObject, ParallelUpload, Session, UploadSink
from .wire import S3Wire, proxies_of_environment

T = TypeVar("T")
U = TypeVar("U", UploadSink, ParallelUpload)

_inherited: list[Session | None] = []
"""In a forked process: the parent's sessions, kept so that they are never finalized here."""


class S3Storage:
    """Objects below a prefix.

    It holds no credentials: the client that does is made on first use in each process, and is
    never pickled.
    """

    OPTIONS: ClassVar[frozenset[str]] = NAMES
    alignment = 1

    @classmethod
    def open(cls, url: str, *, direct: bool, options: Mapping[str, str]) -> S3Storage:
        """``direct`` has no effect: this host's page cache does not serve these reads."""
        place = url.removeprefix("s3://")
        bucket, _, prefix = place.partition("/")
        if "@" in bucket or ":" in bucket:
            raise UsageError(
                "the S3 URL holds credentials or a port",
                remedy="write s3://bucket/prefix?endpoint=...; credentials come from the "
                "environment or the shared credentials file",
            )
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}", bucket) or ".." in bucket:
            raise UsageError(
                f"'{bucket[:80]}' is not a valid bucket name", remedy="write s3://bucket/prefix"
            )
        prefix = prefix.strip("/")
        if prefix and key_problem(prefix, text=True):
            raise UsageError(
                f"'{prefix[:80]}' is not a valid prefix",
                remedy="remove empty parts, '.', '..' and control characters",
            )
        settings = parse_options(options)
        check_installed(settings.client)
        return cls(bucket, prefix, settings)

    def __init__(self, bucket: str, prefix: str = "", options: S3Options | None = None) -> None:
        self.bucket = bucket
        self.prefix = prefix
        self.options = options or S3Options()
        self.url = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        self._root = f"{prefix}/" if prefix else ""
        self._conditional = UNKNOWN
        self._compares = True  # until the server refuses a conditional deletion as such
        self._begin()
        watch(self)

    @property
    def address(self) -> str:
        """The URL with the options without which another server would be asked, or otherwise."""
        plain = S3Options()
        given = {
            name: getattr(self.options, name)
            for name in ("endpoint", "region", "addressing", "tls_verify", "signing")
            if getattr(self.options, name) != getattr(plain, name)
        }
        return f"{self.url}?{urlencode(given, safe='/:')}" if given else self.url

    def _begin(self) -> None:
        self._lock = Lock()
        self._open: Session | None = None
        self._retrier = Retrier(self.options)  # which counts, whatever is closed and opened again

    def after_fork(self) -> None:
        # The connections belong to the parent. Its client must not be finalized here: that may
        # wait for a lock which another thread of the parent held at the moment of the fork.
        _inherited.append(self._open)
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {"bucket": self.bucket, "prefix": self.prefix, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["bucket"], state["prefix"], state["options"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"S3Storage({self.url!r}, client={self.options.client!r})"

    def _session(self) -> Session:
        if self._open is None:
            with self._lock:
                if self._open is None:
                    self._open = Session(
                        self.options, self.bucket, self._conditional, self._retrier
                    )
        return self._open

    def _run(
        self,
        verb: str,
        key: str,
        attempt: Callable[[Client, int], T],
        *,
        stop: Event | None = None,
        began: float | None = None,
    ) -> T:
        """Run one operation, with retries. Raises StorageError.

        The client's own exception is not chained: it can contain the request.
        """
        try:
            session = self._session()
            return session.retrier.run(
                lambda number: attempt(session.client, number), stop=stop, began=began
            )
        except Failure as failure:
            problem = self._failed(verb, key, failure)
        raise problem

    def _failed(self, verb: str, key: str, failure: Failure) -> StorageError:
        where = f"{self.url}/{key}" if key else self.url
        if failure.status in (403, 404) and not failure.code and verb != "list":
            failure = self._with_reason(self._root + key, failure)
        if verb == "list" and failure.kind is Kind.MISSING:
            failure.kind = Kind.NO_BUCKET  # a prefix without objects is an empty list
        what, remedy = explain(failure, verb)
        if failure.kind is Kind.UNREACHABLE:
            what = f"{what} ({self._endpoint()})"
        kind = MissingObjectError if failure.kind is Kind.MISSING else StorageError
        return kind(f"cannot {verb} {where}: {what}", remedy=remedy)

    def _endpoint(self) -> str:
        """The endpoint as far as the options and the environment name it, for messages."""
        chosen = self.options.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3")
        return chosen or os.environ.get("AWS_ENDPOINT_URL") or "AWS"

    def _with_reason(self, key: str, failure: Failure) -> Failure:
        """The failure with S3's error code: a HEAD response has no body, a GET response has."""
        session = self._session()
        try:
            session.retrier.run(lambda _: session.client.get(key, 0, memoryview(bytearray(1))))
        except Failure as said:
            if said.code and said.kind not in TRANSIENT:  # that is another failure
                said.attempts, said.elapsed_s = failure.attempts, failure.elapsed_s
                return said
        return failure

    # What it is

    traits = StorageTraits(page_cache=False)

    def facts(self) -> dict[str, Any]:
        facts = self.options.facts()
        # Where there are no credentials, the first request to the storage reports that.
        with suppress(Failure):
            facts |= self._session().client.facts()
        return {
            **facts,
            "scheme": "s3",
            "url": self.url,
            "bucket": self.bucket,
            "client_versions": versions(self.options.client),
            "conditional_create": self._open.conditional if self._open else self._conditional,
            "page_cache": self.traits.page_cache,
        }

    def check_target(self) -> None:
        if not self.prefix:
            raise TargetRefusedError(
                f"{self.url} is the root of a bucket, and iobench writes only below a prefix",
                remedy=f"write it like {self.url}/iobench-data",
            )

    def retried(self) -> Retries:
        return self._retrier.counts

    # Reading

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        return self.read_on(key, offset, buffer)

    def read_on(
        self,
        key: str,
        offset: int,
        buffer: Buffer,
        *,
        first: Failure | None = None,
        began: float | None = None,
        stop: Event | None = None,
    ) -> int:
        """As ``read_into``, for a request that was begun elsewhere.

        ``first``: how the first attempt has failed; None: it counts for nothing. ``began`` and
        ``stop`` are as for ``Retrier.run``.
        """
        if not len(buffer):
            return 0
        full = self.full_key(key)

        def get(client: Client, number: int) -> int:
            if number == 0 and first is not None:
                raise first
            try:
                return client.get(full, offset, buffer)
            except Failure as failure:
                if failure.kind is Kind.RANGE:
                    return 0
                raise

        return self._run("read", key, get, stop=stop, began=began)

    def not_wired(self) -> str:
        """Why no event loop can read in the client's place, or ''. Contacts nothing."""
        if self.options.client != "obstore":
            return f"the client {self.options.client} was asked for"
        if not proxies_of_environment():
            return ""
        try:
            proxied = self.wire().proxied
        except (Failure, UsageError):
            return ""  # the first request reports that
        return "the environment asks for an HTTP proxy" if proxied else ""

    def own_reader(self) -> OwnConnection:
        """Reads over a connection of their own, where no client library was asked for."""
        return OwnConnection(self)

    def wire(self) -> S3Wire:
        """What an event loop sends requests by. Raises Failure, UsageError."""
        client = self._session().client
        assert isinstance(client, Wired)
        return S3Wire(client.wire_settings())

    def full_key(self, key: str) -> str:
        """The key in the bucket. Raises StorageError for one that leads out of the prefix."""
        return self._root + check_key(key, text=True)

    def size(self, key: str) -> int:
        return self._head("stat", key).size

    def _head(self, verb: str, key: str) -> ObjectInfo:
        full = self.full_key(key)
        return self._run(verb, key, lambda client, _: client.head(full))

    def list(self, prefix: str = "") -> Iterator[Entry]:
        for found in self._found(prefix):
            yield Entry(found.key[len(self._root) :], found.size)

    def versions(self, prefix: str = "") -> dict[str, str]:
        """Key -> ETag."""
        return {found.key[len(self._root) :]: found.etag for found in self._found(prefix)}

    def _found(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix, text=True)
        below = self._root + (f"{folder}/" if folder else "")
        place = ""
        while True:
            found, place = self._page(below, place)
            # Some tools create an empty object with the folder's own name.
            yield from (item for item in found if item.key.rstrip("/") != below.rstrip("/"))
            if not place:
                return

    def _page(self, below: str, place: str) -> tuple[Sequence[ObjectInfo], str]:
        return self._run("list", "", lambda client, _: client.page(below, place))

    # Writing

    @contextmanager
    def create(self, key: str, *, size_hint: int = 0, durable: bool = True) -> Iterator[Sink]:
        """As Storage.create. S3 objects are durable at once: ``durable`` has no effect."""
        full = self.full_key(key)

        def begin() -> UploadSink:
            session = self._session()
            target = NewObject(session, full)
            if size_hint > self.options.part_size:
                target.refuse_existing()  # before gigabytes are sent for nothing
            part_size = self.options.part_size
            return UploadSink(target, session.uploads, part_size=part_size, size_hint=size_hint)

        with self._upload(key, begin) as sink:
            yield sink

    @contextmanager
    def create_parallel(
        self, key: str, *, size: int, block_size: int, durable: bool = True
    ) -> Iterator[ParallelSink]:
        """Each block is one part of a multipart upload, sent by the thread that writes it."""
        full = self.full_key(key)

        def begin() -> ParallelUpload:
            target = NewObject(self._session(), full)
            target.refuse_existing()
            return ParallelUpload(target, size=size, block_size=block_size)

        with self._upload(key, begin) as sink:
            yield sink

    @contextmanager
    def _upload(self, key: str, begin: Callable[[], U]) -> Iterator[U]:
        """An upload that is committed at the end of the block, and aborted after any exception.

        Raises StorageError in place of a client's Failure, which can contain the request.
        """
        sink: U | None = None
        try:
            sink = begin()
            yield sink
            sink.commit()
            return
        except Failure as failure:
            problem = self._failed("create", key, failure)
            if sink is not None:
                sink.abort()
        except BaseException:
            if sink is not None:
                sink.abort()
            raise
        raise problem

    @property
    def exclusive_create(self) -> bool | None:
        """Whether this server was seen to refuse a conditional write of an existing key."""
        seen = self._open.conditional if self._open else self._conditional
        return None if seen == UNKNOWN else seen == ENFORCED

    def replace(
        self,
        key: str,
        data: bytes,
        *,
        only_new: bool = False,
        allowed: Callable[[], None] = lambda: None,
    ) -> None:
        """One PUT, with a condition only if ``only_new``."""
        if only_new:
            with self.create(key, size_hint=len(data)) as sink:
                sink.write(data)
            return
        full = self.full_key(key)

        def put(client: Client, _: int) -> None:
            allowed()
            client.put(full, data, only_new=False)

        self._run("replace", key, put)

    def flush(self) -> None:
        return

    def delete(self, key: str) -> None:
        full = self.full_key(key)
        self._head("delete", key)  # S3's DELETE succeeds for objects that do not exist
        self._run("delete", key, lambda client, _: client.delete(full))

    def delete_if(self, key: str, allowed: Callable[[], None]) -> None:
        """With the condition ``If-Match``, which many servers ignore."""
        full = self.full_key(key)
        etag = self._head("delete", key).etag

        def delete(client: Client, number: int) -> None:
            try:
                self._delete_if(client, full, etag, allowed)
            except Failure as failure:
                if failure.kind is Kind.EXISTS:  # the condition was not met
                    if self._is_still(client, key, etag, number):
                        self._delete_if(client, full, "", allowed)
                elif failure.kind is not Kind.MISSING or not number:
                    raise

        self._run("delete", key, delete)

    def _delete_if(self, client: Client, full: str, etag: str, allowed: Callable[[], None]) -> None:
        """On a connection of our own, or else by the client. Raises Failure."""
        etag = etag if self._compares else ""
        try:
            if (deletions := self._deletions()) is not None:
                deletions.delete(full, etag, allowed)
                return
        except NoConnectionError:
            pass
        except Failure as failure:
            if failure.kind is not Kind.UNSUPPORTED or not etag:
                raise
            self._compares = False
        allowed()
        client.delete(full, etag=etag if self._compares else "")

    def _deletions(self) -> Deletions | None:
        """None where the environment asks for a proxy."""
        session = self._session()
        with self._lock:
            if session.deletions is None:
                wire = self.wire()
                session.deletions = None if wire.proxied else Deletions(wire)
            return session.deletions

    def _is_still(self, client: Client, key: str, etag: str, number: int) -> bool:
        """Whether an object that was not deleted is the one that was seen.

        Some servers compare an object of several parts with another tag than the one they name.
        False where an earlier attempt has deleted it. Raises TargetLostError for another object.
        """
        try:
            if client.head(self.full_key(key)).etag == etag:
                return True
        except Failure as failure:
            if failure.kind is Kind.MISSING and number:
                return False
            if failure.kind is not Kind.MISSING:
                raise
        raise TargetLostError(
            f"cannot delete {self.url}/{key}: another program replaced it at this moment",
            remedy="find out which other process uses this place, and start again",
        )

    def discard_unfinished(
        self,
        owned: Callable[[str], bool],
        *,
        dry_run: bool = False,
        allowed: Callable[[], None] = lambda: None,
    ) -> tuple[str, ...]:
        found: tuple[Upload, ...] = ()
        place = ("", "")
        while True:
            page, place = self._uploads(place)
            found += tuple(upload for upload in page if owned(upload.key[len(self._root) :]))
            if not any(place):
                break
        for upload in found if not dry_run else ():
            self._discard(upload, allowed)
        return tuple(upload.key[len(self._root) :] for upload in found)

    def _uploads(self, place: tuple[str, str]) -> tuple[Sequence[Upload], tuple[str, str]]:
        def uploads(client: Client, _: int) -> tuple[Sequence[Upload], tuple[str, str]]:
            try:
                return client.uploads(self._root, place)
            except Failure as failure:
                if failure.kind is Kind.NO_UPLOAD:  # rclone's answer if there never was an upload
                    return (), ("", "")
                raise

        return self._run("list", "", uploads)

    def _discard(self, upload: Upload, allowed: Callable[[], None]) -> None:
        def abort(client: Client, _: int) -> None:
            allowed()
            try:
                client.abort(upload.key, upload.id)
            except Failure as failure:
                if failure.kind not in (Kind.NO_UPLOAD, Kind.MISSING):
                    raise

        self._run("delete", upload.key[len(self._root) :], abort)

    def close(self) -> None:
        if self._open is not None:
            self._conditional = self._open.conditional
            self._open.close()
        self._open = None
