"""Each quantity has its page, and what pages give to copy is understood."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from rankscope.agent.torch import observe
from rankscope.agent.torch.quantities import known_aliases, known_quantities, named
from rankscope.sketch.quantities import SKETCHED

DOCS = Path(__file__).parents[3] / "docs"
INDEX = (DOCS / "quantities.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (.*) \| (.*) \| \[\w+\]\((quantities/\w+\.md)\) \|$", re.M)
PARTS = "Definition", "Source", "Cost", "How to read it", "Bad values"


def names_in(text: str) -> list[str]:
    return re.findall(r"`(\w+)(?:\(.*?\))?`", text)


def test_every_quantity_has_a_page_that_the_index_links() -> None:
    linked = {name: page for names, _, page in ROW.findall(INDEX) for name in names_in(names)}

    assert linked.keys() == {*known_quantities(), *SKETCHED}
    assert {DOCS / page for page in linked.values()} == set(DOCS.glob("quantities/*.md"))


def test_the_index_says_what_taiyis_names_stand_for() -> None:
    known = known_aliases()
    told = {name: row for row in ROW.findall(INDEX) for name in names_in(row[1]) if name in known}

    assert {"LinearDeadNeuronNum", "MeanTID", "RankMe", "WeightParamJump"} < told.keys()
    for name, row in told.items():
        assert f"`{named(name).label}`" in f"{row[0]} {row[1]}"


@pytest.mark.parametrize("page", sorted(DOCS.glob("quantities/*.md")), ids=lambda page: page.stem)
def test_every_page_has_all_its_parts_and_good_links(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert re.findall(r"^- \*\*(.*?)\.\*\*", text, re.M) == list(PARTS)
    for link in re.findall(r"\]\((.*?)(?:#.*?)?\)", text):
        assert (page.parent / link).exists(), link


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(4, 2)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(3)
        self.blocks = torch.nn.ModuleList([Block()])
        self.head = torch.nn.Linear(4, 2)


def test_the_settings_of_the_page_are_understood(tmp_path: Path) -> None:
    [settings] = re.findall(r"^```toml\n(.*?)^```", INDEX, re.M | re.S)
    [code] = re.findall(r"quantities=(\{.*?^    \}),$", INDEX, re.M | re.S)
    file = tmp_path / "quantities.toml"
    file.write_text(settings, encoding="utf-8")
    model = Model()
    optimizer = torch.optim.SGD(model.parameters())

    for given in (file, eval(code, {"torch": torch})):
        observe(model, optimizer, run="page", quantities=given)
