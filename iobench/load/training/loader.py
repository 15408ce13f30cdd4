"""iobench's own loader for a training: batches of samples with their labels.

What workers do with the samples of a batch for a training: shapes, the transform, the collate,
which makes of them what the training gets: stacked, padded, a list, or the user's own.

Samples that nothing is done with stay where they were read to, in the loader's ring, and only their
shapes are sent. A transform or a collate function runs in the worker, and its result is sent as
torch's DataLoader sends batches.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from ...base.errors import IobenchError, UsageError, first_line
from ...settings.workload import LoaderSpec, ReaderSpec
from ..loader import Batch, BatchLoader
from ..null import AnyReader
from ..order import BatchPlan, Indices
from ..reader import BatchReader
from ..requests import Extents, Stats
from .labels import Label, Labels

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
            f"the samples of a batch cannot be stacked: {first_line(error, 300)}",
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
            f"{self.what}{where}: {type(error).__name__}: {first_line(error, 300)}",
            remedy="correct your function",
        ) from error


Transform = Callable[[Any], Any]

Shapes = npt.NDArray[np.int64]


class NoteShapes:
    """Returns the shapes of the samples of a batch: int64 [samples, dimensions].

    None if they have none, which are then flat bytes.
    """

    replaces = False

    def prepare(self, reader: AnyReader) -> None:
        if isinstance(reader, BatchReader) and reader.shaped:
            reader.shapes = {}

    def __call__(
        self, reader: AnyReader, indices: Indices, delivered: Extents, memory: memoryview
    ) -> Shapes | None:
        if not isinstance(reader, BatchReader) or reader.shapes is None:
            return None
        shapes = np.array([reader.shapes[index] for index in indices.tolist()], np.int64)
        reader.shapes.clear()
        return shapes


class Transformed(NoteShapes):
    """Applies the user's transform to each sample, and puts the results together."""

    replaces = True

    def __init__(self, transform: Transform | None, collate: Collate, layout: str | None) -> None:
        self.transform = transform
        self.collate = collate
        self.layout = layout

    def __call__(
        self, reader: AnyReader, indices: Indices, delivered: Extents, memory: memoryview
    ) -> Any:
        shapes = super().__call__(reader, indices, delivered, memory)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        samples: list[Any] = list(
            as_samples(whole, delivered.offsets, delivered.lengths, shapes, self.layout)
        )
        if self.transform is not None:
            for place, index in enumerate(indices.tolist()):
                with Blamed(f"the transform failed on sample {index}"):
                    samples[place] = self.transform(samples[place])
                if samples[place] is None:
                    raise UsageError(
                        f"the transform returned None for sample {index}",
                        remedy="return the sample from your function",
                    )
        return put_together(samples, self.collate)

    def check_sendable(self, start_method: str) -> None:
        """Raise UsageError if the user's functions cannot be sent to worker processes."""
        for what, function in (("transform", self.transform), ("collate", self.collate)):
            try:
                pickle.dumps(function)
            except Exception as error:
                raise UsageError(
                    f"the {what} cannot be sent to worker processes, which start_method "
                    f"'{start_method}' needs: {error}",
                    remedy="use a function of a module, not a lambda or an inner function, or "
                    "loader={'start_method': 'fork'}",
                ) from error


def as_samples(
    whole: torch.Tensor,
    offsets: Indices,
    lengths: Indices,
    shapes: Shapes | None,
    layout: str | None,
) -> Iterator[torch.Tensor]:
    """Yield each sample as a view of ``whole``: uint8 [bytes], or an image of ``layout``."""
    for place, (offset, length) in enumerate(zip(offsets.tolist(), lengths.tolist(), strict=True)):
        sample = whole[offset : offset + length]
        if shapes is not None:
            sample = in_layout(sample.view(shapes[place].tolist()), layout)
        yield sample


