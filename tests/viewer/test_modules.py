"""Sites by module: which rows a folding makes, how the address says it, what fits by itself."""

from __future__ import annotations

import re
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.viewer import markup, modules
from rankscope.viewer.grid import Grid
from rankscope.viewer.modules import (
    Bracket,
    Folding,
    Module,
    brackets_of,
    levels_of,
    rows_of,
    tree_of,
)

GPT = [
    "embed",
    *(
        f"layers.{n}.{part}".strip(".")
        for n in range(12)
        for part in ("norm1", "attn.qkv", "attn.proj", "attn", "mlp.up", "mlp.down", "mlp", "")
    ),
    "norm",
]
words_ = st.sampled_from(["layers", "0", "1", "attn", "qkv", "", "a b", 'q,%"<'])
names_ = st.lists(st.lists(words_, max_size=4).map(".".join), max_size=30)
foldings = st.builds(
    Folding,
    depth=st.integers(0, 5),
    # As many as an address always has room for.
    apart=st.lists(
        st.lists(words_, min_size=1, max_size=3).map(".".join), unique=True, max_size=20
    ).map(tuple),
)


def tree(names: list[str]) -> Module:
    return tree_of({f"activation:{name}#{place}": name for place, name in enumerate(names)})


def shown(root: Module, folding: Folding) -> list[str]:
    return [row.name for row in rows_of(root, folding)]


@given(names_, foldings)
def test_every_site_is_in_one_row_and_no_folding_is_written_too_long(
    names: list[str], folding: Folding
) -> None:
    root = tree(names)
    rows = list(rows_of(root, folding))

    assert [label for row in rows for label in row.sites] == root.sites
    assert sorted(root.sites) == sorted(f"activation:{n}#{i}" for i, n in enumerate(names))
    again = Folding.read(folding.write())
    assert list(map(len, (row.sites for row in rows_of(root, again)))) == [
        len(row.sites) for row in rows
    ]


@given(names_, foldings, st.data())
def test_a_module_that_is_touched_twice_is_as_it_was(
    names: list[str], folding: Folding, data: st.DataObject
) -> None:
    root = tree(names)
    folded = [row.module for row in rows_of(root, folding) if row.module is not None]
    if not folded:
        return
    module = data.draw(st.sampled_from(folded))

    unfolded = folding.touched(module)

    assert not unfolded.folds(module)
    assert len(list(rows_of(root, unfolded))) > len(list(rows_of(root, folding)))
    assert shown(root, unfolded.touched(module)) == shown(root, folding)


def test_what_holds_nothing_but_a_folded_module_is_unfolded_with_it() -> None:
    root = tree(["a.b.c.x", "a.b.c.y"])
    folding = Folding(depth=3, apart=("a",))
    [row] = rows_of(root, folding)
    assert row.module is not None

    assert shown(root, folding.touched(row.module)) == ["a.b.c.x#0", "a.b.c.y#1"]


def test_modules_are_folded_to_a_depth_but_for_some() -> None:
    root = tree(GPT)

    assert shown(root, Folding(depth=1)) == ["embed#0", "layers · 96 sites", "norm#97"]
    assert shown(root, Folding(depth=2))[:3] == [
        "embed#0", "layers.0 · 8 sites", "layers.1 · 8 sites",
    ]  # fmt: skip
    one = shown(root, Folding(depth=2, apart=("layers.1", "embed", "gone")))
    assert one[1:7] == [
        "layers.0 · 8 sites", "layers.1.norm1#9", "layers.1.attn · 3 sites",
        "layers.1.mlp · 3 sites", "layers.1#16", "layers.2 · 8 sites",
    ]  # fmt: skip
    assert len(shown(root, Folding(depth=0, apart=("layers.1",)))) == 98 - 7


def test_the_sites_of_a_module_stand_where_its_first_one_does() -> None:
    root = tree(["embed.tokens", "layers.0", "layers.1", "embed.positions", "head"])

    assert shown(root, Folding(depth=0)) == [
        "embed.tokens#0", "embed.positions#3", "layers.0#1", "layers.1#2", "head#4",
    ]  # fmt: skip


def test_what_wraps_one_module_is_unfolded_with_it() -> None:
    root = tree([f"model.net.{name}" for name in GPT])
    [model] = root.modules

    folding = Folding(depth=1).touched(model)

    assert shown(root, folding) == [
        "model.net.embed#0", "model.net.layers · 96 sites", "model.net.norm#97",
    ]  # fmt: skip
    brackets = brackets_of(root, folding, [row.sites for row in rows_of(root, folding)])
    assert [(one.path, one.level) for one in brackets] == [
        ("model.net", 0),
        ("model.net.layers", 1),
    ]


