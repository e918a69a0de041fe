"""Sketches in plain torch operations, for any device: the fallback of the engine.

The arithmetic is that of `sketch.reference` and `sketch.table`, in float64 on the device, chunk by
chunk; nothing here reads a value back to the host, or waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ...sketch.elements import BLOCK, WITHIN, Region
from ...sketch.formats import normal_bin
from ...sketch.table import (
    ABS_MIN,
    ADDITIVE,
    BINS,
    COUNT,
    COUNTS,
    FIRST_EXPONENT,
    L1,
    M2,
    M3,
    M4,
    MAX,
    MIN,
    MOMENTS,
    NAN,
    NEG_INF,
    NEGATIVE,
    OVER,
    POS_INF,
    PROJECTION,
    S8,
    SUBNORMAL,
    SUM,
    UNBINNED,
    UNDER,
    ZERO,
)
from ..reading import Reading
from .found import Found
from .local import READABLE, dtype_name, in_memory_order

CHUNK = {"cpu": 1 << 17}
"""Elements that are summarised at a time: on the CPU so many that their scratch stays in cache."""
CHUNK_ELSEWHERE = 1 << 20
"""On an accelerator so many that its scratch takes 52 MiB."""

MOST_LEAVES = 1024
"""Sketches of chunks that may wait to be merged, 2.4 kB each: many at once cost as one."""

BIAS, SPECIAL = 1023, 2047
"""Of float64's exponent field: that of 1, and that of infinity and NaN."""
CODE_BITS = 13
"""Sign, exponent field and first bit of the mantissa of a float64: that bit tells NaN from
infinity, for arithmetic leaves no NaN without it."""
MAGNITUDE = (1 << 63) - 1
"""All bits of a float64 but its sign."""
UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}

