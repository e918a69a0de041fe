"""Figures as Bokeh models: each is made once, shows prepared data, and is patched when it changes.

They know neither the store nor Panel.
"""

from .compared import ComparedExponents, CurvesFigure
from .crosshair import Crosshair
from .exponents import ExponentsFigure
from .facets import FacetsFigure
from .heatmap import HeatmapFigure
from .life import LifeFigure
from .lines import LinesFigure
from .quantities import QuantityFigure, VectorFigure, looks_of
from .ranks import RankMapFigure

__all__ = [
    "ComparedExponents",
    "Crosshair",
    "CurvesFigure",
    "ExponentsFigure",
    "FacetsFigure",
    "HeatmapFigure",
    "LifeFigure",
    "LinesFigure",
    "QuantityFigure",
    "RankMapFigure",
    "VectorFigure",
    "looks_of",
]
