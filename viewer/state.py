"""What is looked at, and the address that remembers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import param

from .modules import Folding

LARGEST = 2**53
"""Beyond it a browser's numbers are no longer whole: no step is so large."""
KEYS: Mapping[str, str] = {
    "page": "page",
    "theme": "theme",
    "kind": "kind",
    "statistic": "stat",
    "view": "view",
    "pattern": "name",
    "fold": "fold",
    "scale": "scale",
    "site": "site",
    "step": "step",
    "format": "format",
    "drawing": "draw",
    "amount": "amount",
    "beside": "beside",
    "more": "more",
    "zoom": "zoom",
    "training": "train",
    "of": "of",
    "over": "over",
    "formats": "formats",
    "times": "times",
    "most": "most",
    "other": "with",
    "also": "also",
    "maps": "maps",
    "quantity": "quantity",
    "module": "module",
}
"""Attribute of `Choice` to its key in the address."""


class Choice(param.Parameterized):
    """What is looked at. An empty string or None means: the natural default."""

    page = param.String("triage", doc="Which page is open.")
    theme = param.Selector(default="light", objects=["light", "dark"], doc="The colours.")
    kind = param.String("", doc="Which kind of site the heatmap shows.")
    statistic = param.String("rms", doc="Which statistic the heatmap and the rank lines show.")
    view = param.String(
        "merged", doc="`merged`, `max`, `min`, `argmax`, `argmin`, a rank or a group of ranks."
    )
    pattern = param.String("", doc="A regular expression that names must match.")
    fold = param.String("", doc="Which modules are folded, see `modules.Folding`; empty: as fits.")
    scale = param.Selector(default="", objects=["", "log2", "linear"], doc="How values are shaded.")
    site = param.String("", doc="Label of the selected site.")
    step = param.Integer(None, allow_None=True, doc="The selected step.")
    format = param.String("", doc="The number format to compare with; empty: the site's own.")
    drawing = param.Selector(
        default="bars", objects=["bars", "line", "smooth"], doc="How a histogram is drawn."
    )
    amount = param.Selector(
        default="share", objects=["share", "count"], doc="What the height of a histogram is."
    )
    beside = param.List(
        [], item_type=str, doc="Labels of the sites that stand beside the selected one."
    )
    more = param.Selector(
        default="", objects=["", "scalars"], doc="What else the page of a tensor shows."
    )
    zoom = param.NumericTuple(
        None,
        length=2,
        allow_None=True,
        doc="The visible steps; None: all, and new ones as they come.",
    )
    training = param.String("", doc="Which training statistic is drawn.")
    of = param.String("", doc="Which kind of site formats are asked for; empty: all.")
    over = param.Selector(
        default="",
        objects=["", "step", "steps"],
        doc="The steps that formats are asked of: empty: a healthy one, unless another was chosen.",
    )
    formats = param.String("", doc="Names of formats, apart by commas; empty: the usual ones.")
    times = param.String("", doc="By which power of two tensors are multiplied, see `fitting`.")
    most = param.String("", doc="The shares that may overflow, and become zero, as 0:0.01.")
    other = param.String("", doc="Folder of the run to compare with; empty: the latest other.")
    also = param.List([], item_type=str, doc="Folders of the runs that are shown beside these two.")
    maps = param.Selector(
        default="", objects=["", "each"], doc="Whether runs are shown, or how far two are apart."
    )

    quantity = param.String("", doc="Which derived quantity is shown; empty: the first.")
    module = param.String("", doc="What a vector is of, as its menu says it; empty: the first.")

    def query(self, **other: str) -> dict[str, str]:
        """What differs from the defaults, by the keys of the address.

        Args:
            other: values to write instead of those that are chosen, by attribute.
        """
        found: dict[str, str] = {}
        for attribute, key in KEYS.items():
            value = other.get(attribute, getattr(self, attribute))
            if value != self.param[attribute].default:
                found[key] = _write(value)
        return found

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> tuple[Choice, list[str]]:
        """The choice that an address asks for, and a sentence for each part that cannot be used."""
        choice, problems = cls(), list[str]()
        for attribute, key in KEYS.items():
            if key not in query:
                continue
            try:
                setattr(choice, attribute, _read(attribute, query[key]))
            except ValueError:
                problems.append(f"The address says {key}={query[key]}, which cannot be used.")
        return choice, problems


# `Any`: the attributes of a param class have many types.
def _write(value: Any) -> str:
    if isinstance(value, tuple):
        return ":".join(f"{end:g}" for end in value)
    if isinstance(value, list):
        return "\n".join(value)
    return str(value)


def _read(attribute: str, text: str) -> Any:
    if attribute in ("beside", "also"):
        return [one for one in text.split("\n") if one]
    if attribute == "step":
        return int(_within(int(text)))
    if attribute == "fold":
        return Folding.read(text).write()
    if attribute == "zoom":
        first, last = (_within(float(end)) for end in text.split(":"))
        if not first < last:
            raise ValueError(text)
        return first, last
    return text


def _within(step: float) -> float:
    if not -LARGEST <= step <= LARGEST:
        raise ValueError(step)
    return step
