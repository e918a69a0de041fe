"""What a quantity is: what it needs of a step, how it is computed, and what is read off it.

Several quantities may be read off one array: the largest eigenvalue of a covariance and its stable
rank share the covariance, which is computed once and sent once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import torch

from ....sketch.errors import SettingError
from ....sketch.matrices import MAX_QUANTITY_NAME, MAX_SIZE, Form, Merge
from ....sketch.spectra import OF_VALUES, STATISTICS, Statistic
from ....wire.messages import Reading

FORWARD = frozenset(
    {
        "input",
        "output",
        "input_by_channel",
        "output_by_channel",
        "output_channel_axis",
        "logits",
        "probabilities",
    }
)
"""What there is when a module has run. `..._by_channel` has the channels last, [..., channels];
`logits` and `probabilities` are of attention, see `attention`."""
BACKWARD = frozenset({"input_gradient", "output_gradient", "output_gradient_by_channel"})
"""What there is when the backward has come to a module."""
PARAMETER = frozenset({"weight", "weight_gradient", "update"})
"""What there is of a weight: as the step uses it, its gradient as the optimizer sees it, and what
the step adds to it; and each slot of the optimizer's state, as `optimizer:exp_avg`."""
BUFFER, SLOT, PREVIOUS = "buffer:", "optimizer:", "previous:"
LIMIT = 1024
"""Features of a matrix, unless the option `limit` says otherwise."""
NOT_COMPUTED = ("limit", "threshold")
"""Options that say what is made of a series, and not how it is computed."""
BY_CHANNEL = "_by_channel"
"""What ends the names of needs that have the channels last."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number, or a vector of them, that is derived from the tensors of one module or parameter.

    Hashed and compared by what it is, so that equal ones are computed once.
    """

    name: str
    needs: tuple[str, ...]
    """What `compute` takes, in order."""
    compute: Callable[..., torch.Tensor]
    """Of `values` 0-D or 1-D; of a matrix [..., features], whose rows are samples."""
    form: Form = "values"
    merge: Merge = "mean"
    """How values of different samples become one."""
    statistic: Statistic = "values"
    gathers: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Called in every step, and in each forward, with the first need; what it returns, [n], is kept
    until the quantity is due, and `compute` takes all of it, [calls, n], in the place of that."""
    either_side: bool = False
    """Of a Gram matrix: whether it may be taken over the samples instead of the features."""
    options: tuple[tuple[str, Any], ...] = ()
    """What was asked for beside the defaults, sorted."""
    describe: str = field(default="", compare=False)
    """Definition, source, cost, how to read it and what a bad value means."""

    @property
    def label(self) -> str:
        """Its name, with the options that were given."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.options)
        return f"{self.name}({given})" if given else self.name

    @property
    def series(self) -> tuple[object, ...]:
        """The same for quantities that are read off one array."""
        options = tuple(pair for pair in self.options if pair[0] != "threshold")
        return self.compute, self.needs, self.form, self.merge, self.either_side, options

    @property
    def reading(self) -> Reading:
        """What is read off its series."""
        if self.statistic != "share_at_most":
            return Reading(quantity=self.label, statistic=self.statistic)
        bound = float(dict(self.options).get("threshold", 0.0))
        return Reading(quantity=self.label, statistic=self.statistic, bound=bound)

    @property
    def limit(self) -> int:
        """Features of a matrix at most."""
        return dict(self.options).get("limit", LIMIT)

    @property
    def has_channels(self) -> bool:
        """Whether the option `channels` may say their axis: it tells channels from samples.

        Not where `compute` has an option of that name itself.
        """
        of_channels = any(need.endswith((BY_CHANNEL, "_channel_axis")) for need in self.needs)
        return of_channels and "channels" not in _options_of(self.compute)

    @property
    def channels(self) -> int | None:
        """The axis of the channels, if it was given."""
        given = dict(self.options).get("channels")
        return given if given is not None and self.has_channels else None

    @property
    def is_of_parameters(self) -> bool:
        """Whether it needs no forward."""
        return all(is_of_parameter(need) for need in self.needs)

    def computed(self, tensors: Sequence[Any]) -> object:
        """What `compute` makes of what it needs; of a user's function anything."""
        told = NOT_COMPUTED if self.channels is None else (*NOT_COMPUTED, "channels")
        options = {name: value for name, value in self.options if name not in told}
        return self.compute(*tensors, **options)

    def having(self, options: Mapping[str, Any]) -> Quantity:
        """The same with other options: keyword arguments of `compute`; `limit` of a matrix.

        Raises:
            SettingError: there is no such option.
        """
        known = _options_of(self.compute)
        known |= {"limit"} if self.form != "values" else set[str]()
        known |= {"threshold"} if self.statistic == "share_at_most" else set[str]()
        known |= {"channels"} if self.has_channels else set[str]()
        for name in options:
            if name not in known:
                has = f"has {', '.join(sorted(known))}" if known else "has none"
                raise SettingError(f"There is no option {name!r} of {self.name}; it {has}.")
        limit = options.get("limit", LIMIT)
        if not _is_integer(limit) or not 1 <= limit <= MAX_SIZE:
            raise SettingError(
                f"`limit` of {self.name} must be a number of features from 1 to {MAX_SIZE}, "
                f"got {limit!r}."
            )
        threshold = options.get("threshold", 0.0)
        if not isinstance(threshold, int | float) or isinstance(threshold, bool):
            raise SettingError(f"`threshold` of {self.name} must be a number, got {threshold!r}.")
        channels = options.get("channels", -1)
        if self.has_channels and not _is_integer(channels):
            raise SettingError(f"`channels` of {self.name} must be an axis, got {channels!r}.")
        given = tuple(sorted({**dict(self.options), **options}.items()))
        made = replace(self, options=given)
        if len(made.label) > MAX_QUANTITY_NAME:
            raise SettingError(f"{made.label[:60]}… is longer than {MAX_QUANTITY_NAME} characters.")
        return made


