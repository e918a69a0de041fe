"""What the device tells of activations: plain operations, traced as further outputs of the model.

Of each tensor it is what a sentinel sees: its extremes, and how many elements are not finite. An
exponent histogram does not trace to plain operations; of anchored tensors the host makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from ...sketch.errors import SettingError
from ...sketch.table import COUNT, MAX, MIN, NAN, NEG_INF, POS_INF, UNBINNED, SketchTable
from ..sitebook import UNMEASURED, Key, SiteBook
from ..steptable import StepTable
from .returned import Returned


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a module, as it was traced."""

    key: Key
    module: str
    """Class of the module."""
    dtype: str
    shape: tuple[int, ...]
    elements: int


class Statistics:
    """Those of the modules of a model; in its `with` block the model returns them.

    Args:
        model: of torch's.
        chooses: whether the module with a name is observed.

    Raises:
        SettingError: none is.
    """

    def __init__(self, model: torch.nn.Module, chooses: Callable[[str], bool]) -> None:
        self._model = model
        self._modules = {
            name: module for name, module in model.named_modules() if name and chooses(name)
        }
        if not self._modules:
            raise SettingError(
                'where="device" observes the outputs of modules, and `include` and `exclude` leave '
                "none: name some."
            )
        self._outputs = list[Output]()
        self._found = list[torch.Tensor]()
        self._handles = list[Any]()

    def __enter__(self) -> Self:
        for name, module in self._modules.items():
            self._handles.append(module.register_forward_hook(self._hook_of(name)))
        self._handles.append(self._model.register_forward_pre_hook(lambda *_: self._begin()))
        # Functions, and no methods: copies of the model share them, and what they have found.
        ends = self._model.register_forward_hook(lambda _, __, returned: self._end(returned))
        self._handles.append(ends)
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def check(self, returned: Returned) -> None:
        """Refuse an output mode in which extremes come added up.

        Raises:
            SettingError: it is one.
        """
        if returned.mode.name == "sum" and returned.iterations * returned.accumulation > 1:
            raise SettingError(
                'where="device" cannot be had with the output mode sum, which adds extremes up: '
                "choose another by options.outputMode."
            )

    def read(self, step: int, told: Sequence[torch.Tensor], book: SiteBook) -> StepTable:
        """What a call has told of each output.

        Args:
            told: float32 [repeats * outputs, 2], the smallest and largest finite elements, and
                int32 [repeats * outputs, 3], how many are NaN, inf and -inf.
        """
        sizes = -1, len(self._outputs), 2
        extremes = np.array(told[0].reshape(sizes).tolist(), np.float64)
        counts = np.array(told[1].reshape(-1, len(self._outputs), 3).tolist(), np.int64)
        rows = [self._row(output, book) for output in self._outputs]
        table = SketchTable.empty(len(book.sites))
        present = np.zeros(len(book.sites), np.bool_)
        for place, row in enumerate(rows):
            if row == UNMEASURED:
                continue
            present[row] = True
            own, bad = table.counts[row], counts[:, place].sum(0)
            own[[NAN, POS_INF, NEG_INF]] = bad
            own[COUNT] = self._outputs[place].elements * len(counts)
            own[UNBINNED] = own[COUNT] - bad.sum()
            table.moments[row, MIN] = extremes[:, place, 0].min()
            table.moments[row, MAX] = extremes[:, place, 1].max()
        return StepTable(step, table, present)

    def _row(self, output: Output, book: SiteBook) -> int:
        row = book.row(output.key)
        if row is not None:
            return row
        return book.add(
            output.key,
            dtype=output.dtype,
            shape=output.shape,
            module=output.module,
            placement={},
        )

    def _begin(self) -> None:
        """A forward is traced anew."""
        self._outputs.clear()
        self._found.clear()

    def _hook_of(self, name: str) -> Callable[..., None]:
        def has_run(module: torch.nn.Module, _: Any, returned: Any) -> None:
            if isinstance(returned, torch.Tensor) and returned.is_floating_point():
                calls = sum(output.key[1] == name for output in self._outputs)
                self._outputs.append(
                    Output(
                        ("activation", name, "", calls),
                        type(module).__name__,
                        str(returned.dtype).removeprefix("torch."),
                        tuple(returned.shape),
                        returned.numel(),
                    )
                )
                self._found.append(returned.detach())

        return has_run

    def _end(self, returned: Any) -> Any:
        extremes = torch.stack([_extremes(x) for x in self._found])
        counts = torch.stack([_not_finite(x) for x in self._found])
        self._found.clear()
        return returned, extremes, counts


def _extremes(x: torch.Tensor) -> torch.Tensor:
    """float32 [2]; of no finite element +inf and -inf, the identity of their merge."""
    flat = x.reshape(-1).float()
    not_finite = (flat - flat) != 0
    return torch.stack(
        [
            flat.masked_fill(not_finite, float("inf")).min(),
            flat.masked_fill(not_finite, float("-inf")).max(),
        ]
    )


def _not_finite(x: torch.Tensor) -> torch.Tensor:
    """int32 [3]: how many elements are NaN, inf and -inf."""
    flat = x.reshape(-1)
    masks = (flat != flat, flat == float("inf"), flat == float("-inf"))
    return torch.stack([mask.int().sum().int() for mask in masks])