def test_a_module_that_is_folded_forgets_what_was_unfolded_in_it() -> None:
    root = tree(GPT)
    layers = modules.module_at(root, "layers")
    assert layers is not None

    folding = Folding(depth=2, apart=("layers.3", "layers.3.attn")).touched(layers)

    assert folding.apart == ("layers",)
    assert shown(root, folding) == ["embed#0", "layers · 96 sites", "norm#97"]


@pytest.mark.parametrize(
    ("names", "depth"),
    [
        (GPT, 0),  # 98 rows can be seen
        ([f"layers.{n}" for n in range(1000)], 0),  # one row would say nothing
        ([f"layers.{n}.{part}" for n in range(130) for part in range(16)], 2),
        ([f"model.layers.{n}.{a}.{b}" for n in range(24) for a in range(4) for b in "xyz"], 4),
        ([f"site{n}" for n in range(3000)], 0),
        ([], 0),
    ],
)
def test_modules_are_folded_where_rows_would_be_too_thin(names: list[str], depth: int) -> None:
    assert modules.fitting(levels_of(tree(names))) == depth


def test_the_depths_of_a_menu_differ() -> None:
    found = [(one.depth, one.rows, one.example) for one in levels_of(tree(GPT))]

    assert found == [
        (0, 98, ""), (3, 50, "layers.0.attn"), (2, 14, "layers.0"), (1, 3, "layers"),
    ]  # fmt: skip


def test_brackets_span_the_rows_of_their_modules() -> None:
    root = tree(GPT)
    folding = Folding(depth=2, apart=("layers.1",))
    rows = [row.sites for row in rows_of(root, folding)]

    found = {one.path: one for one in brackets_of(root, folding, rows)}

    assert (found["layers"].first, found["layers"].stop, found["layers"].level) == (1, 16, 0)
    assert (found["layers.1"].first, found["layers.1"].stop) == (2, 6)
    assert (found["layers.1.attn"].folded, found["layers.1.attn"].level) == (True, 2)
    assert found["layers.1.attn"].stop - found["layers.1.attn"].first == 1
    assert "layers.0.attn" not in found


def test_a_folded_module_has_its_sign_however_thin_its_row() -> None:
    thin = Bracket(path="blocks.1", level=0, first=3, stop=4, sites=5, folded=True)
    open_ = Bracket(path="blocks.2", level=0, first=4, stop=14, sites=10, folded=False)

    told = markup.modules([thin, open_], rows=60, height=360)

    first, second = re.findall("<button.*?</button>", told)
    assert first.endswith(">▸</button>")
    assert "font-size:6px" in first
    assert second.endswith(">▾ 2</button>")  # 60 pixels are too few for "blocks.2"


def test_rows_that_the_store_takes_together_are_named_after_the_first() -> None:
    root = tree(GPT)
    rows = list(rows_of(root, Folding(depth=2)))
    cells = np.zeros((2, 1), np.float32)
    sites = [[label for row in part for label in row.sites] for part in (rows[:2], rows[2:3])]
    steps = np.zeros(1, np.int64)
    grid = Grid(
        shade=cells, state=cells.astype(np.uint8), left=0, stride=1, first=steps, last=steps,
        row_sites=sites, names=[], logarithmic=False, signed=False,
    )  # fmt: skip

    found = modules.named(grid, rows)

    assert found.names == ["embed#0 +1", "layers.1 · 8 sites"]
    assert found.said == [
        "embed#0 and 1 more row, 9 sites in all (activation)",
        "layers.1 · 8 sites (activation)",
    ]


def test_the_address_stays_short_and_keeps_what_was_touched_last() -> None:
    many = tuple(f"layers.{n}.{'x' * (n % 50)}" for n in range(300))

    written = Folding(depth=2, apart=many).write()

    assert len(written) <= modules.MOST_LENGTH
    kept = Folding.read(written)
    assert kept.apart == many[-len(kept.apart) :]
    assert len(kept.apart) > 10
    assert Folding.read("1," + ",".join(map(quote, many))).apart == many[-modules.MOST_APART :]
    assert Folding.read("") == Folding()
    for wrong in ("x", "-1", "1.5", "9999", ",layers", "²"):
        with pytest.raises(ValueError, match=wrong[:1]):
            Folding.read(wrong)


def test_a_name_of_very_many_dots_is_a_site_like_others() -> None:
    root = tree(["a" + ".b" * 5000, "a.c"])

    assert len(shown(root, Folding(depth=0))) == 2
    assert shown(root, Folding(depth=1)) == ["a · 2 sites"]
