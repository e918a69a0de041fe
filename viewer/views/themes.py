"""The colours of what stands around the figures, as variables of the style sheets."""

from __future__ import annotations

from ..figures.colours import DARK, LIGHT, Theme

GROUNDS = {
    LIGHT.name: {
        "ground": "#f4f6f8", "line": "#cfd6dd", "field": "#ffffff", "hover": "#e6ebf0",
        "accent": "#14609b", "own": "#b9d4ea",
        "bad-ink": "#9d0050", "bad-line": "#efb3d0", "bad-ground": "#fdf2f8",
        "warn-ink": "#8f3d00", "warn-line": "#efc09c", "warn-ground": "#fdf5ee",
        "good-ink": "#0b5f45", "good-line": "#b0dccb", "good-ground": "#eef8f4",
        "logo": "#2a7cab",
    },
    DARK.name: {
        "ground": "#0e1318", "line": "#3a4651", "field": "#1f272f", "hover": "#27313a",
        "accent": "#7ab8ea", "own": "#34546e",
        "bad-ink": "#ff9cc8", "bad-line": "#7d2450", "bad-ground": "#2a1420",
        "warn-ink": "#ffb787", "warn-line": "#74431f", "warn-ground": "#271a12",
        "good-ink": "#83d8b8", "good-line": "#255a48", "good-ground": "#11241d",
        "logo": "#4fa3d4",
    },
}  # fmt: skip
BODY = """
html, body { background: var(--ground); color-scheme: %s; }
body { padding: 14px 18px 24px; box-sizing: border-box; height: auto; min-height: 100%%; }
.unreached { max-width: 60ch; margin: 12vh auto; padding: 16px 18px; border-radius: 10px;
  border: 1px solid var(--warn-line); background: var(--warn-ground); color: var(--warn-ink);
  font: 14px/1.5 "Segoe UI", "Helvetica Neue", "Liberation Sans", Arial, sans-serif; }
"""


def root_css(theme: Theme) -> str:
    """The style of the document; all that is in it inherits the variables."""
    return f":root {{ {variables(theme)}}}" + BODY % theme.name


def variables(theme: Theme) -> str:
    """The variables, as CSS declares them."""
    colours = {
        "surface": theme.surface,
        "ink": theme.ink,
        "muted": theme.muted,
        "rule": theme.rule,
        "bad": theme.nonfinite,
        "zero": theme.zero,
        "undefined": theme.undefined,
        "missing": theme.missing,
        "hatch": theme.hatch,
    }
    return "".join(
        f"--{name}: {value}; " for name, value in (colours | GROUNDS[theme.name]).items()
    )
