"""From the samples of a batch to what the training gets: stacked, padded, a list, or the user's."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate

from ...base.errors import IobenchError, UsageError

Collate = Literal["stack", "pad", "list"] | Callable[[list[Any]], Any]
"""How the samples of a batch are put together; a function gets the list of samples."""

COLLATES = ("stack", "pad", "list")


class Padded(NamedTuple):
    """Samples of different shapes in one tensor, with zeros behind each of them.

    ``data``: [samples, longest, ...]. ``sizes``: int64 [samples, dimensions], the shape of each
    sample.
    """

    data: torch.Tensor
    sizes: torch.Tensor


def put_together(samples: list[Any], how: Collate) -> Any:
    """Put the samples of a batch together.

    Raises UsageError in one line for samples that cannot be stacked or padded, and for an exception
    of the user's function.
    """
    if how == "list":
        return samples
    if how == "pad":
        return pad(samples)
    if how == "stack":
        return stack(samples)
    assert callable(how)
    with Blamed("the collate function failed"):
        return how(samples)


def stack(samples: Sequence[Any]) -> Any:
    """Stack samples as torch's DataLoader does: tensors, arrays, numbers, and dicts of them.

    Raises UsageError if their shapes differ, or if they cannot be stacked.
    """
    shapes = {tuple(sample.shape) for sample in samples if isinstance(sample, torch.Tensor)}
    if len(shapes) > 1:
        raise ragged(shapes)
    try:
        return default_collate(list(samples))
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        raise UsageError(
            f"the samples of a batch cannot be stacked: {_first_line(error)}",
            remedy="pass collate='pad', 'list' or a function, or a transform that gives all "
            "samples one shape",
        ) from error


def pad(samples: Sequence[Any]) -> Padded:
    """Put tensors or arrays of different shapes into one tensor, with zeros behind each of them.

    Raises UsageError for anything else, and for different numbers of dimensions or types.
    """
    tensors = [
        torch.from_numpy(sample) if isinstance(sample, np.ndarray) else sample for sample in samples
    ]
    kinds = {(type(t), getattr(t, "ndim", 0), getattr(t, "dtype", None)) for t in tensors}
    if len(kinds) != 1 or not isinstance(tensors[0], torch.Tensor):
        raise UsageError(
            "collate='pad' takes tensors or arrays of one type and one number of dimensions",
            remedy="pass collate='list' or a function",
        )
    sizes = torch.tensor([tuple(tensor.shape) for tensor in tensors], dtype=torch.int64)
    sizes = sizes.reshape(len(tensors), tensors[0].ndim)
    out = tensors[0].new_zeros((len(tensors), *sizes.amax(0).tolist()))
    for place, tensor in zip(out, tensors, strict=True):
        place[tuple(slice(length) for length in tensor.shape)] = tensor
    return Padded(out, sizes)


def ragged(shapes: set[tuple[int, ...]]) -> UsageError:
    """The error for samples of different shapes that are to be stacked."""
    few = ", ".join(" x ".join(map(str, shape)) for shape in sorted(shapes)[:3])
    return UsageError(
        f"the samples of a batch have different shapes ({few}{' ...' if len(shapes) > 3 else ''})",
        remedy="pass collate='pad', 'list' or a function, or a transform that gives all samples "
        "one shape",
    )


class Blamed:
    """A context manager that turns an exception of the user's code into an error of one line.

    The line names the place in the user's code. The exception stays its cause.
    """

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, IobenchError):
            return
        frames = traceback.extract_tb(error.__traceback__)
        # The last line of the user's own files; the libraries that it calls come behind it.
        own = [frame for frame in frames[1:] if "site-packages" not in frame.filename]
        where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
        raise UsageError(
            f"{self.what}{where}: {type(error).__name__}: {_first_line(error)}",
            remedy="correct your function",
        ) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300]
