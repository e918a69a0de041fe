"""Each mistake gives one clear sentence with the cure."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankscope.agent import RankscopeWarning
from rankscope.agent.torch import Schedule, observe
from rankscope.sketch import AddressError, RankscopeError, SettingError

NOBODY = "tcp://127.0.0.1:9"


def linear() -> tuple[nn.Linear, torch.optim.SGD]:
    model = nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"every": 0}, "`every` must be a positive number of steps, got 0."),
        ({"every": 2.5}, "`every` must be a positive number of steps, got 2.5."),
        ({"schedules": {"weight": 0}}, "`every` must be a positive number of steps, got 0."),
        ({"schedules": {"wieght": 2}}, "There is no kind 'wieght'; did you mean weight"),
        ({"kinds": ["activations"]}, "There is no kind 'activations'; did you mean activation"),
        ({"kinds": "activations"}, "There is no kind 'activations'; did you mean activation"),
        ({"include": "("}, "include='(' is not a regular expression"),
        ({"unchecked": "("}, "unchecked='(' is not a regular expression"),
        ({"rename": {"(": ""}}, "rename='(' is not a regular expression"),
        ({"rename": {"weight|bias": "w"}}, "`rename` calls 2 things 'w'; names must differ."),
        ({"start": -1}, "`start` must not be negative, got -1."),
        ({"run": "a/b"}, "A run's name is letters, digits and ._+=@ -, got 'a/b'."),
        ({"run": ""}, 'A run needs a name: observe(…, run="my-run"), or set RANKSCOPE_RUN.'),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(options: dict[str, Any], sentence: str) -> None:
    model, optimizer = linear()
    settings: dict[str, Any] = {"run": "x", "to": NOBODY, **options}
    with pytest.raises(SettingError, match=re.escape(sentence)):
        observe(model, optimizer, **settings)


def test_schedules_check_themselves() -> None:
    with pytest.raises(SettingError, match="`offset` must not be negative, got -2"):
        Schedule(offset=-2)
    with pytest.raises(SettingError, match=re.escape("must not end before it begins: (5, 3)")):
        Schedule(ranges=((5, 3),))


def test_wrappers_that_hide_parameters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class FullyShardedDataParallel(nn.Linear):
        """Called as torch's, which needs a process group."""

    with pytest.raises(SettingError, match="FSDP1 is not supported"):
        observe(nn.Sequential(FullyShardedDataParallel(2, 2)), run="x")
    replicated = nn.DataParallel(nn.Linear(2, 2))
    monkeypatch.setattr(replicated, "device_ids", [0, 1])
    with pytest.raises(SettingError, match=r"torch\.nn\.DataParallel is not supported"):
        observe(replicated, run="x")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_a_model_that_takes_no_hooks_is_refused() -> None:
    with pytest.raises(SettingError, match=r"that torch\.jit has compiled takes no hooks"):
        observe(torch.jit.script(nn.Linear(2, 2)), run="x")


def test_a_model_without_parameters_is_told() -> None:
    with pytest.raises(SettingError, match=r"`model` \(ReLU\) has no parameters; pass the module"):
        observe(nn.ReLU(), run="x")


def test_a_pattern_that_matches_nothing_warns_with_near_names() -> None:
    model = nn.Sequential()
    model.add_module("attention", nn.Linear(2, 2))
    with pytest.warns(RankscopeWarning, match="include='atention' matches no .* attention"):
        observe(model, run="x", to=NOBODY, include="atention")


def test_a_class_of_which_no_module_is_warns_with_near_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with pytest.warns(RankscopeWarning, match="modules='Lineer' matches no class .* Linear"):
        observe(model, run="x", to=NOBODY, modules=["Lineer", nn.ReLU])
    with pytest.warns(RankscopeWarning, match="modules='Conv2d' matches no class") as told:
        observe(model, run="x", to=NOBODY, modules=[nn.Conv2d])
    assert told[0].filename == __file__


def test_one_class_need_not_be_in_a_list() -> None:
    observe(nn.Linear(2, 2), run="x", to=NOBODY, modules="Linear")


def test_an_optimizer_of_another_model_warns() -> None:
    _, optimizer = linear()
    match = r"`optimizer` \(SGD\) has none of the parameters of `model`: make it of"
    with pytest.warns(RankscopeWarning, match=match) as told:
        observe(nn.Linear(2, 2), optimizer, run="x", to=NOBODY)
    assert told[0].filename == __file__


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, on its import
def test_a_model_that_is_compiled_already_warns() -> None:
    model = torch.compile(nn.Linear(2, 2))
    with pytest.warns(RankscopeWarning, match="call observe\\(\\) before torch.compile"):
        observe(model, run="x", to=NOBODY)  # type: ignore[arg-type]


def test_step_outside_the_block_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.agent.block.CLOSE_S", 0.1)
    model, optimizer = linear()
    scope = observe(model, optimizer, run="x", to=NOBODY)
    with pytest.raises(SettingError, match="called before its block; call it inside"):
        scope.step()
    with pytest.warns(RankscopeWarning), scope:
        scope.step()
    with pytest.raises(SettingError, match="called after its block"):
        scope.step()
    with pytest.raises(SettingError, match="can be entered once"), scope:
        pass


@pytest.mark.parametrize("address", ["localhost", "http://x:1", "tcp://x", "tcp://127.0.0.1:99999"])
def test_a_wrong_address_is_told(address: str) -> None:
    model, optimizer = linear()
    with (
        pytest.raises((AddressError, SettingError), match=re.escape(address)),
        observe(model, optimizer, run="x", to=address),
    ):
        pass


def test_several_ranks_need_a_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    model, optimizer = linear()
    with (
        pytest.raises(SettingError, match=r"call torch.distributed.init_process_group\(\) before"),
        observe(model, optimizer, run="x", to=NOBODY),
    ):
        pass


def _a_file(path: Path) -> Path:
    path.write_text("here")
    return path


def _another_run(path: Path) -> Path:
    (path / "x").mkdir(parents=True)
    (path / "x" / "notes.txt").write_text("mine")
    return path


@pytest.mark.parametrize(
    ("make", "sentence"), [(_a_file, "cannot be written"), (_another_run, "x")]
)
def test_a_directory_that_cannot_hold_the_run_is_told(
    tmp_path: Path, make: Callable[[Path], Path], sentence: str
) -> None:
    model, optimizer = linear()
    with (
        pytest.raises(RankscopeError, match=sentence),
        observe(model, optimizer, run="x", directory=make(tmp_path / "runs")),
    ):
        pass
    assert (tmp_path / "runs").exists()


@pytest.mark.parametrize("what", ["step", "health", "statistics", "begin_forward", "end_update"])
def test_what_is_asked_before_the_block_is_refused_in_words(tmp_path: Path, what: str) -> None:
    scope = observe(torch.nn.Linear(2, 1), run="x", directory=tmp_path)
    with pytest.raises(SettingError, match=rf"scope\.{what}\(\) was called before its block"):
        getattr(scope, what)()


def test_a_forward_before_the_block_is_not_observed(tmp_path: Path) -> None:
    scope, x = observe(torch.nn.Linear(2, 1), run="x", directory=tmp_path), torch.ones(2)
    assert scope.tap("x", x) is x
    assert scope.print("x", x) is x
