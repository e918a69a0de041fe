"""Options as of python/options.py and python/_options_impl.py."""

from __future__ import annotations

import copy
import enum
from typing import Any, Self


class OutputMode(enum.Enum):
    """python/enums.py; AnchorMode before SDK 2.4."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class _Values:
    """python/_options_impl.py, OptionsDict: attributes are looked up in `_values`."""

    def __init__(self, **values: Any) -> None:
        self._is_frozen = False
        self._values: dict[str, Any] = values

    def exists(self, option: str) -> bool:
        return option in self._values

    def set(self, **values: Any) -> None:
        if self._is_frozen:
            raise AttributeError("Can't modify frozen Options")
        for name, value in values.items():
            assert self.exists(name), f"Invalid option {name}"
            self._values[name] = value

    def __getattr__(self, option: str) -> Any:
        if option.startswith("_"):
            raise AttributeError(option)
        assert self.exists(option), f"Invalid option {option}, valid options are {[*self._values]}"
        return self._values[option]

    def __deepcopy__(self, memory: dict[int, Any]) -> Self:
        """Copies are not frozen."""
        new = type(self).__new__(type(self))
        memory[id(self)] = new
        for name, value in self.__dict__.items():
            setattr(new, name, False if name == "_is_frozen" else copy.deepcopy(value, memory))
        return new


class _Training(_Values):
    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        self.set(gradient_accumulation=gradient_accumulation)
        return self


class _Distributed(_Values):
    @property
    def numProcesses(self) -> int:
        return self._values["num_processes"]

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        self.set(process_id=process_id, num_processes=num_processes)
        return self


class _Jit(_Values):
    def traceModel(self, trace_model: bool) -> Self:
        """The front end before SDK 3.1, which puts `model.` before names."""
        self.set(trace_model=trace_model)
        return self


class Options(_Values):
    """python/options.py, class Options, since SDK 2.4."""

    _MODE, _PERIOD = "output_mode", "output_return_period"

    def __init__(self) -> None:
        self.Training = _Training(gradient_accumulation=1)
        self.Distributed = _Distributed(process_id=0, num_processes=1)
        self.Jit = _Jit(trace_model=False)
        self.cache_path: str | None = None
        super().__init__(
            replication_factor=1,
            device_iterations=1,
            anchored_tensors={},
            **{self._MODE: OutputMode.Default.value, self._PERIOD: 1},
        )

    def deviceIterations(self, device_iterations: int) -> Self:
        self.set(device_iterations=device_iterations)
        return self

    def replicationFactor(self, replication_factor: int) -> Self:
        self.set(replication_factor=replication_factor)
        return self

    def enableExecutableCaching(self, path: str | None) -> Self:
        self.cache_path = path
        return self

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int | None = 1,
    ) -> None:
        """It looks at no lock: `self.anchored_tensors[short_name] = value`."""
        self._anchor(short_name, long_name, output_mode, output_return_period)

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        if output_mode == OutputMode.EveryN:
            assert (output_return_period or 0) > 0, (
                "EveryN anchor must have output_return_period set to valid positive integer"
            )
        self.set(**{self._MODE: output_mode.value, self._PERIOD: output_return_period or 1})
        return self

    def defaultOutputMode(self) -> bool:
        return self._values[self._MODE] == OutputMode.Default.value

    def clone(self) -> Self:
        return copy.deepcopy(self)

    def mode(self) -> tuple[OutputMode, int]:
        """For the executor, whatever the spelling."""
        return OutputMode(self._values[self._MODE]), self._values[self._PERIOD]

    def values(self) -> dict[str, Any]:
        """What `save` keeps."""
        return self._values

    def freeze(self) -> None:
        """What `_freeze` does."""
        for part in (self, self.Training, self.Distributed, self.Jit):
            part._is_frozen = True

    def _anchor(self, short: str, long: str, mode: OutputMode | None, period: int | None) -> None:
        if mode != OutputMode.EveryN:
            period = 1
        self.anchored_tensors[short] = [long, mode is None, mode, period]


class OldOptions(Options):
    """The same before SDK 2.4: `anchor_mode` in place of `output_mode`."""

    _MODE, _PERIOD = "anchor_mode", "anchor_return_period"

    def anchorTensor(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        short_name: str,
        long_name: str,
        anchor_mode: OutputMode | None = None,
        anchor_return_period: int | None = 1,
    ) -> None:
        self._anchor(short_name, long_name, anchor_mode, anchor_return_period)

    def anchorMode(self, anchor_mode: OutputMode, anchor_return_period: int | None = None) -> Self:
        return super().outputMode(anchor_mode, anchor_return_period)

    outputMode = None  # pyright: ignore[reportAssignmentType]

    def defaultAnchorMode(self) -> bool:
        return super().defaultOutputMode()
