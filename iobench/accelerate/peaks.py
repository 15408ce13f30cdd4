"""What GPUs can compute at most: the denominators of model FLOPs utilization.

Source: NVIDIA's datasheets (A100, H100, H200, L4, A10G; HGX B200), tensor cores, dense: where a
datasheet prints the rate with sparsity, half of it. ``float32`` is TF32, by which torch computes
convolutions: a model whose matrix products are true float32 can't reach it.
"""

from __future__ import annotations

_PEAKS: tuple[tuple[str, float, float], ...] = (
    # In the driver's name of the GPU; FLOP/s of TF32; FLOP/s of bfloat16 and float16. The first
    # that is in the name counts.
    ("A100", 156e12, 312e12),
    ("H100 PCIe", 378e12, 756.5e12),
    ("H100 NVL", 417.5e12, 835.5e12),
    ("H100 80GB HBM3", 494.5e12, 989.5e12),
    ("H200 NVL", 417.5e12, 835.5e12),
    ("H200", 494.5e12, 989.5e12),
    ("B200", 1125e12, 2250e12),
    ("A10G", 35e12, 70e12),
    ("L4", 60e12, 121e12),
)

SOURCE = "NVIDIA's datasheet, dense"

STATED = "accelerator.peak_flops"


def peak_of(name: str, precision: str) -> float | None:
    """FLOP/s of the GPU of this name at a precision; None if it is in no row of the table.

    A GPU of which only a part is used (MIG) has another peak, and is in no row.
    """
    words = name.split()
    if "MIG" in words:
        return None
    for known, tf32, half in _PEAKS:
        size = len(known.split())
        if any(words[at : at + size] == known.split() for at in range(len(words))) or any(
            word.startswith(f"{known}-") for word in words
        ):
            return tf32 if precision == "float32" else half
    return None
