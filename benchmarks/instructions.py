"""Instructions an element of the GPU kernels, counted in their code: no GPU is needed.

What counts is the loop over the elements of a chunk: in CUDA C the way on which all elements are
finite and of ordinary size, in Triton all of it. Needs `cuda-bindings`, NVRTC, and Triton, whose
`cuobjdump` prints the code.
"""

from __future__ import annotations

import argparse
import heapq
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rankscope.agent.torch.cuda.nvrtc import compiled
from rankscope.agent.torch.triton import kernels

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
LINE = re.compile(r"\s+/\*([0-9a-f]+)\*/\s+(.*?);")
TARGET = re.compile(r"BRA\S*\s.*?(0x[0-9a-f]+)")
PER_THREAD = 16
"""Elements of a tile that a thread of the CUDA C kernels holds: `PER` of elements.cu."""
WARPS = 8
COLUMNS = {"counts": "*i64", "moments": "*fp64", "checksum": "*i64", "histogram": "*i64"}
NUMBERS = ("in_table", "length", "size", "leaf", "first_normal", "origin", "run")
WORDS = {"work": "*i64", "address": "i64", "within": "*i64", "values": "*fp64", "pitch": "i64"}

Code = list[tuple[int, str]]
"""Instructions by address."""


def code_of(binary: bytes, name: str) -> Code:
    """The instructions of a kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(CUOBJDUMP), "-sass", "-fun", name, file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = (LINE.match(line) for line in text.splitlines())
    return [(int(match[1], 16), match[2]) for match in found if match]


def blocks_of(code: Code) -> dict[int, tuple[list[str], list[int]]]:
    """By address of each straight piece, its instructions, and where it may go on."""
    goals = {int(match[1], 16) for _, text in code if (match := TARGET.search(text))}
    starts = [code[0][0]]
    for (_, before), (address, _) in pairwise(code):
        if address in goals or "BRA" in before or "EXIT" in before:
            starts.append(address)
    blocks: dict[int, tuple[list[str], list[int]]] = {}
    for start, end in zip(starts, [*starts[1:], code[-1][0] + 16], strict=True):
        texts = [text for address, text in code if start <= address < end]
        last, ways = texts[-1], list[int]()
        if match := TARGET.search(last):
            ways.append(int(match[1], 16))
        if end in starts and (last.startswith("@") or not re.match(r"BRA|EXIT", last)):
            ways.append(end)
        blocks[start] = texts, ways
    return blocks


def shortest(blocks: dict[int, tuple[list[str], list[int]]], begin: int, end: int) -> float:
    """Instructions from the end of one piece to that of another, at the fewest."""
    waiting, known = [(0, way) for way in blocks[begin][1]], set[int]()
    while waiting:
        length, block = heapq.heappop(waiting)
        if block in known:
            continue
        known.add(block)
        length += len(blocks[block][0])
        if block == end:
            return length
        for way in blocks[block][1]:
            heapq.heappush(waiting, (length, way))
    return float("inf")


def in_cuda(binary: bytes, kind: str) -> float:
    """Of the loop in which whole vectors are loaded, and all their elements are added."""
    blocks = blocks_of(code_of(binary, f"sketch_{kind}"))
    loads = [at for at, (texts, _) in blocks.items() if any(".EF.128" in text for text in texts)]
    added = [at for at, (texts, _) in blocks.items() if _count(texts, "ATOMS") == PER_THREAD]
    rounds = [
        shortest(blocks, one, two) + shortest(blocks, two, one) for one in loads for two in added
    ]
    return min(rounds) / PER_THREAD


def in_triton(capability: int, kind: str) -> float:
    """Of the loop over tiles."""
    types = dict.fromkeys(NUMBERS, "i32") | WORDS | COLUMNS
    order = kernels.sketch_chunks.arg_names
    signature = {name: types.get(name, "constexpr") for name in order}
    constants: Any = {"KIND": kernels.KINDS[kind], "IS_PIECE": False}
    source = ASTSource(fn=kernels.sketch_chunks, signature=signature, constexprs=constants)
    options = {"num_warps": WARPS, "enable_fp_fusion": False}
    made: Any = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    code = code_of(made.asm["cubin"], "sketch_chunks")
    goals = ((address, TARGET.search(text)) for address, text in code)
    loops = [(address - int(match[1], 16)) // 16 + 1 for address, match in goals if match]
    return max(loops) / (kernels.TILE / (32 * WARPS))


def _count(texts: list[str], operation: str) -> int:
    return sum(operation in text for text in texts)


def main() -> None:
    """Print one row a dtype."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capability", type=int, default=90, help="of the GPU, as 90 of an H100")
    capability = parser.parse_args().capability
    if not CUOBJDUMP.exists():
        sys.exit("This Triton has no cuobjdump, and nothing is counted.")
    binary = compiled(f"sm_{capability}")
    print("| dtype | CUDA C | Triton |\n|---|---|---|")
    for kind in ("float32", "bfloat16", "float16"):
        print(f"| {kind} | {in_cuda(binary, kind):.1f} | {in_triton(capability, kind):.1f} |")


if __name__ == "__main__":
    main()