Columns = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""counts, moments, checksum and histogram: of one row, or with the rows as first axis."""


def merge(a: Columns, b: Columns) -> Columns:
    """`SketchTable.merge`, on the device."""
    moments = _merge_moments(_measured(a[0]), a[1].T, _measured(b[0]), b[1].T).T
    return a[0] + b[0], moments, a[2] + b[2], a[3] + b[3]


def merge_rows(owners: Sequence[int], rows: Sequence[Columns]) -> tuple[list[int], Columns]:
    """Merge the rows of each owner, always in the same order: a balanced tree.

    Returns the owners, each once, and their rows.
    """
    table = stack(rows)
    places: dict[int, list[int]] = {}
    for place, owner in enumerate(owners):
        places.setdefault(owner, []).append(place)
    while any(len(own) > 1 for own in places.values()):
        pairs = list[tuple[int, int]]()
        for own in places.values():
            half = (len(own) + 1) // 2
            pairs += zip(own, own[half:], strict=False)
            del own[half:]
        left, right = on_device(pairs, table[0].device).T
        merged = merge(take(table, left), take(table, right))
        for column, new in zip(table, merged, strict=True):
            column[left] = new
    kept = on_device([own[0] for own in places.values()], table[0].device)
    return list(places), take(table, kept)


def on_device(
    indices: Sequence[int] | Sequence[tuple[int, ...]] | NDArray[np.int64], device: torch.device
) -> torch.Tensor:
    """Indices as a tensor, without waiting for the device."""
    array = np.array(indices, np.int64)  # faster than torch's own way
    if device.type != "cuda":
        return torch.from_numpy(array).to(device)
    # By numpy: torch would copy a large table on all cores, which then wait in vain for more work.
    host = torch.empty(array.shape, dtype=torch.int64, device="cpu", pin_memory=True)
    host.numpy()[...] = array
    return host.to(device, non_blocking=True)


def keep_for_stream(tensor: torch.Tensor) -> None:
    """Its memory is nobody else's before what is queued on the current stream has used it.

    It may have been made on another stream.
    """
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def stack(rows: Sequence[Columns]) -> Columns:
    """Single rows as columns."""
    counts, moments, checksum, histogram = zip(*rows, strict=True)
    return torch.stack(counts), torch.stack(moments), torch.stack(checksum), torch.stack(histogram)


def take(table: Columns, rows: torch.Tensor) -> Columns:
    """The chosen rows."""
    counts, moments, checksum, histogram = table
    return counts[rows], moments[rows], checksum[rows], histogram[rows]


def repeat(row: Columns, copies: int) -> Columns:
    """As `SketchTable.repeat`, of one row."""
    counts, moments, checksum, histogram = row
    moments = moments.clone()
    moments[ADDITIVE] *= copies
    return counts * copies, moments, checksum * copies, histogram * copies


def _measured(counts: torch.Tensor) -> torch.Tensor:
    """float64: how many finite elements are in the sums; the counts are the last axis."""
    apart = counts[..., POS_INF] + counts[..., NEG_INF] + counts[..., UNBINNED]
    return (counts[..., COUNT] - counts[..., NAN] - apart).double()


def row_words() -> int:
    """Eight-byte words of one row."""
    return len(COUNTS) + len(MOMENTS) + 1 + BINS


def columns_of(words: torch.Tensor, rows: int) -> Columns:
    """counts, moments, checksum and histogram of `rows` rows, as views of one flat int64 buffer."""
    counts, moments, checksum, histogram = words.split(
        [len(COUNTS) * rows, len(MOMENTS) * rows, rows, BINS * rows]
    )
    return (
        counts.view(rows, -1),
        moments.view(torch.float64).view(rows, -1),
        checksum,
        histogram.view(rows, -1),
    )


class Plain:
    """The engine in plain torch operations: it works on every device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arithmetic = Arithmetic(device)
        self._leaves: list[tuple[int, Columns]] = []

    def has_room(self, tensor: torch.Tensor, _how: Reading) -> bool:
        """Whether few enough sketches wait to be merged."""
        return len(self._leaves) < MOST_LEAVES

    def add(self, row: int, tensor: torch.Tensor, how: Reading) -> None:
        """Queue the sketches of the chunks of a contiguous tensor."""
        arithmetic, flat = self._arithmetic, tensor.view(-1)
        for leaf in arithmetic.glance(flat, how) if how.sentinel else arithmetic.sketch(flat, how):
            self._leaves.append((row, repeat(leaf, how.copies) if how.copies > 1 else leaf))

    def prepare(
        self, found: Sequence[Found]
    ) -> Callable[[Sequence[torch.Tensor | None], Columns], None]:
        """What queues the sketches of tensors, one for each or None."""

        def read(tensors: Sequence[torch.Tensor | None], into: Columns) -> None:
            for one, tensor in zip(found, tensors, strict=True):
                if tensor is not None:
                    if not self.has_room(tensor, one.how):
                        self.absorb(into)
                    self.add(one.row, in_memory_order(tensor.detach())[0], one.how)

        return read

    def absorb(self, rows: Columns) -> None:
        """Queue the merge of the sketches that wait into the rows of a step."""
        waiting, self._leaves = self._leaves, []
        if not waiting:
            return
        owners, leaves = merge_rows([row for row, _ in waiting], [leaf for _, leaf in waiting])
        places = on_device(owners, self._device)
        for column, merged in zip(rows, merge(take(rows, places), leaves), strict=True):
            column[places] = merged


