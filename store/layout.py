"""How a run lies in its arrays: their names, axes, types, fill values and chunks. No I/O.

Every array has the record as its first axis and lies in two or three tiers. A record is written to
the tail, a ring of small chunks that hold all sites; from there it moves to `recent`, a ring of
chunks of 64 records, and at last to the history, whose wide chunks suit the questions asked of a
long run. So each record is written three times and a wide chunk only once.

Beside them lies the pyramid: what 16 and 256 neighbouring records of the history come to together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..sketch.derive import MAIN
from ..sketch.distribution import RANKED, SPREAD, SUMMARY
from ..sketch.table import BINS, COUNTS, FIRST_EXPONENT, LAST_EXPONENT, MOMENTS

FORMAT = "rankscope/8"
"""Version of the layout, in the attributes of the root group."""

Tier = Literal["history", "recent", "tail"]

CHUNK: Mapping[Tier, int] = {"history": 512, "recent": 64, "tail": 16}
"""Records in a chunk, unless an array's layout says otherwise."""
RING: Mapping[Tier, int] = {"recent": 1024, "tail": 128}
"""Slots of the tiers that are rings: record r lies in slot r modulo this."""

COLUMNS = (
    "step",
    "attempt",
    "time_ns",
    "complete",
    "partial",
    "final",
    "rows",
    "ranks",
    "sketched",
    "glanced",
    "nonfinite",
    "unmatched",
    "kept",
    "alone",
)
"""First columns of the array `records`; 64-bit words after them are a mask of the ranks present.

`rows` are the sites observed; of them `sketched` have elements in the histogram, `glanced` were
left to the sentinel, and `nonfinite` have NaN or infinity. `unmatched` says that the ranks' own
gradients are not what the reduced ones were made of. `kept` says that the ranks
sent it late, after later steps; `alone` that it is of one rank, and its spread is not written."""

RECENT_STATISTICS = 4
"""Statistics in a chunk of the recent tier: most questions are about one, and files cost."""

MAX_SITE_CHUNK, MIN_SITE_CHUNK = 512, 128
NUMBER_CHUNK = 4096
"""Numbers of exact counts in a chunk: most runs have none, and then no chunk."""

VALUE_CHUNK = 1024
"""Numbers of quantities in a chunk."""

Dims = Mapping[str, int]
"""Sizes of the axes that grow: those of `Arrays.dims`."""

