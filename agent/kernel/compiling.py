"""How the kernels are compiled: numba's decorators, and what it lacks to reach plain memory.

Numba keeps what it compiled on disk and renews that when the file of the outermost function
changes. Ours lie in several files, so only the functions that Python calls are kept, and each has
`SOURCES`, a checksum of all that goes into them, in its closure: that is part of the cache's key.
"""

# The kernels take numba's typed values; their Python annotations would say nothing.
# Numba hides llvmlite's `ir` from type checkers.
# pyright: basic, reportPrivateImportUsage=false

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import binding
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from ...sketch import elements, exact_counts, formats, table


def _sources() -> int:
    """CRC-32 of this package and of the modules whose constants are compiled in."""
    files = [*sorted(Path(__file__).parent.glob("*.py"))]
    files += [Path(str(module.__file__)) for module in (elements, formats, exact_counts, table)]
    return zlib.crc32(b"".join(file.read_bytes() for file in files))


SOURCES = _sources()


def kept(decorate: Callable[..., Any], function: Callable[..., Any]) -> Any:
    """What a decorator of numba's makes of a function, on disk where a folder can be written.

    Where none can, as in a read-only image, numba refuses; it is compiled at each start then.
    """
    try:
        return decorate(cache=True)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return decorate()(function)


compiled = njit(nogil=True)
"""A function that others of ours call: it runs without the interpreter's lock."""
reordered = njit(nogil=True, fastmath={"reassoc", "nsz", "contract"})
"""The same, its sums in any order: the only freedom that they need to be vectorised."""