class Arithmetic:
    """Sketches of tensors of one device, in scratch that is made once."""

    def __init__(self, device: torch.device) -> None:
        self.chunk = CHUNK.get(device.type, CHUNK_ELSEWHERE)
        with torch.inference_mode(False):  # else what is made there could be changed only there
            self._make_scratch(device)

    def _make_scratch(self, device: torch.device) -> None:
        self._raw, self._values, self._square, self._signs = (
            torch.empty(self.chunk, dtype=torch.float64, device=device) for _ in range(4)
        )
        self._bits, self._weights = (
            torch.empty(self.chunk, dtype=torch.int64, device=device) for _ in range(2)
        )
        self._codes = torch.empty(self.chunk, dtype=torch.int32, device=device)
        self._nothing = torch.zeros(BINS, dtype=torch.int64, device=device)
        self._one = torch.ones(1, dtype=torch.int64, device=device)
        within = torch.as_tensor(WITHIN.astype("i8"), device=device)
        self._table = within
        self._within = within | 1, (1 - 2 * (within >> 31)).double()
        self._first = _block_keys(0, self.chunk, device)
        self._indicators = {dtype: _indicators(dtype).to(device) for dtype in READABLE}

    def sketch(self, flat: torch.Tensor, how: Reading) -> Iterator[Columns]:
        """The sketches of the chunks of a contiguous tensor of one axis."""
        for start in range(0, flat.numel(), self.chunk):
            yield self._sketch_chunk(flat[start : start + self.chunk], start, how.region)

    def glance(self, flat: torch.Tensor, how: Reading) -> Iterator[Columns]:
        """What a sentinel sees of the chunks of a contiguous tensor of one axis."""
        for start in range(0, flat.numel(), self.chunk):
            chunk = flat[start : start + self.chunk]
            counts, moments, checksum, histogram = self._glance_at_chunk(chunk)
            if how.compared:
                weights, _ = self._element_keys(start, chunk.numel(), how.region, flat.device)
                checksum = self._checksum(chunk, weights)
            yield counts, moments, checksum, histogram

    def _glance_at_chunk(self, x: torch.Tensor) -> Columns:
        raw, values = self._raw[: x.numel()], self._values[: x.numel()]
        raw.copy_(x)
        found = torch.zeros(len(COUNTS), dtype=torch.int64, device=x.device)
        for column, number in ((POS_INF, torch.inf), (NEG_INF, -torch.inf)):
            found[column] = torch.count_nonzero(raw == number)
        found[NAN] = torch.count_nonzero(raw.isnan())
        found[UNBINNED] = x.numel() - found.sum()
        found[COUNT] = x.numel()
        moments = torch.zeros(len(MOMENTS), dtype=torch.float64, device=x.device)
        moments[ABS_MIN] = torch.inf
        moments[MIN], moments[MAX] = self._range(raw, values)
        return found, moments, self._nothing[0], self._nothing

    @staticmethod
    def _range(raw: torch.Tensor, scratch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The extremes of the finite elements."""
        least = torch.nan_to_num(raw, torch.inf, torch.inf, torch.inf, out=scratch).amin()
        most = torch.nan_to_num(raw, -torch.inf, -torch.inf, -torch.inf, out=scratch).amax()
        return least, most

    def _sketch_chunk(self, x: torch.Tensor, start: int, region: Region | None) -> Columns:
        n = x.numel()
        raw, values = self._raw[:n], self._values[:n]
        # A product, for it leaves no NaN that looks like infinity.
        torch.mul(x, 1.0, out=raw) if x.dtype == torch.float64 else raw.copy_(x)
        codes = self._count_codes(raw)
        least, most = self._range(raw, values)
        torch.nan_to_num(raw, 0.0, 0.0, 0.0, out=values)
        weights, signs = self._element_keys(start, n, region, x.device)
        counts, histogram = self._counts(codes, values, x)
        extremes = {MIN: least, MAX: most, ABS_MIN: self._smallest(values)}
        projection = torch.dot(values, signs)
        moments = self._moments(raw, values, _measured(counts), extremes, projection)
        return counts, moments, self._checksum(x, weights), histogram

    def _element_keys(
        self, start: int, n: int, region: Region | None, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 and float64 [n]: the factors of each element in checksum and projection."""
        if region is not None:
            place = torch.arange(start, start + n, device=device)
            index = region.origin + place // region.run * region.pitch + place % region.run
            keys = self._table[index % BLOCK] ^ block_key(index // BLOCK)
            return keys | 1, (1 - 2 * (keys >> 31)).double()
        blocks = -(-n // BLOCK)
        keys, signs = _block_keys(start, n, device) if start else (k[:blocks] for k in self._first)
        weights, of_block = self._weights[: blocks * BLOCK], self._signs[: blocks * BLOCK]
        torch.bitwise_xor(self._within[0], keys[:, None], out=weights.view(-1, BLOCK))
        torch.mul(self._within[1], signs[:, None], out=of_block.view(-1, BLOCK))
        return weights[:n], of_block[:n]

    def _count_codes(self, raw: torch.Tensor) -> torch.Tensor:
        """int64 [2, 2048, 2]: elements by sign, exponent field and first bit of the mantissa."""
        codes = self._codes[: len(raw)]
        codes.copy_(raw.view(torch.int32)[1::2])  # the upper half of little-endian words
        codes >>= 32 - CODE_BITS
        codes &= (1 << CODE_BITS) - 1
        if codes.device.type == "cpu":
            counted = torch.bincount(codes, minlength=1 << CODE_BITS)
        else:  # there `bincount` waits for the device
            counted = torch.zeros(1 << CODE_BITS, dtype=torch.int64, device=codes.device)
            counted.index_add_(0, codes, self._one.expand(len(codes)))
        return counted.view(2, SPECIAL + 1, 2)

    def _counts(
        self, codes: torch.Tensor, values: torch.Tensor, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Counts and histogram; `values` are those of `x`, zero where it is not finite."""
        by_code = codes.view(-1).double()
        counts = (self._indicators[x.dtype] @ by_code).long()  # exact below 2^53
        fields = codes.sum((0, 2))
        first = BIAS + FIRST_EXPONENT
        if x.dtype == torch.float64:  # the field of zero holds its subnormals, too
            below = torch.count_nonzero(values) - fields[1:SPECIAL].sum()
            counts[ZERO] -= below
            counts[UNDER] += below
            counts[SUBNORMAL] = below
            counts[NEGATIVE] = torch.count_nonzero(values < 0)
        return counts, fields[first : first + BINS].clone()  # a view would keep all fields alive

    def _smallest(self, values: torch.Tensor) -> torch.Tensor:
        """The smallest magnitude that is not zero, as integers: no comparison, no mask."""
        bits = self._bits[: len(values)]
        torch.bitwise_and(values.view(torch.int64), MAGNITUDE, out=bits)
        bits -= 1
        bits &= MAGNITUDE
        least = bits.amin()
        return torch.where(least == MAGNITUDE, torch.inf, (least + 1).view(torch.float64))

    def _moments(
        self,
        raw: torch.Tensor,
        values: torch.Tensor,
        finite: torch.Tensor,
        extremes: Mapping[int, torch.Tensor],
        projection: torch.Tensor,
    ) -> torch.Tensor:
        """Moments of `values`, which are those of `raw`, zero where that is not finite."""
        n = len(values)
        total = values.sum()
        central, square = raw, self._square[:n]
        # NaN where it is not finite, so that a difference that overflows is told from it.
        central.mul_(0.0).add_(values).sub_(total / finite.clamp(min=1))
        torch.nan_to_num(central, 0.0, torch.inf, -torch.inf, out=central)
        torch.mul(central, central, out=square)
        m2, m3, m4 = square.sum(), torch.dot(square, central), torch.dot(square, square)
        shift = -_scale_exponent(torch.maximum(-extremes[MIN], extremes[MAX]).clamp(min=0.0))
        half = shift // 2  # in two steps: float64's subnormals need more than one factor can hold
        scaled = torch.mul(values, torch.exp2(half.double()), out=square)
        scaled *= torch.exp2((shift - half).double())
        for _ in range(2):
            torch.mul(scaled, scaled, out=scaled)
        sums = {
            **extremes,
            SUM: total,
            L1: torch.linalg.vector_norm(values, 1),
            M2: m2,
            M3: m3,
            M4: m4,
            S8: torch.dot(scaled, scaled),
            PROJECTION: projection,
        }
        return torch.stack([sums[i] for i in range(len(MOMENTS))])

    def _checksum(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        bits = self._bits[: x.numel()]
        bits.copy_(x.view(UNSIGNED[x.element_size()]))
        return bits.mul_(weights).sum()


def _indicators(dtype: torch.dtype) -> torch.Tensor:
    """float64 [len(COUNTS), codes]: 1 where elements of a code are counted."""
    of = torch.zeros(len(COUNTS), 2, SPECIAL + 1, 2, dtype=torch.float64)
    first = BIAS + FIRST_EXPONENT
    of[COUNT] = 1
    of[NAN, :, SPECIAL, 1] = 1
    of[POS_INF, 0, SPECIAL, 0] = 1
    of[NEG_INF, 1, SPECIAL, 0] = 1
    of[ZERO, :, 0] = 1
    of[NEGATIVE, 1, 1:SPECIAL] = 1
    of[SUBNORMAL, :, first : first + normal_bin(dtype_name(dtype))] = 1
    of[UNDER, :, 1:first] = 1
    of[OVER, :, first + BINS : SPECIAL] = 1
    return of.view(len(COUNTS), -1)


def _scale_exponent(magnitude: torch.Tensor) -> torch.Tensor:
    """As `sketch.table.scale_exponent`."""
    return torch.where(magnitude > 0, torch.frexp(magnitude)[1] - 1, -1200)


def _merge_moments(
    na: torch.Tensor, a: torch.Tensor, nb: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """The moments [len(MOMENTS), rows] of na + nb finite elements."""
    n = (na + nb).clamp(min=1)
    d = b[SUM] / nb.clamp(min=1) - a[SUM] / na.clamp(min=1)
    d = torch.where((na > 0) & (nb > 0), d, 0.0)
    dn, weight = d / n, na * nb / n
    fourth = d * dn * dn * d * weight * (na * na - na * nb + nb * nb)
    fourth = fourth + 6 * dn * dn * (na * na * b[M2] + nb * nb * a[M2])
    third = d * dn * d * weight * (na - nb) + 3 * dn * (na * b[M2] - nb * a[M2])
    mine = _scale_exponent(torch.maximum(-a[MIN], a[MAX]).clamp(min=0.0))
    theirs = _scale_exponent(torch.maximum(-b[MIN], b[MAX]).clamp(min=0.0))
    common = torch.maximum(mine, theirs)
    eighth = _shifted(a[S8], mine - common) + _shifted(b[S8], theirs - common)
    merged = {
        SUM: a[SUM] + b[SUM],
        L1: a[L1] + b[L1],
        M2: a[M2] + b[M2] + d * d * weight,
        M3: a[M3] + b[M3] + third,
        M4: a[M4] + b[M4] + fourth + 4 * dn * (na * b[M3] - nb * a[M3]),
        S8: eighth,
        PROJECTION: a[PROJECTION] + b[PROJECTION],
        MIN: torch.minimum(a[MIN], b[MIN]),
        MAX: torch.maximum(a[MAX], b[MAX]),
        ABS_MIN: torch.minimum(a[ABS_MIN], b[ABS_MIN]),
    }
    return torch.stack([merged[i] for i in range(len(MOMENTS))])


def _shifted(s8: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """s8 · 2^(8·exponents), for exponents <= 0 of any size."""
    return s8 * torch.exp2((8 * exponents).clamp(min=-1022).double())


def _block_keys(start: int, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 keys of the blocks touched, even, and the float64 signs in them.

    BLOCK divides `start`.
    """
    blocks = torch.arange(start // BLOCK, (start + length - 1) // BLOCK + 1, device=device)
    keys = block_key(blocks)
    return keys & ~1, (1 - 2 * (keys >> 31)).double()


def block_key(z: torch.Tensor) -> torch.Tensor:
    """int64: `sketch.elements.block_key`, of int64."""
    z = z - 7046029254386353131  # 0x9E3779B97F4A7C15 as int64
    z = (z ^ _shift_right(z, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    z = (z ^ _shift_right(z, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return _shift_right(z ^ _shift_right(z, 31), 32)


def _shift_right(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