def is_of_parameter(need: str) -> bool:
    """Whether a need is a tensor of the size of a parameter."""
    plain = need.removeprefix(PREVIOUS)
    return plain in PARAMETER or plain.startswith(SLOT)


def checked(made: Quantity) -> Quantity:
    """The same, if it can be computed.

    Raises:
        SettingError: its name or its needs cannot be used.
    """
    if not _NAME.fullmatch(made.name) or len(made.name) > MAX_QUANTITY_NAME:
        raise SettingError(
            f"A quantity must be named in lower-case words as input_spread, got {made.name!r}."
        )
    for need in made.needs:
        if not (need in FORWARD | BACKWARD or need.startswith(BUFFER) or is_of_parameter(need)):
            raise SettingError(f"{made.name} needs {need!r}, which is none of {', '.join(_KNOWN)}.")
    if not made.needs:
        raise SettingError(f"{made.name} needs nothing; name one of {', '.join(_KNOWN)}.")
    for word, value, words in (
        ("merge", made.merge, get_args(Merge)),
        ("form", made.form, get_args(Form)),
        ("statistic", made.statistic, STATISTICS),
    ):
        if value not in words:
            raise SettingError(
                f"`{word}` of {made.name} must be one of {', '.join(words)}, got {value!r}."
            )
    if (made.statistic in OF_VALUES) != (made.form == "values"):
        raise SettingError(f"{made.name}: there is no {made.statistic} of {made.form}.")
    mixed = {need for need in made.needs if is_of_parameter(need)} - {"weight"}
    if mixed and not made.is_of_parameters:
        raise SettingError(
            f"{made.name} needs {', '.join(sorted(mixed))} together with tensors of the forward or "
            "backward, which are gone when that is there; make two quantities of it."
        )
    return made


_KNOWN = (
    *sorted(FORWARD | BACKWARD | PARAMETER),
    f"{BUFFER}NAME",
    f"{SLOT}SLOT",
    f"{PREVIOUS}weight and the like",
)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _options_of(compute: Callable[..., Any]) -> set[str]:
    """The keyword arguments of a function."""
    parameters = inspect.signature(compute).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
