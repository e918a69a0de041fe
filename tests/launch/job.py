"""Training scripts that say nothing of rankscope: `job.py NAME`; they run as `__main__`."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
import weakref
from collections.abc import Sequence

if sys.argv[1] == "after_a_look":
    assert importlib.util.find_spec("torch") is not None
if __name__ == "__main__":  # else all of torch is gone through again and again: 1.5 s of 4
    gc.disable()

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import start_processes


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def train(model: nn.Module, *, steps: int = 3) -> None:
    """Two micro-batches a step, and an evaluation before."""
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        model(torch.randn(2, 4))
    for _ in range(steps):
        for _ in range(2):
            model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def plain() -> None:
    train(small())


def compiled() -> None:
    train(torch.compile(small(), backend="aot_eager", fullgraph=True))  # pyright: ignore[reportArgumentType]


def compiles_itself() -> None:
    model = small()
    model.compile(backend="aot_eager", fullgraph=True)
    train(model)


def after_a_look() -> None:
    """A library has looked whether torch is there, before it was imported: see the top."""
    train(small())


def at_two_rates() -> None:
    """One of two optimizers updates in every iteration, the other in every second."""
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    model = nn.Sequential(first, second)
    nn.init.ones_(second.weight)
    often = torch.optim.SGD(first.parameters(), 0.0)
    seldom = torch.optim.SGD(second.parameters(), 0.0)
    for iteration in range(1, 5):
        model(torch.full((1, 1), float(iteration))).sum().backward()
        often.step()
        if iteration % 2 == 0:
            seldom.step()
        model.zero_grad()


def taken() -> None:
    """Another collector takes the run before a step is told; it waits for no answer."""
    print("ready", flush=True)
    sys.stdin.read()
    train(small())
    os._exit(0)


def fails() -> None:
    train(small())
    raise SystemExit(7)


def raises() -> None:
    train(small())
    raise ValueError("out of data")


def in_child() -> None:
    """As Lightning's `ddp_fork` and `mp.spawn` start ranks."""
    start_processes(_train_in_child, nprocs=1, start_method="fork")


def _train_in_child(_: int) -> None:
    train(small())


def fails_in_child() -> None:
    start_processes(_fail_in_child, nprocs=1, start_method="fork")


def _fail_in_child(_: int) -> None:
    model = small()
    train(model)
    model(torch.randn(16, 4))
    raise ValueError("out of data")


def killed() -> None:
    train(small())
    os.kill(os.getpid(), signal.SIGKILL)


def in_parts() -> None:
    """The loop calls parts of the model, never the model itself; one optimizer for each part."""
    model = small()
    optimizers = [torch.optim.SGD(part.parameters()) for part in (model[0], model[2])]
    for _ in range(3):
        x = torch.randn(5, 4)
        for part in model:
            x = part(x)
        x.sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def two_models() -> None:
    """The second is trained with a scale at which every other update overflows."""
    first, second = nn.Linear(3, 4), small()
    one, other = torch.optim.SGD(first.parameters(), 0.1), torch.optim.SGD(second.parameters(), 0.1)
    for _ in range(3):
        first(torch.randn(5, 3)).sum().backward()
        one.step()
        second(first(torch.randn(5, 3)).detach()).sum().backward()
        other.step()


def twins() -> None:
    """Two critics in a list that nobody calls, and an actor, trained after each third update."""
    critics, actor = nn.ModuleList(nn.Linear(4, 1) for _ in range(2)), nn.Linear(4, 4)
    of_critics = torch.optim.Adam(critics.parameters())
    of_actor = torch.optim.Adam(actor.parameters())
    for _ in range(3):
        for _ in range(3):
            x = torch.randn(5, 4)
            torch.stack([one(x) for one in critics]).square().mean().backward()
            of_critics.step()
            of_critics.zero_grad()
        (-critics[0](actor(torch.randn(5, 4))).mean()).backward()
        of_actor.step()
        of_actor.zero_grad()


