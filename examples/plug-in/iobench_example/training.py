"""A loader library and a checkpoint writer."""

from __future__ import annotations

from iobench.checkpoint.torch_save import TorchSave
from iobench.load.libraries.base import Library
from iobench.load.libraries.building_blocks import ByIndex, Collate


class OneByOne(Library):
    """Reads a sample after the other in the process of the training."""

    package = "iobench-example"

    def __init__(self, source):
        super().__init__(source)
        self.samples, self.collate = ByIndex(source), Collate(source)

    def epoch(self, epoch):
        for batch in self.source.batches(epoch):
            yield self.collate([self.samples[index] for index in batch])


class Saving(TorchSave):
    """``torch.save`` under another name. Yours has its own ``suffix``, ``write`` and ``read``."""

    name = "saving"
