"""Formats whose elements share a scale by block, by their usual names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from .errors import SettingError
from .exact_counts import BlockExponents, ExactCount, Scale
from .formats import FORMATS, NumberFormat, number_format


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """Elements of a number format, so many of which, along one axis, have a scale of their own."""

    name: str
    element: str
    """Name of the elements' number format."""
    size: int
    scale: Scale
    """Whether it is a power of two or the largest magnitude, see `BlockExponents`."""

    @property
    def target(self) -> NumberFormat:
        """The format of the elements."""
        return number_format(self.element)

    def is_told_by(self, exact_count: ExactCount) -> bool:
        """Whether an exact count was counted of such blocks, be they along the last axis or not."""
        return (
            isinstance(exact_count, BlockExponents)
            and exact_count.scale == self.scale
            and {exact_count.rows, exact_count.columns} == {1, self.size}
        )


def _mx(name: str, element: str) -> BlockFormat:
    return BlockFormat(name=name, element=element, size=32, scale="power")


BLOCK_FORMATS_BY_NAME: Mapping[str, BlockFormat] = {
    one.name: one
    for one in (
        _mx("mxfp8_e5m2", "float8_e5m2"),
        _mx("mxfp8_e4m3", "float8_e4m3fn"),
        _mx("mxfp6_e3m2", "float6_e3m2fn"),
        _mx("mxfp6_e2m3", "float6_e2m3fn"),
        _mx("mxfp4_e2m1", "float4_e2m1fn"),
        BlockFormat(name="nvfp4", element="float4_e2m1fn", size=16, scale="amax"),
    )
}
"""Those of OCP Microscaling (MX v1.0), and NVFP4."""


SHORT: Mapping[str, str] = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "e5m2": "float8_e5m2",
    "e4m3": "float8_e4m3fn",
    "e3m2": "float6_e3m2fn",
    "e2m3": "float6_e2m3fn",
    "e2m1": "float4_e2m1fn",
}
"""What people call some formats."""


def format_named(name: str) -> NumberFormat | BlockFormat:
    """The format of that name, or short name, with or without a scale by block.

    Raises:
        SettingError: there is none; the message lists near names.
    """
    whole = SHORT.get(name, name)
    if whole in BLOCK_FORMATS_BY_NAME:
        return BLOCK_FORMATS_BY_NAME[whole]
    if whole in FORMATS:
        return number_format(whole)
    known = (*FORMATS, *BLOCK_FORMATS_BY_NAME, *SHORT)
    begins = name.lower().replace("fp", "float") if name.lower().startswith("fp") else name
    near = [one for one in known if one.startswith(begins)] if begins else []
    near = near or get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(known)}."
    raise SettingError(f"There is no number format {name!r}; {hint}")


def formats_named(formats: str | Iterable[str]) -> list[NumberFormat | BlockFormat]:
    """The formats of one name, or of several; each once, in their order.

    Raises:
        SettingError: there is no such format.
    """
    names = [formats] if isinstance(formats, str) else formats
    return list({one.name: one for one in map(format_named, names)}.values())


def number_formats_named(formats: str | Iterable[str]) -> list[NumberFormat]:
    """The same of those whose elements share no scale.

    Raises:
        SettingError: there is no such format, or its blocks have scales of their own.
    """
    found = list[NumberFormat]()
    for one in formats_named(formats):
        if isinstance(one, BlockFormat):
            raise SettingError(
                f"{one.name} has a scale for each block, and so no end of its own: ask for that of "
                f"its elements, {one.element}, or see `Run.format_table`."
            )
        found.append(one)
    return found
