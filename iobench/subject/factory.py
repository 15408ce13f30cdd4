"""Call the user's factory in the process of a rank, and find the loader in what it returns.

What the user's code does beside loading stays in that process, and ends with it.
"""

from __future__ import annotations

import importlib
import inspect
import multiprocessing.util
import os
import re
import signal
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from ..accelerate.base import RankPlace
from ..base.errors import UsageError, nearest
from ..load.torch_compat import worker_error
from ..settings.workload import LoaderSpec

_LAST = 0
"""Priority of the finalizer: before multiprocessing waits for processes that the user started."""

_FORM = "write it as MODULE:FUNCTION or FILE.py:FUNCTION, like mypkg.data:make_loader"

_INSTALLED = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(str(Path(__file__).parents[1]), "<"),
)
"""Where code lies that is not the user's: Python, packages, iobench, and what is frozen."""


def make(loading: LoaderSpec, *, data: str, batch_size: int) -> Iterable[Any]:
    """Call the factory once, as a rank of a training would; return its loader or iterable.

    ``data`` is given as a keyword if the factory has that parameter. Raises UsageError with one
    line for everything that the user's code does wrong.
    """
    name = loading.factory or ""
    factory = find(name)
    arguments: dict[str, Any] = dict(loading.args)
    if takes(factory, "data") and "data" not in arguments:
        arguments["data"] = data
    _check_call(factory, name, arguments)
    try:
        made = factory(**arguments)
        if callable(getattr(made, "train_dataloader", None)):
            made = _of_module(made)
    except BaseException as error:  # sys.exit, too
        raise UsageError(
            f"the loader factory {name} failed: {one_line(error)}{place_of(error)}", remedy=MEND
        ) from error
    return loader_of(made, name, loading, batch_size=batch_size)


def locate(name: str) -> tuple[str, str, str]:
    """Where the factory ``name`` is: a folder, a module in it, and the path within the module.

    Nothing is imported. Raises UsageError for another form, and for a file that is not there.
    """
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise UsageError(f"'{name}' does not name a loader factory", remedy=_FORM)
    if not module.endswith(".py"):
        return os.getcwd(), module, path
    folder, file = os.path.split(os.path.abspath(module))
    if not os.path.isfile(module):
        raise UsageError(f"there is no file {module}, which --loader names", remedy=_FORM)
    return folder, file.removesuffix(".py"), path


def find(name: str) -> Callable[..., Any]:
    """Import the factory ``module:function`` or ``file.py:function``.

    The current directory is searched, too, or the one of the file.
    """
    folder, module_name, path = locate(name)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
    except BaseException as error:  # a script may call sys.exit
        where = place_of(error)
        raise UsageError(
            f"the module {module_name} of --loader can't be imported: {one_line(error)}{where}",
            remedy=MEND if where else "start iobench where Python finds it, or set PYTHONPATH",
        ) from error
    for part in path.split("."):
        inner = getattr(found, part, None)
        if inner is None:
            near = nearest(part, [each for each in vars(found) if not each.startswith("_")])
            hint = f"did you mean {' or '.join(near)}?" if near else _FORM
            raise UsageError(f"{name}: there is no '{part}'", remedy=hint)
        found = inner
    if not callable(found):
        raise UsageError(f"{name} is a {type(found).__name__}, not a function", remedy=_FORM)
    factory: Callable[..., Any] = found
    return factory