def in_layout(images: torch.Tensor, layout: str | None) -> torch.Tensor:
    """Return images [..., height, width, channels] in the layout, without a copy."""
    return images.movedim(-1, -3) if layout == "CHW" else images


Layout = Literal["HWC", "CHW"]


class _Pair(NamedTuple):
    samples: Any
    labels: torch.Tensor | list[Label] | None


class Examples(_Pair):
    """A batch for a training, as other loaders give it: the tuple ``samples, labels``.

    ``samples``: what the transform and the collate gave. Without them, it is uint8 [samples,
    height, width, channels] for images (``layout="CHW"``: channels first), and [samples, bytes] for
    other samples; a list for ``collate="list"``, a ``Padded`` for ``"pad"``. ``labels``: int64
    [samples], or a list of raw labels, or None if there are none.

    ``indices``: int64 [samples], the numbers of the samples in the dataset. ``stats``: what it cost
    to read them. Both are None in a copy that other software made, such as one on a device.
    """

    indices: Indices | None = None
    stats: Stats | None = None


class Wishes(NamedTuple):
    """What a training asks of the loader; None: not asked for."""

    layout: str | None = None
    transform: Transform | None = None
    collate: Collate | None = None

    def check(self, reader: BatchReader, reading: ReaderSpec) -> None:
        """Raise UsageError for what this dataset cannot give, or what is no valid value."""
        if self.layout not in (None, "HWC", "CHW"):
            raise UsageError(f"layout '{self.layout}' is not known", remedy="use 'HWC' or 'CHW'")
        if self.layout is not None and not reader.shaped:
            raise UsageError(
                f"layout is for images, and samples of content '{reader.manifest.spec.content}' "
                "are delivered as bytes" + ("" if reading.decode else " with reader.decode off"),
                remedy="leave layout out, and make the arrays in a transform",
            )
        if reader.shaped and reading.crop is not None:
            raise UsageError(
                "reader.crop counts bytes, so that an image would lose its shape",
                remedy="crop the image in a transform, and leave reader.crop out",
            )
        if self.transform is not None and not callable(self.transform):
            raise UsageError(
                f"the transform is a {type(self.transform).__name__}",
                remedy="pass a function that takes a sample and returns one",
            )
        if not (self.collate is None or self.collate in COLLATES or callable(self.collate)):
            raise UsageError(
                f"collate {self.collate!r} is not known",
                remedy="use 'stack', 'pad', 'list', or a function that takes a list of samples",
            )

    def finish(self, loading: LoaderSpec) -> NoteShapes:
        """Return what the workers do with a batch. Raises UsageError."""
        if self.transform is None and (self.collate is None or isinstance(self.collate, str)):
            return NoteShapes()
        work = Transformed(self.transform, self.collate or "stack", self.layout)
        processes = loading.workers and loading.transport != "thread"
        if processes and loading.start_method != "fork":
            work.check_sendable(loading.start_method)
        return work


def loading_for(wishes: Wishes, loading: LoaderSpec) -> LoaderSpec:
    """Return the loader's settings for these wishes.

    What a transform returns has no known size, so that it is not sent in the ring's slots. Raises
    UsageError for a loader that has no labels, shapes and transforms.
    """
    if loading.subject.reads_itself:
        raise UsageError(
            f"labels, layout, transform and collate are of iobench's own loader, not of "
            f"'{loading.kind}'",
            remedy=f"leave loader kind out, or use {loading.kind} directly",
        )
    if loading.transport == "null":
        raise UsageError(
            "transport 'null' delivers only byte counts, and no samples",
            remedy="use transport 'ring', 'tensor' or 'thread'",
        )
    if loading.transport == "ring" and wishes.finish(loading).replaces:
        return loading.model_copy(update={"transport": "tensor"})
    return loading


