"""Call the user's factory, and find the loader in what it returns.

The user's module is imported in the process of a rank only.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.utils.data import DataLoader

from ...errors import UsageError, nearest
from ...schema.workload import LoaderSpec

_FORM = "write it as MODULE:FUNCTION, like mypkg.data:make_loader"


def make(
    loading: LoaderSpec, *, data: str, batch_size: int, rank: int, world: int
) -> Iterable[Any]:
    """Call the factory once, as a rank of a training would; return its loader or iterable.

    RANK, WORLD_SIZE and LOCAL_RANK are set in this process as torchrun sets them. ``data`` is given
    as a keyword if the factory has that parameter. Raises UsageError with one line for everything
    that the user's code does wrong.
    """
    name = loading.factory or ""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(world))
    factory = find(name)
    arguments: dict[str, Any] = dict(loading.args)
    if takes(factory, "data") and "data" not in arguments:
        arguments["data"] = data
    try:
        made = factory(**arguments)
        if callable(getattr(made, "train_dataloader", None)):
            made = _of_module(made)
    except BaseException as error:  # sys.exit, too
        raise UsageError(
            f"the loader factory {name} failed: {one_line(error)}",
            remedy="use --debug to see its traceback",
        ) from error
    return loader_of(made, name, loading, batch_size=batch_size)


def find(name: str) -> Callable[..., Any]:
    """Import the factory ``module:function``; the current directory is searched, too."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise UsageError(f"'{name}' does not name a loader factory", remedy=_FORM)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except BaseException as error:  # a script may call sys.exit
        raise UsageError(
            f"the module {module_name} of --loader can't be imported: {one_line(error)}",
            remedy="start iobench where Python finds it, or set PYTHONPATH",
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
    single = isinstance(made, str | bytes | bytearray | Mapping | list | tuple)
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


def one_line(error: BaseException) -> str:
    """The kind of an error and the first line of its message, at most 300 characters.

    An error that torch passes on from a worker has a traceback in its message, and then its own
    kind and message.
    """
    try:
        message = str(error)
    except Exception:  # the user's own class may fail at this
        message = ""
    lines = [line for line in message.splitlines() if line.strip()]
    if lines and lines[0].startswith("Caught "):
        last = max((at for at, line in enumerate(lines) if line.startswith("  ")), default=-1)
        own = lines[last + 1 :] or lines
        return own[0].strip()[:300]
    kind = type(error).__name__
    return f"{kind}: {lines[0].strip()[:300]}" if lines else kind


def _called(made: object) -> str:
    return "None" if made is None else f"a {type(made).__name__}"
