"""Models that are trained: real computation, in plain torch, which takes its time from a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...plugins import PlugIn, Registry

if TYPE_CHECKING:  # torch is imported with the model that is used
    from .networks import Model

NETWORKS: Registry[Model] = Registry(
    "network",
    "iobench.networks",
    __name__,
    {
        "resnet18": PlugIn(
            ".networks:ResNet18", "ResNet-18, 11.7 million parameters, images of 224 x 224 pixels"
        ),
        "resnet50": PlugIn(
            ".networks:ResNet50", "ResNet-50, 25.6 million parameters, images of 224 x 224 pixels"
        ),
        "vit-s16": PlugIn(
            ".networks:ViTS16", "ViT-S/16, 22.1 million parameters, images of 224 x 224 pixels"
        ),
        "vit-b16": PlugIn(
            ".networks:ViTB16", "ViT-B/16, 86.6 million parameters, images of 224 x 224 pixels"
        ),
        "unet3d": PlugIn(
            ".networks:UNet3D",
            "3D U-Net as in MLPerf, 31.2 million parameters, 128 x 128 x 128 voxels",
        ),
        "gpt2": PlugIn(
            ".networks:GPT2", "GPT-2, 124 million parameters, windows of 1,024 tokens of 16 bits"
        ),
    },
)
