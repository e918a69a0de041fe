"""The job of test_megatron.py: ranks that hold parts of a model in layers of megatron-core.

Usage: torchrun --nproc-per-node 2 megatron_job.py RUN DIRECTORY tp|sp, of 4 ranks dp-tp|dp-sp. The
model is trained in float32, as RUN-float32, then in float64.
"""

import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rankscope.agent.torch import observe

STEPS = 2
TENSOR_PARALLEL = 2
WIDTH, INNER, VOCABULARY = 16, 24, 32
STRIDED = ("gate.weight", "gate.bias")
"""Parameters of which each rank has two parts."""


class Row(nn.Linear):
    """A linear layer that leaves its bias to others, as Megatron's `skip_bias_add`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The product alone."""
        return nn.functional.linear(input, self.weight)


class Tied(nn.Module):
    """An output layer that has its weight from the embedding."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Logits of each token."""
        return nn.functional.linear(x, weight)


class Gated(nn.Module):
    """The product of a half and its gate."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Half as many features."""
        gate, value = x.chunk(2, -1)
        return nn.functional.silu(gate) * value


class Model(nn.Module):
    """Two blocks of a transformer without attention; sequences are the first axis inside."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, INNER)
        self.act = nn.GELU()
        self.down = Row(INNER, WIDTH)
        self.gate_norm = nn.LayerNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, 2 * INNER)
        self.gated = Gated()
        self.out = nn.Linear(INNER, WIDTH)
        self.head = Tied()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each token [sequence, batch, vocabulary]."""
        x = self.tokens(tokens).transpose(0, 1)
        x = x + self.down(self.act(self.up(self.norm(x)))) + self.down.bias
        x = x + self.out(self.gated(self.gate(self.gate_norm(x))))
        return self.head(x, self.tokens.weight)


def make_model(dtype: torch.dtype) -> Model:
    """The same on each rank and in the test."""
    torch.manual_seed(0)
    return Model().to(dtype)


def batch(step: int) -> torch.Tensor:
    """The same on each rank and in the test: tokens [batch, sequence]."""
    torch.manual_seed(step)
    return torch.randint(0, VOCABULARY, (4, 6))


def train(model: nn.Module, tokens: torch.Tensor) -> None:
    """Forward and backward; of a part of the logits, its share of the loss."""
    (model(tokens).square().sum() / (tokens.numel() * VOCABULARY)).backward()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """As in the test."""
    return torch.optim.AdamW(model.parameters())


def parallel_model(dtype: torch.dtype, *, by_sequence: bool) -> nn.Module:
    """The same model, of which this rank has parts."""
    from megatron.core.model_parallel_config import ModelParallelConfig
    from megatron.core.tensor_parallel import (
        ColumnParallelLinear,
        RowParallelLinear,
        VocabParallelEmbedding,
    )

    config = ModelParallelConfig(
        tensor_model_parallel_size=TENSOR_PARALLEL,
        sequence_parallel=by_sequence,
        use_cpu_initialization=True,
        params_dtype=dtype,
    )
    # `Any`: what Megatron's layers take by keyword.
    told: dict[str, Any] = {"config": config, "init_method": nn.init.normal_}
    column: dict[str, Any] = {**told, "bias": True, "gather_output": False}
    row: dict[str, Any] = {**told, "bias": True, "input_is_parallel": True}

    class ParallelModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = VocabParallelEmbedding(
                VOCABULARY, WIDTH, reduce_scatter_embeddings=by_sequence, **told
            )
            self.norm = nn.LayerNorm(WIDTH, dtype=dtype)
            self.up = ColumnParallelLinear(WIDTH, INNER, **column)
            self.act = nn.GELU()
            self.down = RowParallelLinear(INNER, WIDTH, skip_bias_add=True, **row)
            self.gate_norm = nn.LayerNorm(WIDTH, dtype=dtype)
            self.gate = ColumnParallelLinear(WIDTH, 2 * INNER, stride=2, **column)
            self.gated = Gated()
            self.out = RowParallelLinear(INNER, WIDTH, skip_bias_add=False, **row)
            self.head = ColumnParallelLinear(
                WIDTH, VOCABULARY, bias=False, skip_weight_param_allocation=True, **told
            )
            for norm in (self.norm, self.gate_norm):
                for parameter in norm.parameters():
                    parameter.sequence_parallel = by_sequence  # pyright: ignore[reportAttributeAccessIssue]

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.tokens(tokens)
            x = x if by_sequence else x.transpose(0, 1)
            made, bias = self.down(self.act(self.up(self.norm(x))[0]))
            x = x + made + bias
            x = x + self.out(self.gated(self.gate(self.gate_norm(x))[0]))[0]
            return self.head(x, self.tokens.weight)[0]

    model = ParallelModel()
    whole = dict(make_model(dtype).named_parameters())
    for name, parameter in model.named_parameters():
        parameter.data.copy_(part_of(whole[name].detach(), parameter))
    return model


def part_of(whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, as Megatron's attributes of its parameter say."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return whole
    along: int = parameter.partition_dim  # pyright: ignore[reportAttributeAccessIssue]
    stride: int = parameter.partition_stride  # pyright: ignore[reportAttributeAccessIssue]
    parts = whole.chunk(TENSOR_PARALLEL * stride, along)
    return torch.cat(parts[dist.get_rank() % TENSOR_PARALLEL :: TENSOR_PARALLEL], along)


def keep_main_gradients(model: nn.Module) -> None:
    """Add gradients up in buffers of their own, as Megatron's DistributedDataParallel does."""

    def made(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.main_grad.add_(parameter.grad)  # pyright: ignore[reportAttributeAccessIssue]
        parameter.grad = None

    for parameter in model.parameters():
        parameter.main_grad = torch.zeros_like(parameter)  # pyright: ignore[reportAttributeAccessIssue]
        parameter.register_post_accumulate_grad_hook(made)


def finalise_gradients(model: nn.Module, samples: int) -> None:
    """What Megatron's `finalize_model_grads` does, whose buffers are on a GPU."""
    from megatron.core import parallel_state

    for parameter in model.parameters():
        gradient: torch.Tensor = parameter.main_grad  # pyright: ignore[reportAttributeAccessIssue]
        if samples > 1:
            dist.all_reduce(gradient, group=parallel_state.get_data_parallel_group())
            gradient /= samples
        if getattr(parameter, "sequence_parallel", False):
            dist.all_reduce(gradient, group=parallel_state.get_tensor_model_parallel_group())
        parameter.grad = gradient


def run_training(run: str, directory: str, mode: str, dtype: torch.dtype) -> None:
    """A few steps."""
    samples = dist.get_world_size() // TENSOR_PARALLEL
    model = parallel_model(dtype, by_sequence="sp" in mode)
    optimizer = make_optimizer(model)
    keep_main_gradients(model)
    with observe(model, optimizer, run=run, directory=directory) as scope:
        for step in range(STEPS):
            train(model, batch(step).chunk(samples)[dist.get_rank() // TENSOR_PARALLEL])
            finalise_gradients(model, samples)
            optimizer.step()
            scope.step()
            for parameter in model.parameters():
                parameter.main_grad.zero_()  # pyright: ignore[reportAttributeAccessIssue]
                parameter.grad = None


def main() -> None:
    """One mode."""
    run, directory, mode = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Megatron's, of what is not installed
    torch.cuda.current_device = lambda: "cpu"  # pyright: ignore[reportAttributeAccessIssue]  # where it makes its buffers
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=TENSOR_PARALLEL)
    run_training(f"{run}-float32", directory, mode, torch.float32)
    run_training(run, directory, mode, torch.float64)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
