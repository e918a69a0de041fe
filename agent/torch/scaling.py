"""The loss scale of mixed precision: by what the gradients of backward are multiplied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...sketch.errors import SettingError

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler

Number = float | torch.Tensor

LOSS_SCALE = "loss_scale"
"""What it is called among the numbers of a step."""

KNOWN = ("is_enabled", "_scale", "_init_scale")
"""What we ask of a GradScaler."""


class LossScale:
    """The scale that a GradScaler has while a step's loss is computed; it changes after that.

    Args:
        scaler: the job's; None where there is none.

    Raises:
        SettingError: it is something else.
    """

    def __init__(self, scaler: GradScaler | None) -> None:
        # Users without a type checker may pass anything; one that is switched off has no scale.
        asked = ("is_enabled",) if getattr(scaler, "_enabled", True) is False else KNOWN
        if scaler is not None and not all(hasattr(scaler, name) for name in asked):
            raise SettingError(f"`scaler` must be a torch.amp.GradScaler, got {type(scaler)}.")
        self._scaler = scaler
        self._scale: Number | None = None

    def first(self) -> dict[str, float]:
        """`loss_scale` of a scaler that has scaled nothing yet."""
        if self._scaler is None or not self._scaler.is_enabled():
            return {}
        return {LOSS_SCALE: self._scaler._init_scale}  # pyright: ignore[reportPrivateUsage]

    def note(self) -> None:
        """The forward begins."""
        if self._scaler is not None and self._scaler.is_enabled():
            # `get_scale` would wait for the device.
            scale = self._scaler._scale  # pyright: ignore[reportPrivateUsage]
            initial = self._scaler._init_scale  # pyright: ignore[reportPrivateUsage]
            self._scale = initial if scale is None else scale.clone()

    def take(self) -> dict[str, Number]:
        """`loss_scale` of the step that ends, if its forward was seen."""
        scale, self._scale = self._scale, None
        return {} if scale is None else {LOSS_SCALE: scale}
