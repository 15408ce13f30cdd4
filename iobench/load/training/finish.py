"""What workers do with the samples of a batch for a training: shapes, the transform, the collate.

Samples that nothing is done with stay where they were read to, in the loader's ring, and only their
shapes are sent. A transform or a collate function runs in the worker, and its result is sent as
torch's DataLoader sends batches.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...base.errors import UsageError
from ..delivered import Extents
from ..null import AnyReader
from ..order import Indices
from ..reader import BatchReader
from .collate import Blamed, Collate, put_together

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
