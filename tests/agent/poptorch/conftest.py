"""A stand-in for PopTorch, for the tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

STANDIN = Path(__file__).parent / "standin"
"""Put before all else that Python imports: where PopTorch is installed, the stand-in is meant."""

sys.path.insert(0, str(STANDIN))


class Model(torch.nn.Module):
    """The model of PopTorch's own tests/debug_tensors_test.py, smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(6, 8)
        self.relu = torch.nn.ReLU()
        self.fc2 = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.fc2(self.relu(self.fc1(x))), y)


@pytest.fixture
def model() -> torch.nn.Module:
    """A small model whose forward gives the loss."""
    torch.manual_seed(0)
    return Model()


def batch(number: int = 0, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and what is to come of them."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn(rows, 6, generator=generator), torch.randn(rows, 3, generator=generator)
