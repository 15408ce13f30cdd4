"""Load obstore again in a forked process, through its internals. Checked with obstore 0.12.1.

obstore's Rust runtime is started once per process and lives in the library's static memory. In a
forked child the runtime's threads are gone, every call waits for them forever, and nothing can
start the runtime again. So a child that was forked after its parent had used obstore loads the
library once more, from a copy in memory (the dynamic loader identifies libraries by their inode),
and that copy starts a runtime of its own.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_loader
from threading import Lock
from types import ModuleType
from typing import Any

_EXTENSION = "obstore._obstore"

_lock = Lock()


def _new_lock() -> None:
    """In a forked child: another thread of the parent may have held the lock during the fork."""
    global _lock
    _lock = Lock()


os.register_at_fork(after_in_child=_new_lock)

_loaded: ModuleType | None = None
_user = 0  # the process in which the loaded library works
_file = ""


def obstore_of_this_process() -> Any:
    """The obstore package, with a runtime that works in this process.

    Call it before the first use: the call counts as one.
    """
    global _loaded, _user, _file
    with _lock:
        if _loaded is None:
            _loaded = importlib.import_module("obstore")
            importlib.import_module("obstore.store")
            _file = sys.modules[_EXTENSION].__spec__.origin or ""  # type: ignore[union-attr]
        elif _user != os.getpid():
            _loaded = _load_again()
        _user = os.getpid()
        return _loaded


def _load_again() -> ModuleType:
    memory = os.memfd_create("iobench-obstore")
    try:
        with open(_file, "rb") as library:
            while os.sendfile(memory, library.fileno(), None, 1 << 30):
                pass
        for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
            del sys.modules[name]
        finder = _Finder(f"/proc/self/fd/{memory}")
        sys.meta_path.insert(0, finder)
        try:
            package = importlib.import_module("obstore")
            importlib.import_module("obstore.store")
        finally:
            sys.meta_path.remove(finder)
    finally:
        os.close(memory)  # mapped pages stay mapped
    return package


class _Finder:
    """Finds the extension module in a file of memory."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _EXTENSION:
            return None
        return spec_from_loader(name, ExtensionFileLoader(name, self._path), origin=self._path)
