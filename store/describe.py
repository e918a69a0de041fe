"""What each statistic is in words, for the attributes of labelled results."""

from __future__ import annotations

from collections.abc import Mapping

ELEMENTS, SHARE, VALUE, NONE = "elements", "share of finite elements", "as the tensor", "1"

DESCRIPTIONS: Mapping[str, tuple[str, str]] = {
    "rms": (VALUE, "root of the mean square"),
    "mean": (VALUE, "mean"),
    "std": (VALUE, "standard deviation, unbiased"),
    "var": ("square of the tensor's", "variance, unbiased"),
    "abs_max": (VALUE, "largest finite magnitude"),
    "abs_min": (VALUE, "smallest non-zero magnitude"),
    "mean_abs": (VALUE, "mean magnitude"),
    "min": (VALUE, "smallest finite element"),
    "max": (VALUE, "largest finite element"),
    "sum": (VALUE, "sum"),
    "l1": (VALUE, "sum of magnitudes"),
    "l2": (VALUE, "Euclidean norm"),
    "rm4": (VALUE, "fourth root of the mean fourth power"),
    "rm8": (VALUE, "eighth root of the mean eighth power"),
    "skewness": (NONE, "skewness, biased"),
    "kurtosis": (NONE, "excess kurtosis, biased"),
    "nonfinite": (ELEMENTS, "elements that are NaN or infinite"),
    "nan": (ELEMENTS, "elements that are NaN"),
    "pos_inf": (ELEMENTS, "elements that are +inf"),
    "neg_inf": (ELEMENTS, "elements that are -inf"),
    "count": (ELEMENTS, "all elements"),
    "zero_share": (SHARE, "zeros"),
    "negative_share": (SHARE, "negative elements"),
    "subnormal_share": (SHARE, "elements that are subnormal in the tensor's own dtype"),
}
"""By statistic: its unit, and what it is, over the finite elements of the tensor."""


def attributes(statistic: str, view: str | int, attempt: int | None) -> dict[str, str | int]:
    """Attributes of a result: units, description, view and which attempt."""
    units, description = DESCRIPTIONS.get(statistic, (NONE, statistic))
    match view:
        case "merged":
            seen = "over all ranks together"
        case "argmin" | "argmax":
            units, seen = "rank", f"the rank with the {view[3:]} over ranks"
        case "min" | "max":
            seen = f"{view} over ranks"
        case int():
            seen = f"of rank {view}"
        case _:
            seen = view
    return {
        "units": units,
        "description": f"{description}, {seen}",
        "view": view,
        "attempt": "last of each step" if attempt is None else attempt,
    }