def _check_call(factory: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> None:
    """Raise UsageError if the factory has not these parameters, or needs others."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        code = getattr(inspect.unwrap(factory), "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        raise UsageError(
            f"the loader factory {name}{where} can't be called: {error}; its parameters are "
            f"{signature}",
            remedy="give arguments by their names, --loader-args NAME=VALUE, or defaults to them",
        ) from error


def takes(factory: Callable[..., Any], name: str) -> bool:
    """Whether the factory has a parameter of this name, or takes any keyword."""
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    if name in parameters:
        return parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())


def _of_module(module: Any) -> Any:
    """The training loader of a Lightning DataModule, prepared as Lightning's trainer does."""
    for step, arguments in (("prepare_data", ()), ("setup", ("fit",))):
        call = getattr(module, step, None)
        if callable(call):
            call(*arguments)
    return module.train_dataloader()


def loader_of(made: Any, name: str, loading: LoaderSpec, *, batch_size: int) -> Iterable[Any]:
    """The loader itself; a map-style dataset gets torch's DataLoader, with the workload's settings.

    Raises UsageError for anything else that does not yield batches.
    """
    if isinstance(made, DataLoader):
        return made
    single = isinstance(made, type | str | bytes | bytearray | Mapping | list | tuple)
    if made is None or single or hasattr(made, "nbytes"):
        raise UsageError(
            f"{name} returned {_called(made)}, not a loader",
            remedy="return a torch DataLoader, or an iterable of batches",
        )
    if hasattr(made, "__getitem__") and hasattr(made, "__len__"):
        return _over(made, loading, batch_size=batch_size)
    if not hasattr(made, "__iter__"):
        raise UsageError(
            f"{name} returned {_called(made)}, which can't be iterated over",
            remedy="return a torch DataLoader, or an iterable of batches",
        )
    iterable: Iterable[Any] = made
    return iterable


def _over(dataset: Any, loading: LoaderSpec, *, batch_size: int) -> DataLoader[Any]:
    """A DataLoader over a dataset; one of Hugging Face yields tensors."""
    if type(dataset).__module__.partition(".")[0] == "datasets":
        dataset = dataset.with_format("torch")
    workers: dict[str, Any] = {"num_workers": loading.workers}
    if loading.workers:
        workers |= {
            "prefetch_factor": loading.prefetch_factor,
            "persistent_workers": loading.persistent_workers,
            "multiprocessing_context": loading.start_method,
        }
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, **workers)


MEND = "mend it there; --debug shows the whole traceback"
"""What to do about an error of the user's code."""


def place_of(error: BaseException) -> str:
    """`` (FILE:LINE)`` of the user's own code, where the error came from; empty if not known.

    An error that torch passes on from a worker has the traceback in its message.
    """
    frames = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
    with suppress(Exception):  # the user's own class may fail at this
        told = re.findall(r'^ *File "(.+)", line (\d+)', str(error), re.MULTILINE)
        frames += [(file, int(line)) for file, line in told]
    theirs = (each for each in reversed(frames) if not each[0].startswith(_INSTALLED))
    return next((f" ({file}:{line})" for file, line in theirs), "")


def one_line(error: BaseException) -> str:
    """The kind of an error and the first line of its message, at most 300 characters.

    An error that torch passes on from a worker has a traceback in its message, and then its own
    kind and message.
    """
    try:
        passed_on = worker_error(error)
        message = passed_on or str(error)
    except Exception:  # the user's own class may fail at this
        passed_on, message = None, ""
    lines = [line for line in message.splitlines() if line.strip()]
    if passed_on is not None:
        last = max((at for at, line in enumerate(lines) if line.startswith("  ")), default=-1)
        own = lines[last + 1 :] or lines
        return own[0].strip()[:300]
    kind = type(error).__name__
    return f"{kind}: {lines[0].strip()[:300]}" if lines else kind


def _called(made: object) -> str:
    if isinstance(made, type):
        return f"the class {made.__name__}"
    return "None" if made is None else f"an object of type {type(made).__name__}"


def take_place(place: RankPlace) -> None:
    """Set the variables of this process as torchrun sets those of its ranks."""
    local, on_host = place.share
    os.environ |= {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(on_host),
    }


def contain(*, silent: bool) -> None:
    """Print to stderr what the user's code prints, since stdout is for the run's document.

    When the process ends, what it started ends, too, and threads of the user are not waited for.
    ``silent``: the user has seen all this before, so that prints and warnings are dropped.
    """
    sys.stdout.flush()
    target = os.open(os.devnull, os.O_WRONLY) if silent else 2
    os.dup2(target, 1)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
    if silent:
        os.close(target)
        warnings.simplefilter("ignore")
    multiprocessing.util.Finalize(None, end_the_rest, exitpriority=_LAST)


def end_the_rest() -> None:
    """Kill the processes that this one started and has not ended.

    A thread that would keep the process from ending is not waited for. torch's handler of SIGCHLD
    would take a killed worker for an error.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end_children()
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    if any(not each.daemon for each in others):
        sys.stderr.flush()
        os._exit(0)


def end_children() -> None:
    """Kill the children of this process, except for multiprocessing's own, which end by themselves.

    Children of children are theirs to end; the workers of a DataLoader do (``die_with_parent``).
    """
    for pid in _children():
        if pid not in _helpers():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _children() -> set[int]:
    """The children of all threads of this process (proc(5), ``/proc/PID/task/TID/children``)."""
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found.update(map(int, listed.read_text().split()))
    return found


def _helpers() -> set[int | None]:
    """Processes in which multiprocessing cleans up and starts others (CPython 3.11 to 3.14)."""
    return {
        getattr(resource_tracker._resource_tracker, "_pid", None),
        getattr(forkserver._forkserver, "_forkserver_pid", None),
    }
