"""Compiles the Triton kernels for devices that need not be here; a test runs this by itself."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rankscope.agent.torch.triton import kernels

COLUMNS = {"counts": "*i64", "moments": "*fp64", "checksum": "*i64", "histogram": "*i64"}
OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}
SKETCH = {
    "in_table": "i32",
    "work": "*i64",
    "address": "i64",
    "length": "i32",
    "size": "i32",
    "leaf": "i32",
    "within": "*i64",
    "values": "*fp64",
    **COLUMNS,
    "first_normal": "i32",
    "origin": "i32",
    "run": "i32",
    "pitch": "i64",
    "KIND": "constexpr",
    "IS_PIECE": "constexpr",
}
MERGE = {"runs": "*i64", **COLUMNS, **{f"into_{name}": kind for name, kind in COLUMNS.items()}}


def compiled(
    function: Any, target: GPUTarget, signature: dict[str, str], constants: dict[str, int]
) -> Any:
    """The kernel for a device."""
    source = ASTSource(fn=function, signature=signature, constexprs=constants)
    return triton.compile(source, target=target, options=OPTIONS)


every_kind = (*kernels.KINDS.values(), kernels.BYTES)
for target, kinds in (
    (GPUTarget("cuda", 90, 32), every_kind),
    (GPUTarget("cuda", 80, 32), every_kind[1:2]),
    (GPUTarget("hip", "gfx942", 64), every_kind[1:2]),
):
    for kind in kinds:
        for function, is_piece in (
            (kernels.sketch_chunks, False),
            (kernels.sketch_chunks, True),
            (kernels.glance_chunks, False),
        ):
            constants = {"KIND": kind, "IS_PIECE": is_piece}
            signature = dict(SKETCH)
            if function is kernels.glance_chunks:
                constants["COMPARED"], signature["COMPARED"] = True, "constexpr"
            kernel = compiled(function, target, signature, constants)
            # Subnormal numbers must not be flushed to zero.
            assert ".ftz" not in kernel.asm.get("ptx", "")
    compiled(kernels.merge_leaves, target, MERGE, {})