def scaled() -> None:
    """The first update is left out: the gradients overflow."""
    model = nn.Linear(3, 4)
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu", 2.0**127)
    for _ in range(3):
        scaler.scale(model(torch.ones(5, 3)).sum() * 8).backward()
        scaler.step(optimizer)
        scaler.update(1.0)
        optimizer.zero_grad()


def ranks() -> None:
    """The first start ends after step 0, before the ranks have met."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        train(small(), steps=1)
        raise SystemExit(3)
    dist.init_process_group("gloo")
    train(nn.parallel.DistributedDataParallel(small()))
    dist.barrier()
    dist.destroy_process_group()


def shards() -> None:
    """FSDP2, of which the root holds parameters of its own; all steps are alike."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = small()
    fully_shard(model[0])
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(3):
        torch.manual_seed(dist.get_rank())
        for _ in range(2):
            model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def in_halves() -> None:
    """The second is trained when the input has ended."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(4):
        if step == 2:
            print("half", flush=True)
            sys.stdin.read()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()


def observed() -> None:
    """The script observes one of its models itself."""
    from rankscope.agent.torch import observe

    model = small()
    with observe(model, run="its-own") as scope:
        train(model)
        scope.step()
    train(nn.Linear(4, 1))


def steps_of(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, steps: int, features: int = 4
) -> None:
    """Steps in which each optimizer updates."""
    for _ in range(steps):
        model(torch.randn(16, features)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()


def unfrozen() -> None:
    """The head is trained alone at first, then all by a new optimizer, which replaces the first."""
    model = small()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model[2].parameters(), lr=0.5)
    first = weakref.ref(optimizer)
    steps_of(model, [optimizer], steps=5)
    model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    steps_of(model, [optimizer], steps=10)
    assert first() is None, "it is kept alive"


def unfrozen_beside() -> None:
    """As `unfrozen`, but the first optimizer is still there."""
    model = small()
    model[0].requires_grad_(False)
    head = torch.optim.AdamW(model[2].parameters(), lr=0.5)
    steps_of(model, [head], steps=5)
    model.requires_grad_(True)
    steps_of(model, [torch.optim.AdamW(model.parameters(), lr=0.25)], steps=10)
    del head


def thawed() -> None:
    """From step 3 on there is a second optimizer, of what was frozen, beside the first."""
    model = small()
    model[0].requires_grad_(False)
    optimizers = [torch.optim.SGD(model[2].parameters(), lr=0.5)]
    steps_of(model, optimizers, steps=3)
    model[0].requires_grad_(True)
    optimizers.append(torch.optim.SGD(model[0].parameters(), lr=0.25))
    steps_of(model, optimizers, steps=3)


def come_back() -> None:
    """From step 3 on a second optimizer updates some of the same weights, beside the first."""
    model = small()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5)]
    steps_of(model, optimizers, steps=3)
    optimizers.append(torch.optim.SGD(model[0].parameters(), lr=0.25))
    steps_of(model, optimizers, steps=4)


def in_phases() -> None:
    """Two optimizers that are there from the start, of which only one updates at a time."""
    model = small()
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2]))
    for part, optimizer in ((model[0], first), (model[2], second)):
        model.requires_grad_(False)
        part.requires_grad_(True)
        steps_of(model, [optimizer], steps=4)


def in_turns() -> None:
    """A GAN: each network is frozen while the other is trained, the first in every third step."""
    model = small()
    networks = [(model[0], torch.optim.SGD(model[0].parameters(), lr=0.1))]
    networks.append((model[2], torch.optim.SGD(model[2].parameters(), lr=0.1)))
    for step in range(8):
        for network, optimizer in networks[int(step % 3 > 0) :]:
            model.requires_grad_(False)
            network.requires_grad_(True)
            steps_of(model, [optimizer], steps=1)


def scaled_in_turns() -> None:
    """As by Lightning: a scaler is updated after each network's update; the first is left out."""
    model = small()
    networks = [(one, torch.optim.SGD(one.parameters(), lr=0.1)) for one in (model[0], model[2])]
    scaler = torch.amp.GradScaler("cpu", 2.0**127)
    for _ in range(3):
        for network, optimizer in networks:
            model.requires_grad_(False)
            network.requires_grad_(True)
            scaler.scale(model(torch.ones(16, 4)).sum() * 8).backward()
            scaler.step(optimizer)
            scaler.update(1.0)
            optimizer.zero_grad()