@intrinsic
def address_of(typing_context, number):
    """An integer as the address of memory."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(number), codegen


@intrinsic
def take_next(typing_context, address):
    """The int64 at an address, which becomes one more; of several threads each gets another."""

    def codegen(context, builder, signature, arguments):
        word = cgutils.ir.IntType(64)
        place = builder.inttoptr(arguments[0], word.as_pointer())
        return builder.atomic_rmw("add", place, word(1), "monotonic")

    return types.int64(types.int64), codegen


@intrinsic
def exchange(typing_context, address, number):
    """Put a number at an address, and return the int64 that was there, as one operation."""

    def codegen(context, builder, signature, arguments):
        word = cgutils.ir.IntType(64)
        place = builder.inttoptr(arguments[0], word.as_pointer())
        return builder.atomic_rmw("xchg", place, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def call_at(typing_context, function, pointer):
    """Call the C function at an address, which takes one pointer and returns nothing."""

    def codegen(context, builder, signature, arguments):
        kind = cgutils.ir.FunctionType(cgutils.ir.VoidType(), (cgutils.voidptr_t,))
        target = builder.inttoptr(arguments[0], kind.as_pointer())
        builder.call(target, (builder.inttoptr(arguments[1], cgutils.voidptr_t),))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def prefetch(typing_context, address):
    """Ask for the cache line at an address, which may lie outside of any array."""

    def codegen(context, builder, signature, arguments):
        _prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def _prefetch(builder, address):
    word, pointer = cgutils.ir.IntType(32), cgutils.voidptr_t
    kind = cgutils.ir.FunctionType(cgutils.ir.VoidType(), (pointer, word, word, word))
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, (builder.inttoptr(address, pointer), word(0), word(3), word(1)))


@intrinsic
def float_bits(typing_context, number):
    """The bits of a float32."""

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], cgutils.ir.IntType(32))

    return types.uint32(types.float32), codegen


@intrinsic
def count_four(typing_context, octets, groups, first, counts):
    """Add to four int64 how many of some bytes are `first`, `first + 1`, and so on.

    With vectors written out, for the counters must be bytes, too, and numba makes all integers
    wide; of 32 bytes, for comparisons of 64 give masks, which first have to become vectors.

    Args:
        octets: the address of the first byte.
        groups: how many times 64 bytes there are; at most 255, and no counter overflows.
        first: from 0 on.
        counts: the address of the first of the four.
    """

    def codegen(context, builder, signature, arguments):
        ir = cgutils.ir
        byte, half, word = ir.IntType(8), ir.IntType(16), ir.IntType(64)
        vector, wider = ir.VectorType(byte, 32), ir.VectorType(half, 32)
        octets, groups, first, counts = arguments
        kind = ir.FunctionType(half, (wider,))
        add_up = cgutils.get_or_insert_function(
            builder.module, kind, "llvm.vector.reduce.add.v32i16"
        )

        def on_all_lanes(value):
            undefined, zero = ir.Constant(vector, ir.Undefined), ir.IntType(32)(0)
            one = builder.insert_element(undefined, value, zero)
            first_lane = ir.Constant(ir.VectorType(ir.IntType(32), 32), [0] * 32)
            return builder.shuffle_vector(one, undefined, first_lane)

        wanted = [builder.trunc(builder.add(first, word(k)), byte) for k in range(4)]
        wanted = [on_all_lanes(value) for value in wanted]
        none = ir.Constant(vector, [0] * 32)
        found = [[cgutils.alloca_once_value(builder, none) for _ in wanted] for _ in range(2)]
        source = builder.inttoptr(octets, vector.as_pointer())
        with cgutils.for_range(builder, groups) as loop:
            place = builder.mul(loop.index, word(2))
            for side, sums_of_side in enumerate(found):
                place_of_side = builder.gep(source, [builder.add(place, word(side))])
                octets_of_side = builder.load(place_of_side, align=1)
                for value, sums in zip(wanted, sums_of_side, strict=True):
                    hit = builder.sext(builder.icmp_unsigned("==", octets_of_side, value), vector)
                    builder.store(builder.sub(builder.load(sums), hit), sums)
        target = builder.inttoptr(counts, word.as_pointer())
        for k, sums in enumerate(zip(*found, strict=True)):
            place = builder.gep(target, [word(k)])
            left, right = (builder.zext(builder.load(one), wider) for one in sums)
            total = builder.call(add_up, [builder.add(left, right)])
            builder.store(builder.add(builder.load(place), builder.zext(total, word)), place)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


SLOWED_DOWN = ("skylake-avx512", "cascadelake", "cooperlake")
"""Processors whose clock falls while they calculate with vectors of 64 bytes."""


def _doubles_at_once():
    """How many float64 a vector of this machine holds."""
    wide = binding.get_host_cpu_features().get("avx512f", False)
    return 8 if wide and binding.get_host_cpu_name() not in SLOWED_DOWN else 4


LINE = 16
"""Numbers of float32 in a cache line."""
CONTRACT = ("contract",)
"""A product and a sum may be rounded once."""
IN_TURN = (2, 5, 6)
"""Of `_terms` those with two totals each, Σx³, Σx⁸ and Σ ±x: a product and a sum take four cycles,
for which the next one would wait. For two of all seven there are too few registers."""


def _terms(builder, x, turn, magnitude):
    """What `sums_of_lines` adds up, of a vector of numbers and one of their signs."""

    def product(one, other):
        return builder.fmul(one, other, flags=CONTRACT)

    square = product(x, x)
    fourth = product(square, square)
    size = builder.call(magnitude, [x])
    return x, square, product(square, x), fourth, size, product(fourth, fourth), product(x, turn)


@intrinsic
def sums_of_lines(typing_context, values, signs, lines, ahead, stride):
    """Seven sums of some float32: Σx, Σx², Σx³, Σx⁴, Σ|x|, Σx⁸, and Σ ±x with the signs.

    With vectors written out, for a loop that also fetches is not vectorised otherwise: this pass
    calculates most, and so the next chunk comes meanwhile.

    Args:
        values: the address of the first number.
        signs: the address of the first of as many float64, which are 1 or -1.
        lines: how many times `LINE` numbers there are.
        ahead: the address of the first line to fetch, which may lie outside of any array.
        stride: how many bytes further the next one lies.
    """

    def codegen(context, builder, signature, arguments):
        ir, lanes = cgutils.ir, _doubles_at_once()
        values, signs, lines, ahead, stride = arguments
        single, double, word = ir.FloatType(), ir.DoubleType(), ir.IntType(64)
        narrow, wide = ir.VectorType(single, lanes), ir.VectorType(double, lanes)
        none = ir.Constant(wide, [0.0] * lanes)
        magnitude = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(wide, (wide,)), f"llvm.fabs.v{lanes}f64"
        )
        add_up = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(double, (double, wide)),
            f"llvm.vector.reduce.fadd.v{lanes}f64",
        )
        found = [[cgutils.alloca_once_value(builder, none) for _ in range(7)] for _ in range(2)]
        numbers = builder.inttoptr(values, narrow.as_pointer())
        turns = builder.inttoptr(signs, wide.as_pointer())

        with cgutils.for_range(builder, lines) as loop:
            _prefetch(builder, builder.add(ahead, builder.mul(loop.index, stride)))
            for part in range(LINE // lanes):
                place = builder.mul(loop.index, word(LINE // lanes))
                place = [builder.add(place, word(part))]
                x = builder.fpext(builder.load(builder.gep(numbers, place), align=4), wide)
                turn = builder.load(builder.gep(turns, place), align=8)
                for k, term in enumerate(_terms(builder, x, turn, magnitude)):
                    total = found[part % 2 if k in IN_TURN else 0][k]
                    builder.store(builder.fadd(builder.load(total), term, flags=CONTRACT), total)
        pairs = [[builder.load(total) for total in both] for both in zip(*found, strict=True)]
        totals = [builder.fadd(*both) for both in pairs]
        sums = [
            builder.call(add_up, [double(0.0), total], fastmath=("reassoc",)) for total in totals
        ]
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(types.float64, 7)(*[types.int64] * 5), codegen
