"""Series of derived quantities on the wire: what a schema may name, and a frame hold."""

from __future__ import annotations

from collections.abc import Sequence

from ..sketch.errors import ProtocolError
from ..sketch.matrices import length_of
from ..sketch.spectra import LEAST_VALUES, OF_VALUES, width_of
from .messages import MAX_READ, Schema, SeriesValues


def lengths_of(parts: Sequence[SeriesValues], schema: Schema) -> list[int]:
    """How many numbers each of a frame's series has.

    Raises:
        ProtocolError: a series is unknown or named twice.
    """
    before, lengths = -1, list[int]()
    for part in parts:
        if not before < part.series < len(schema.series):
            raise ProtocolError(
                f"A frame's series must be strictly increasing below {len(schema.series)}."
            )
        before = part.series
        known = schema.series[part.series]
        lengths.append(length_of(known.form, known.size))
    return lengths


def check_series(schema: Schema) -> None:
    """Refuse series that yield too much, or whose readings make no sense.

    Raises:
        ProtocolError: what is wrong with the schema.
    """
    read = 0
    names = set[tuple[str, str]]()
    for one in schema.series:
        for reading in one.readings:
            of_values = reading.statistic in OF_VALUES
            if of_values != (one.form == "values"):
                raise ProtocolError(f"There is no {reading.statistic} of {one.form}.")
            if of_values and one.size < LEAST_VALUES.get(reading.statistic, 1):
                raise ProtocolError(f"A {reading.statistic} is not of {one.size} values.")
            if (one.of, reading.quantity) in names:
                raise ProtocolError(f"A schema names {reading.quantity} of {one.of} twice.")
            names.add((one.of, reading.quantity))
            read += width_of(reading.statistic, one.size)
    if read > MAX_READ:
        raise ProtocolError(f"A schema's series yield {read} numbers, above {MAX_READ}.")
