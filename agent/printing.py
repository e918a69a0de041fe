"""Printing tensors on the agent's thread: what is chosen of a large one, and how it looks.

Options have the names and defaults of `torch.set_printoptions`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sketch.errors import SettingError
from .interruption import Lock

MOST = 256
"""Tensors that may wait to be printed."""
MOST_BYTES = 64 << 20
"""Bytes that they may have."""


_LEAST = {"threshold": 0, "edgeitems": 1, "linewidth": 1, "precision": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintOptions:
    """How a tensor is printed.

    Raises:
        SettingError: one of them cannot be used.
    """

    threshold: int = 1000
    """Tensors of more elements are summarised."""
    edgeitems: int = 3
    """Elements at both ends of each axis that a summary has."""
    linewidth: int = 80
    """Characters of a line."""
    precision: int = 4
    """Digits after the point, at most."""
    sci_mode: bool | None = None
    """Whether numbers have exponents; None: where they differ much in size."""

    def __post_init__(self) -> None:
        for name, lowest in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or value < lowest:
                raise SettingError(
                    f"`{name}` must be an integer of at least {lowest}, got {value!r}."
                )
        if self.sci_mode not in (None, True, False):
            raise SettingError(f"`sci_mode` must be None, True or False, got {self.sci_mode!r}.")

    def is_summary(self, elements: int) -> bool:
        """Whether of so many elements only those at the ends are printed."""
        return elements > self.threshold

    def cuts(self, shape: Sequence[int]) -> list[int]:
        """The axes of which a summary leaves something out.

        Of them it needs the first `edgeitems` + 1 elements, and the last `edgeitems`: the one in
        the middle stands for all that are left out.
        """
        return [axis for axis, size in enumerate(shape) if size > 2 * self.edgeitems + 1]


def printed(elements: NDArray[Any], shape: Sequence[int], dtype: str, how: PrintOptions) -> str:
    """A tensor as text, as NumPy prints the whole of it.

    Args:
        elements: float64, or of any other dtype of NumPy; of a summary what `cuts` leaves.
        shape: of the whole.
        dtype: what the tensor's is called.
    """
    count = int(np.prod(np.array(shape, dtype=object)))
    body = np.array2string(
        elements,
        max_line_width=how.linewidth,
        precision=how.precision,
        suppress_small=how.sci_mode is False,
        separator=", ",
        threshold=0 if how.is_summary(count) else max(elements.size, 1),
        edgeitems=how.edgeitems,
        floatmode="maxprec_equal",
        formatter=_scientific(how.precision) if how.sci_mode else None,
    )
    return f"{dtype}{list(shape)}\n{body}"


def _scientific(precision: int) -> Any:
    return {"float_kind": lambda value: f"{value: .{precision}e}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Printout:
    """A tensor that is to be printed."""

    title: str
    shape: tuple[int, ...]
    dtype: str
    how: PrintOptions
    nbytes: int
    elements: Callable[[], NDArray[Any]]
    """What is chosen of it, on the host."""
    is_there: Callable[[], bool]
    """Whether it has come from its device."""


class Printer:
    """Prints in the order in which it was asked to; what it has no room for is counted and told.

    Args:
        submit: hands a job to the agent's thread.
    """

    def __init__(self, submit: Callable[[Callable[[], object]], None]) -> None:
        self._submit = submit
        self._waiting = deque[Printout]()
        self._bytes = self._left_out = 0
        self._lock = Lock()

    def put(self, one: Printout) -> None:
        """Have it printed by the agent's thread; never waits."""
        with self._lock:
            fits = len(self._waiting) < MOST and self._bytes + one.nbytes <= MOST_BYTES
            if fits:
                self._waiting.append(one)
                self._bytes += one.nbytes
            else:
                self._left_out += 1
        if fits:
            self._submit(self.attend)

    def attend(self) -> None:
        """From the agent's thread, now and then: print what has come."""
        while self._waiting and self._waiting[0].is_there():
            with self._lock:
                one = self._waiting.popleft()
                self._bytes -= one.nbytes
            print(f"{one.title} {printed(one.elements(), one.shape, one.dtype, one.how)}")
        with self._lock:
            left_out, self._left_out = self._left_out, 0
        if left_out:
            print(f"rankscope: {left_out} tensors were not printed, for too many waited to be.")
