"""A storage: the objects are rows of one SQLite database, ``sqlite:///mnt/fast/data.db``."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from iobench.base.errors import MissingObjectError, StorageError
from iobench.storage.base import Entry, StorageTraits, check_key, check_prefix

TABLE = "CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, data BLOB NOT NULL)"


class SqliteStorage:
    """Objects in a database. Each thread of each process has a connection of its own."""

    OPTIONS = ()
    alignment = 1
    traits = StorageTraits()  # the database is a file, so the page cache may serve its reads

    def __init__(self, url):
        self.url = url
        self._own = threading.local()

    @classmethod
    def open(cls, url, *, direct, options):
        return cls(url)

    def __reduce__(self):
        return type(self), (self.url,)

    def facts(self):
        return {"scheme": "sqlite", "url": self.url, "sqlite_version": sqlite3.sqlite_version}

    def list(self, prefix="") -> Iterator[Entry]:
        folder = check_prefix(prefix, text=True)
        found = self._run("SELECT key, length(data) FROM objects ORDER BY key")
        return (
            Entry(key, size) for key, size in found if not folder or key.startswith(f"{folder}/")
        )

    def size(self, key):
        found = self._run(
            "SELECT length(data) FROM objects WHERE key = ?", check_key(key, text=True)
        )
        if not found:
            raise MissingObjectError(f"cannot read {key}: it is not in {self.url}")
        return found[0][0]

    def read_into(self, key, offset, buffer, *, once=False):
        row = self._run("SELECT rowid FROM objects WHERE key = ?", check_key(key, text=True))
        if not row:
            raise MissingObjectError(f"cannot read {key}: it is not in {self.url}")
        with self._connection.blobopen("objects", "data", row[0][0], readonly=True) as blob:
            length = max(0, min(len(buffer), len(blob) - offset))
            if length:
                blob.seek(offset)
                buffer[:length] = blob.read(length)
        return length

    @contextmanager
    def create(self, key, *, size_hint=0, durable=True):
        check_key(key, text=True)
        exists = StorageError(f"cannot create {key}: it exists in {self.url}")
        if self._run("SELECT 1 FROM objects WHERE key = ?", key):
            raise exists
        sink = Rows()
        yield sink
        try:
            self._run("INSERT INTO objects VALUES (?, ?)", key, b"".join(sink.parts))
        except sqlite3.IntegrityError:
            raise exists from None

    def flush(self):
        """Nothing is left to do: each transaction is durable when it ends."""

    def delete(self, key):
        self.size(key)
        self._run("DELETE FROM objects WHERE key = ?", key)

    def close(self):
        """Connections end with their threads."""

    @property
    def _connection(self):
        if getattr(self._own, "process", None) != os.getpid():  # a connection can't be inherited
            self._own.inherited = getattr(self._own, "connection", None)
            path = unquote(urlsplit(self.url).path)
            try:
                self._own.connection = sqlite3.connect(path, timeout=60, isolation_level=None)
                self._own.connection.execute("PRAGMA synchronous = FULL")
                self._own.connection.execute(TABLE)
            except sqlite3.Error as error:
                raise StorageError(f"cannot open {self.url}: {error}") from None
            self._own.process = os.getpid()
        return self._own.connection

    def _run(self, statement, *values):
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise StorageError(f"{self.url}: {error}") from None


class Rows:
    """The parts of an object that is being written; it is one transaction at the end."""

    def __init__(self):
        self.parts = []

    def write(self, data):
        self.parts.append(bytes(data))
