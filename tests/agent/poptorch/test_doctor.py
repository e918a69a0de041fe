"""`rankscope doctor --poptorch`, against the stand-in and without anything."""

from __future__ import annotations

import sys

import poptorch
import pytest
import torch
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.agent.poptorch.doctor import ASSUMPTIONS


def test_each_assumption_has_a_line_and_holds_of_the_stand_in() -> None:
    said = CliRunner().invoke(cli, ["doctor", "--poptorch"])
    lines = said.output.splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert len(lines) == len(ASSUMPTIONS) + 2
    assert said.exit_code == 0


def test_without_poptorch_it_says_which_combination_can_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "poptorch", None)
    said = CliRunner().invoke(cli, ["doctor", "--poptorch"])
    assert said.exit_code == 1
    assert "Python 3.8; rankscope needs Python 3.11" in said.output.splitlines()[-1]


def test_what_is_otherwise_is_a_bad_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def returned(self: poptorch.PoplarExecutor, values: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(values)

    monkeypatch.setattr(poptorch.PoplarExecutor, "_returned", returned)
    said = CliRunner().invoke(cli, ["doctor", "--poptorch"])
    bad = [line for line in said.output.splitlines() if line.startswith("bad")]
    assert "bad   all returns four, folded into the first dimension: it is not so." in bad
    assert said.exit_code == 1


def test_the_plain_doctor_knows_no_such_option_but_tells_of_it() -> None:
    said = CliRunner().invoke(cli, ["doctor", "--help"])
    assert "rankscope doctor --poptorch" in said.output