FIXED: Dims = {
    "count": len(COUNTS),
    "moment": len(MOMENTS),
    "statistic": len(MAIN),
    "extreme": len(SPREAD),
    "ranked": len(RANKED),
    "summary": len(SUMMARY),
    "end": 2,
    "bin": BINS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One named array, in all its tiers."""

    name: str
    dtype: str
    fill: float
    """What an element is before it is written. Counts use -1 and numbers NaN: not observed."""
    axes: tuple[str, ...]
    """After the record."""
    history: tuple[int, ...]
    """Chunk of the history, record first; an axis that is shorter when the array is made takes its
    own length instead."""
    recent: bool = True
    """Whether it has the middle tier; without it the tail moves straight to the history."""
    tail_sites: int = MAX_SITE_CHUNK
    """Most sites in a chunk of the tail."""
    compressor: Literal["lz4", "zstd"] = "lz4"
    """Of the history; LZ4 takes half the time, Zstandard makes of histograms a fifth less."""

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers it lies in, oldest records first."""
        return ("history", "recent", "tail") if self.recent else ("history", "tail")

    def shape(self, dims: Dims) -> tuple[int, ...]:
        """Its shape without the record."""
        return tuple({**FIXED, **dims}[axis] for axis in self.axes)

    def chunks(self, tier: Tier, dims: Dims) -> tuple[int, ...]:
        """Its chunk in a tier, record first."""
        sizes = {**FIXED, **dims}
        inner = zip(self.axes, self.history[1:], strict=True)
        return (
            self.history[0] if tier == "history" else CHUNK[tier],
            *(self._chunk(tier, axis, limit(axis, sizes), most) for axis, most in inner),
        )

    def _chunk(self, tier: Tier, axis: str, size: int, in_history: int) -> int:
        """Along one axis after the record, of which `size` is the longest useful chunk."""
        match tier, axis:
            case "history", _:
                return min(size, in_history)
            case "recent", "statistic":
                return RECENT_STATISTICS
            case "tail", "site":
                return min(size, self.tail_sites)
            case _:
                return size


def limit(axis: str, sizes: Dims) -> int:
    """The longest useful chunk along an axis: its size now, with room where it is bound to grow."""
    size = sizes[axis]
    match axis:
        case "site":
            return min(max(-(-size // 32) * 32, MIN_SITE_CHUNK), MAX_SITE_CHUNK)
        case "rank":
            return min(size, 8)
        case "group":
            return 8
        case "peers":
            return 1
        case "number":
            return NUMBER_CHUNK
        case "value":
            return VALUE_CHUNK
        case "training" | "health" | "column":
            return -(-size // 16) * 16
        case _:
            return size


ARRAYS: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            name="records",
            dtype="int64",
            fill=-1,
            axes=("column",),
            history=(512, 1024),
            recent=False,
        ),
        Layout(
            name="counts",
            dtype="int64",
            fill=-1,
            axes=("site", "count"),
            history=(512, 64, len(COUNTS)),
        ),
        Layout(
            name="digits",
            dtype="uint64",
            fill=0,
            axes=("site", "moment"),
            history=(512, 64, len(MOMENTS)),
        ),
        Layout(name="checksum", dtype="uint64", fill=0, axes=("site",), history=(512, 512)),
        Layout(
            name="scalars",
            dtype="float32",
            fill=float("nan"),
            axes=("site", "statistic"),
            history=(512, 512, 1),
        ),
        Layout(
            name="spread",
            dtype="float32",
            fill=float("nan"),
            axes=("site", "statistic", "extreme"),
            # The least and the largest are often the same, as where ranks hold copies.
            history=(512, 256, 1, 2),
        ),
        Layout(
            name="distribution",
            dtype="float32",
            fill=float("nan"),
            axes=("peers", "site", "ranked", "summary"),
            history=(512, 1, 128, 1, len(SUMMARY)),
        ),
        Layout(
            name="histogram",
            dtype="uint32",
            fill=0,
            axes=("site", "bin"),
            history=(64, 64, BINS),
            recent=False,
            tail_sites=256,
            compressor="zstd",
        ),
        Layout(
            name="histogram_high",
            dtype="uint32",
            fill=0,
            axes=("site", "bin"),
            history=(64, 64, BINS),
            recent=False,
            tail_sites=256,
        ),
        Layout(
            name="exact_counts",
            dtype="int64",
            fill=-1,
            axes=("number",),
            history=(64, NUMBER_CHUNK),
            recent=False,
        ),
        Layout(
            name="quantities",
            dtype="float64",
            fill=float("nan"),
            axes=("value",),
            history=(64, VALUE_CHUNK),
            recent=False,
        ),
        Layout(
            name="ranks",
            dtype="float32",
            fill=float("nan"),
            axes=("rank", "site", "statistic"),
            history=(512, 4, 128, 1),
        ),
        Layout(
            name="groups",
            dtype="float32",
            fill=float("nan"),
            axes=("group", "site", "statistic"),
            history=(512, 4, 128, 1),
        ),
        Layout(
            name="training",
            dtype="float64",
            fill=float("nan"),
            axes=("rank", "training"),
            history=(512, 8, 16),
            recent=False,
        ),
        Layout(
            name="health",
            dtype="float64",
            fill=float("nan"),
            axes=("rank", "health"),
            history=(512, 8, 16),
            recent=False,
        ),
    )
}
"""All arrays by name. `histogram_high` holds the upper 32 bits of counts that do not fit into
`histogram`, and is written only in a run that has such a count."""

BLOCKS = (256, 16)
"""Records in one block of the pyramid, the largest first; each divides the one before."""
STRETCH = 2048
"""Records whose blocks are made at a time, once they lie in the history."""
ENDS = ("min", "max")

PYRAMID: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            name="extremes",
            dtype="float32",
            fill=float("nan"),
            axes=("site", "statistic", "end"),
            history=(STRETCH // min(BLOCKS), 512, 1, 1),
        ),
        Layout(
            name="counts",
            dtype="int64",
            fill=-1,
            axes=("site", "count"),
            history=(STRETCH // min(BLOCKS), 64, len(COUNTS)),
        ),
        Layout(
            name="histogram",
            dtype="int64",
            fill=0,
            axes=("site", "bin"),
            history=(STRETCH // min(BLOCKS) // 2, 16, BINS),
        ),
    )
}
"""What is kept of blocks of records, by name: extremes of the array `scalars`, sums of `counts` and
of histograms. It has no tiers: its first axis is the block, for each length of `BLOCKS` in a group
of its own."""

LOGS = ("events", "alerts", "schemas", "rank_frame_index")
"""Arrays of bytes beside those of records: lines of JSON, appended."""
RANK_FRAMES, RANK_FRAME_CHUNK = "rank_frames", 1 << 19
"""An array of bytes beside those of records, see `rank_frames.py`, and bytes in a chunk of it."""

AXES: Mapping[str, list[str]] = {
    "column": list(COLUMNS),
    "count": list(COUNTS),
    "moment": list(MOMENTS),
    "statistic": list(MAIN),
    "extreme": list(SPREAD),
    "ranked": list(RANKED),
    "summary": list(SUMMARY),
    "end": list(ENDS),
    "bin": [str(exponent) for exponent in range(FIRST_EXPONENT, LAST_EXPONENT + 1)],
}
"""What stands along the fixed axes, in the attributes of the root group for anyone who reads."""


def pyramid_path(block: int, name: str) -> str:
    """Where an array of the pyramid lies, for blocks of so many records."""
    return f"pyramid/{block}/{name}"


def mask_words(ranks: int) -> int:
    """How many 64-bit words hold one bit a rank."""
    return -(-ranks // 64)