class _Rest:
    """The plan of an epoch without its first ``skip`` batches.

    It does not hold the TrainingLoader: whoever drops that ends its workers at once, and not in the
    middle of a garbage collection, in which torch can't end them without tracebacks.
    """

    def __init__(self, plan: Callable[[int], BatchPlan]) -> None:
        self.plan, self.skip = plan, 0

    def __call__(self, epoch: int) -> BatchPlan:
        plan = self.plan(epoch)
        return plan.after(self.skip) if self.skip else plan


class TrainingLoader:
    """Iterates over ``Examples``: the batches of one rank in one epoch.

    ``labels``: those of the dataset, or None. ``len()`` is the number of batches of the epoch. The
    order depends on seed and epoch alone, not on the number of workers. (For Parquet, workers
    change the order in which the same batches come.)
    """

    def __init__(
        self,
        inner: BatchLoader,
        labels: Labels | None,
        wishes: Wishes,
        facts: Mapping[str, int],
    ) -> None:
        """``facts``: what must be the same for a state to be continued."""
        self.labels = labels
        self.inner = inner
        self._wishes = wishes
        self._facts = dict(facts)
        self._done = 0
        self._rest = inner.plan_epoch = _Rest(inner.plan_epoch)

    @property
    def epoch(self) -> int:
        return self.inner.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads; each epoch has its own order.

        The epoch of a state that was loaded begins where the state was taken.
        """
        if epoch != self.inner.epoch:
            self._rest.skip = self._done = 0
        self.inner.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._rest.plan(self.inner.epoch))

    def __iter__(self) -> Iterator[Examples]:
        self._done = self._rest.skip
        batches = iter(self.inner)
        first = next(batches, None)  # the plan of the epoch is taken with the first batch
        self._rest.skip = 0
        if first is None:
            return
        self._done += 1
        yield self._examples(first)
        del first
        for batch in batches:
            self._done += 1
            yield self._examples(batch)

    def _examples(self, batch: Batch) -> Examples:
        labels = self.labels.of(batch.indices) if self.labels is not None else None
        found = Examples(self._samples(batch), labels)
        found.indices, found.stats = batch.indices, batch.stats
        return found

    def _samples(self, batch: Batch) -> Any:
        finish, layout = self.inner.finish, self._wishes.layout
        if finish is not None and finish.replaces:
            return batch.made
        shapes: Any = batch.made
        if self._wishes.collate in ("list", "pad"):
            assert batch.data is not None
            samples = list(as_samples(batch.data, batch.offsets, batch.lengths, shapes, layout))
            return samples if self._wishes.collate == "list" else pad(samples)
        table = batch.lengths[:, None] if shapes is None else shapes
        if (table != table[0]).any():
            raise ragged({tuple(shape) for shape in table.tolist()})
        whole = batch.stacked()
        return whole if shapes is None else in_layout(whole.view(len(batch), *table[0]), layout)

    def state_dict(self) -> dict[str, int]:
        """Return the place in the epoch, after the last batch that the loop got.

        Raises UsageError where batches come in the order in which workers end them.
        """
        if not self.inner.loader_spec.in_order:
            raise UsageError(
                "with loader.in_order=false nobody knows which batches of an epoch are left",
                remedy="leave in_order out",
            )
        return {"epoch": self.inner.epoch, "batches": self._done, **self._facts}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue where a state was taken: the next iteration leaves out the batches before it.

        The number of workers may be another one, unless they change the order (Parquet). Raises
        UsageError then, and for a state of another dataset, batch size, seed, rank or number of
        ranks.
        """
        for name, value in self._facts.items():
            if state.get(name) != value:
                raise UsageError(
                    f"the state was taken with {name} {state.get(name)}, but this loader has "
                    f"{value}",
                    remedy="make the loader with the same dataset and settings",
                )
        self.inner.set_epoch(int(state["epoch"]))
        self._rest.skip = self._done = int(state["batches"])

    def shutdown(self) -> None:
        """End the workers now, not only when the loader is garbage-collected."""
        self.inner.shutdown()
