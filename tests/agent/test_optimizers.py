"""Weights, gradients and state, whatever updates them: all held against the optimizer's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from rankscope.sketch import SettingError, sketch_array
from rankscope.store import open_run

if TYPE_CHECKING:
    from conftest import Observed

STEPS = 3
PARAMETERS = ("0.weight", "0.bias", "2.weight", "2.bias")


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2))


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    torch.manual_seed(100 + step)
    return model(torch.randn(7, 3)).square().mean()


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]


MAKERS: dict[str, Callable[[nn.Module], list[torch.optim.Optimizer]]] = {
    "plain": lambda model: [torch.optim.AdamW(model.parameters(), foreach=False)],
    "foreach": lambda model: [torch.optim.AdamW(model.parameters(), foreach=True)],
    "fused": lambda model: [torch.optim.AdamW(model.parameters(), fused=True)],
    "groups": lambda model: [torch.optim.AdamW(groups_of(model))],
    "two": lambda model: [
        torch.optim.AdamW(groups_of(model)[0]["params"]),
        torch.optim.SGD(groups_of(model)[1]["params"], lr=0.1, momentum=0.9),
    ],
}


def assert_is(observed: Observed, step: int, label: str, tensor: torch.Tensor) -> None:
    exact = sketch_array(tensor.detach().numpy())
    mine = observed.sketches(step)[label]
    assert np.array_equal(mine.counts, exact.counts), (step, label)
    assert np.array_equal(mine.checksum, exact.checksum), (step, label)


@pytest.mark.parametrize("name", MAKERS)
def test_each_number_is_that_of_the_optimizers_own_tensors(observed: Observed, name: str) -> None:
    model, kept = make_model(), dict[tuple[int, str], torch.Tensor]()
    optimizers = MAKERS[name](model)
    with observed.observe(model, optimizers) as scope:
        for step in range(STEPS):
            for parameter, tensor in model.named_parameters():
                kept[step, f"weight:{parameter}"] = tensor.detach().clone()
            loss_of(model, step).backward()
            for parameter, tensor in model.named_parameters():
                assert tensor.grad is not None
                kept[step, f"weight_gradient:{parameter}"] = tensor.grad.clone()
            for optimizer in optimizers:
                optimizer.step()
            for parameter, tensor in model.named_parameters():
                for slot, state in states_of(optimizers, tensor).items():
                    kept[step, f"optimizer_state:{parameter}[{slot}]"] = state.clone()
            scope.step()
            for optimizer in optimizers:
                optimizer.zero_grad()
    for (step, label), tensor in kept.items():
        assert_is(observed, step, label, tensor)
    kinds = ("weight:", "weight_gradient:", "optimizer_state:")
    stored = {label for label in observed.labels() if label.startswith(kinds)}
    assert stored == {label for _, label in kept}


def states_of(
    optimizers: list[torch.optim.Optimizer], parameter: torch.Tensor
) -> dict[str, torch.Tensor]:
    return {
        slot: state
        for optimizer in optimizers
        for slot, state in optimizer.state.get(parameter, {}).items()
        if isinstance(state, torch.Tensor) and state.dim() > 0
    }


def test_an_optimizer_in_the_backward_frees_gradients_after_they_are_read(
    observed: Observed,
) -> None:
    model, kept = make_model(), dict[tuple[int, str], torch.Tensor]()
    names = {tensor: name for name, tensor in model.named_parameters()}
    each = {tensor: torch.optim.SGD([tensor], lr=0.1, momentum=0.9) for tensor in names}
    step = 0

    def update(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        kept[step, f"weight_gradient:{names[parameter]}"] = parameter.grad.clone()  # pyright: ignore[reportArgumentType]
        each[parameter].step()  # pyright: ignore[reportArgumentType]
        each[parameter].zero_grad()  # pyright: ignore[reportArgumentType]

    for parameter in names:
        parameter.register_post_accumulate_grad_hook(update)
    with observed.observe(model, list(each.values())) as scope:
        for step in range(STEPS):
            for name, tensor in model.named_parameters():
                kept[step, f"weight:{name}"] = tensor.detach().clone()
            loss_of(model, step).backward()
            scope.step()
    assert len(kept) == STEPS * 2 * len(PARAMETERS)
    for (step, label), tensor in kept.items():
        assert_is(observed, step, label, tensor)


def test_a_closure_that_is_called_several_times_is_one_step(observed: Observed) -> None:
    model, first = make_model(), dict[tuple[int, str], torch.Tensor]()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    calls = 0
    with observed.observe(model, optimizer) as scope:
        for step in range(STEPS):
            for name, tensor in model.named_parameters():
                first[step, f"weight:{name}"] = tensor.detach().clone()

            def closure(step: int = step) -> torch.Tensor:
                nonlocal calls
                calls += 1
                optimizer.zero_grad()
                loss = loss_of(model, step)
                loss.backward()
                return loss

            optimizer.step(closure)
            for name, tensor in model.named_parameters():
                assert tensor.grad is not None
                first[step, f"weight_gradient:{name}"] = tensor.grad.clone()
            scope.step()
    assert calls > STEPS
    for (step, label), tensor in first.items():
        assert_is(observed, step, label, tensor)
    gradients = {label for label in observed.labels() if label.startswith("weight_gradient:")}
    assert gradients == {f"weight_gradient:{name}" for name in PARAMETERS}


@pytest.mark.parametrize(("alone", "name"), [(True, "LBFGS"), (False, "LBFGS.1")])
def test_state_of_all_parameters_in_one_is_called_as_its_optimizer(
    observed: Observed, alone: bool, name: str
) -> None:
    model = make_model()
    first, second = (torch.optim.LBFGS(model[place].parameters(), max_iter=3) for place in (0, 2))
    with observed.observe(model, second if alone else [first, second]) as scope:

        def closure() -> torch.Tensor:
            second.zero_grad()
            loss = loss_of(model, 0)
            loss.backward()
            return loss

        second.step(closure)
        scope.step()
    [flat] = [state["prev_flat_grad"] for state in second.state.values()]
    assert flat.numel() == 12
    assert_is(observed, 0, f"optimizer_state:{name}[prev_flat_grad]", flat)
    states = {label for label in observed.labels() if label.startswith("optimizer_state:")}
    assert {label.partition("[")[0] for label in states} == {f"optimizer_state:{name}"}


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_told_with_and_without_the_loss_scale(
    observed: Observed, fused: bool
) -> None:
    model, true = make_model(), list[float]()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    with observed.observe(model, optimizer, scaler=scaler) as scope:
        for step in range(STEPS):
            loss = loss_of(model, step)
            weight = model.get_parameter("0.weight")
            [gradient] = torch.autograd.grad(loss, [weight], retain_graph=True)
            true.append(gradient.norm().item())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scope.step()
            optimizer.zero_grad()
    run, steps = open_run(observed.path), slice(0, STEPS - 1)
    scales = run.training(steps=steps).sel(name="loss_scale").squeeze("rank").values
    assert scales.tolist() == [1024.0, 1024.0, 2048.0]
    site = "weight_gradient:0.weight"
    unscaled = run.scalar("l2", sites=site, steps=steps, unscaled=True).squeeze("site").values
    np.testing.assert_allclose(unscaled, true, rtol=1e-5)
    by_rank = run.ranks("l2", site=site, steps=steps, unscaled=True)
    np.testing.assert_allclose(by_rank.sel(rank=0).values, unscaled)
    seen = run.scalar("l2", sites=site, steps=steps).squeeze("site").values
    np.testing.assert_allclose(seen, true * scales if fused else true, rtol=1e-5)
    site = "activation_gradient:2"
    of_backward = run.scalar("l2", sites=site, steps=steps).squeeze("site").values
    unscaled = run.scalar("l2", sites=site, steps=steps, unscaled=True).squeeze("site").values
    np.testing.assert_allclose(of_backward / scales, unscaled, rtol=1e-6)
    main = run.main(sites=site, steps=steps, unscaled=True).squeeze("site")
    np.testing.assert_array_equal(main.sel(statistic="l2").values, unscaled)
    with_scale = run.main(sites=site, steps=steps).squeeze("site")
    counted = with_scale.sel(statistic="nonfinite"), main.sel(statistic="nonfinite")
    np.testing.assert_array_equal(*counted)
    seen = run.exponents(sites=site, steps=steps).squeeze("site")
    without = run.exponents(sites=[site, "activation:2"], steps=steps, unscaled=True)
    for step, by in enumerate((10, 10, 11)):
        bins = seen["count"].isel(step=step).values
        moved = without["count"].sel(site=site).isel(step=step).values
        assert bins.sum() > 0
        np.testing.assert_array_equal(moved, [*bins[by:], *[0] * by])
    assert (without["total"].sel(site=site) == seen["total"]).all()
    of_forward = run.exponents(sites="activation:2", steps=steps).squeeze("site")
    assert (without["count"].sel(site="activation:2") == of_forward["count"]).all()


def test_a_scaler_that_is_switched_off_is_none(observed: Observed) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with observed.observe(model, optimizer, scaler=scaler) as scope:
        scaler.scale(loss_of(model, 0)).backward()
        scaler.step(optimizer)
        scaler.update()
        scope.step()
    assert open_run(observed.path).training()["name"].values.tolist() == ["lr"]


def test_histograms_are_divided_by_powers_of_two_alone(observed: Observed) -> None:
    model, site = make_model(), "activation_gradient:2"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0**120, growth_factor=1.5, backoff_factor=0.75, growth_interval=1
    )
    with observed.observe(model, optimizer, scaler=scaler) as scope:
        for _ in range(2):
            scaler.scale(loss_of(model, 0) * 2.0**-130).backward()
            scaler.step(optimizer)
            scaler.update()
            scope.step()
            optimizer.zero_grad()
    run = open_run(observed.path)
    small = run.exponents(sites=site, steps=0, unscaled=True).squeeze()
    [tensor] = [run.exponents(sites=site, steps=0).squeeze()]
    low = tensor["count"].values[:120].sum()
    assert small["under"] == tensor["under"] + low
    assert small["count"].sum() + small["under"] == tensor["count"].sum() + tensor["under"]
    with pytest.raises(
        SettingError, match=r"The loss scale of step 1 is 1\.99.*power of two alone"
    ):
        run.exponents(sites=site, unscaled=True)
    with pytest.raises(SettingError, match="may mix loss scales"):
        run.exponents(sites=site, unscaled=True, width=1)
    assert np.isfinite(run.scalar("l2", sites=site, steps=1, unscaled=True)).all()


@pytest.mark.parametrize("forgets", [False, True])
def test_a_step_that_a_scaler_skips_keeps_its_gradients(observed: Observed, forgets: bool) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with observed.observe(model, optimizer, scaler=scaler) as scope:
        scaler.scale(loss_of(model, 0) * 100).backward()
        scaler.step(optimizer)
        scaler.update()
        if forgets:
            scope.end_update()
            optimizer.zero_grad()
        scope.step()
    run = open_run(observed.path)
    assert run.scalar("nonfinite", kind="weight_gradient", steps=0).sum() > 0
    assert "optimizer_state" not in set(run.sites()["kind"])


@pytest.mark.parametrize("ended", [0, 2])
def test_gradients_of_a_step_that_does_not_end_may_overflow_under_a_scaler(
    observed: Observed, ended: int
) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)

    def job() -> None:
        with observed.observe(model, optimizer, scaler=scaler) as scope:
            for step in range(ended + 1):
                scaler.scale(loss_of(model, 0) * 100).backward()
                if step == ended:
                    raise KeyboardInterrupt
                scaler.step(optimizer)
                scaler.update()
                scope.step()
                optimizer.zero_grad()

    with pytest.raises(KeyboardInterrupt):
        job()
    run = open_run(observed.path)
    assert run.scalar("nonfinite", kind="activation_gradient", steps=ended).sum() > 0
    assert run.alerts()["text"].tolist() == []


def test_a_step_has_the_learning_rates_of_its_update_and_not_those_of_the_next(
    observed: Observed,
) -> None:
    model = make_model()
    first, second = (torch.optim.SGD([one], lr=0.1) for one in list(model.parameters())[:2])
    halved = torch.optim.lr_scheduler.ExponentialLR(first, 0.5)
    with observed.observe(model, [first, second]) as scope:
        for step in range(STEPS):
            loss_of(model, step).backward()
            first.step()
            halved.step()
            second.step()
            scope.step()
    told = open_run(observed.path).training(steps=slice(0, STEPS - 1)).squeeze("rank")
    assert told.sel(name="lr").values.tolist() == [0.1, 0.05, 0.025]
    assert told.sel(name="lr.1").values[1:].tolist() == [0.1, 0.1]


def test_a_loss_that_is_scaled_by_hand_is_told_with_the_step(observed: Observed) -> None:
    model, site = make_model(), "activation_gradient:2"
    with observed.observe(model, kinds=["activation_gradient"]) as scope:
        for scale in (1.0, 1024.0):
            (loss_of(model, 0) * scale).backward()
            scope.step(loss_scale=scale)
    run = open_run(observed.path)
    as_made, true = (
        run.scalar("l2", sites=site, steps=(0, 1), unscaled=how).squeeze("site").values
        for how in (False, True)
    )
    np.testing.assert_allclose(as_made, true[0] * np.array([1, 1024]))
    assert true[0] == true[1]


def test_without_a_scaler_nothing_is_called_unscaled(observed: Observed) -> None:
    model = make_model()
    with observed.observe(model) as scope:
        loss_of(model, 0).backward()
        scope.step()
    with pytest.raises(SettingError, match="scaler=scaler"):
        open_run(observed.path).scalar("l2", unscaled=True)
    with pytest.raises(SettingError, match="scaler=scaler"):
        open_run(observed.path).exponents(unscaled=True)
    with pytest.raises(SettingError, match="scaler=scaler"):
        open_run(observed.path).main(unscaled=True)
    with pytest.raises(SettingError, match="`scaler` must be"):
        observed.observe(model, scaler=3)