def folds() -> None:
    """Models that are trained one after another, with a scheduler each, and then dropped."""
    first = None
    for fold in range(3):
        model = nn.Sequential(nn.Linear(4, 2 + fold), nn.Linear(2 + fold, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for _ in range(5):
            steps_of(model, [optimizer], steps=1)
            scheduler.step()
        first = weakref.ref(model) if first is None else first
    gc.collect()
    assert first is not None
    assert first() is None, "it is kept alive"


def folds_of_ranks() -> None:
    """Two models one after another, of two ranks; two optimizers train each in turn."""
    dist.init_process_group("gloo")
    for fold in range(2):
        _fold_of_ranks(1 + fold)
    dist.barrier()
    dist.destroy_process_group()


def _fold_of_ranks(outputs: int) -> None:
    # If it outlives the group, torch may hang as its reducer goes: pytorch#56297.
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, outputs))
    for _ in range(2):
        steps_of(model, [torch.optim.AdamW(model.parameters())], steps=3)


def compiled_folds() -> None:
    for _ in range(2):
        train(torch.compile(small(), backend="aot_eager", fullgraph=True))  # pyright: ignore[reportArgumentType]


def made_before() -> None:
    """All models and optimizers are there before the first is trained."""
    models = [nn.Linear(4, 1), small()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for model, optimizer, steps in zip(models, optimizers, (12, 5), strict=True):
        steps_of(model, [optimizer], steps=steps)


def pretrained() -> None:
    """The encoder is trained alone, then as a part of a larger model."""
    encoder = nn.Linear(4, 8)
    steps_of(encoder, [torch.optim.SGD(encoder.parameters(), lr=0.1)], steps=3)
    model = nn.Sequential(encoder, nn.ReLU(), nn.Linear(8, 1))
    steps_of(model, [torch.optim.SGD(model.parameters(), lr=0.1)], steps=4)


def many() -> None:
    """More models at once than are observed."""
    models = [nn.Linear(4, 1) for _ in range(10)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            steps_of(model, [optimizer], steps=1)


def without_module() -> None:
    """Weights beside a model that no module which is called has; and an input that is trained."""
    train(small())
    model, scale = small(), nn.Parameter(torch.ones(()))
    optimizer, other = torch.optim.SGD([scale]), torch.optim.AdamW(model.parameters())
    for _ in range(12):
        x = torch.zeros(1, 4, requires_grad=True)
        of_input = torch.optim.Adagrad([x])
        (model(x).sum() * scale).backward()
        for one in (optimizer, other, of_input):
            one.step()
    from torch.nn.modules import module

    assert not module._global_forward_pre_hooks, "it is looked on"  # pyright: ignore[reportPrivateUsage]


def main_weights() -> None:
    """The optimizer has copies of the weights, in float32, as Apex and Megatron do it."""
    model = nn.Sequential(small()).bfloat16()
    copies = [one.detach().float().requires_grad_() for one in model.parameters()]
    optimizer = torch.optim.AdamW(copies, lr=0.1)
    for _ in range(16):
        model(torch.randn(16, 4).bfloat16()).square().mean().backward()
        for copy, weight in zip(copies, model.parameters(), strict=True):
            assert weight.grad is not None
            copy.grad = weight.grad.float()
        optimizer.step()
        with torch.no_grad():
            for copy, weight in zip(copies, model.parameters(), strict=True):
                weight.copy_(copy)
        model.zero_grad()


def resumed() -> None:
    """The second start goes on where the first has left its checkpoint, after three steps."""
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    is_second = os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
    if is_second:
        saved = torch.load("checkpoint.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for _ in range(3):
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
    raise SystemExit(0 if is_second else 3)


def nothing() -> None:
    small()(torch.randn(2, 4))


def evaluating() -> None:
    """A model that is trained, and never in training mode."""
    model = small().eval()
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
    gc.freeze()
