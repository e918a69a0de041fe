"""The elements and scales of TransformerEngine's quantised tensors, which keep both as plain bytes.

They tell by attributes what the bytes stand for (read in versions 2.8 and 2.20). Scales are padded
for the device's sake; here the padding is cut off.
"""

from __future__ import annotations

import math
from typing import Any

import torch

MX_BLOCK, NVFP4_BLOCK, FLOAT8_BLOCK = 32, 16, 128
"""Elements that share a scale, along an axis."""

DTYPES = {"kFloat8E4M3": torch.float8_e4m3fn, "kFloat8E5M2": torch.float8_e5m2}
"""What TransformerEngine calls the dtypes of elements; pairs of float4 in a byte are not read."""


def is_of_transformer_engine(tensor: torch.Tensor) -> bool:
    """Whether TransformerEngine made the tensor's class."""
    return type(tensor).__module__.partition(".")[0] == "transformer_engine"


def parts_of(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """`data`, `scale_inv` and `amax` of a quantised tensor, as far as it has them and we read them.

    Of a tensor that is quantised along its rows and along its columns, what lies along the rows.
    """
    made: Any = tensor  # its attributes are of its class
    rowwise = getattr(made, "_rowwise_data", None) is not None
    data = made._rowwise_data if rowwise else getattr(made, "_data", None)
    scale = getattr(made, "_rowwise_scale_inv" if rowwise else "_scale_inv", None)
    if data is None or scale is None:
        return []
    parts = dict[str, torch.Tensor]()
    kind = getattr(made, "_fp8_dtype", None)
    dtype = DTYPES.get(getattr(kind, "name", str(kind)))
    if dtype is not None:
        parts["data"] = data.view(dtype)
    parts["scale_inv"] = _scales(made, scale) if rowwise else scale
    amax = getattr(made, "_amax_rowwise", None)
    if amax is not None:
        parts["amax"] = amax
    return list(parts.items())


def _scales(tensor: Any, scale: torch.Tensor) -> torch.Tensor:
    """The scales of the blocks that there are, in their own dtype."""
    rows, columns = math.prod(tensor.shape[:-1]), tensor.shape[-1]
    if scale.dtype != torch.uint8:
        down, right = math.ceil(rows / FLOAT8_BLOCK), math.ceil(columns / FLOAT8_BLOCK)
        used = (down, right) if tensor._is_2D_scaled else (right, rows)
    elif hasattr(tensor, "_fp4_dtype"):
        scale, used = scale.view(torch.float8_e4m3fn), (rows, math.ceil(columns / NVFP4_BLOCK))
    else:
        scale, used = scale.view(torch.float8_e8m0fnu), (rows, math.ceil(columns / MX_BLOCK))
    layout = getattr(getattr(tensor, "_data_format", None), "name", "GEMM_READY")
    if layout != "GEMM_READY" or getattr(tensor, "_with_gemm_swizzled_scales", False):
        return scale  # not padded; or the padding lies between them
    return scale[: used[0], : used[1]]
