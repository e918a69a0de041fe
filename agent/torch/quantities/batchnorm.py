"""How far the statistics of batches are from those that a BatchNorm will use when it is evaluated.

The training-inference discrepancy of Huang et al., "Delving into the Estimation Shift of Batch
Normalization" (2022), as Taiyi has it.
"""

from __future__ import annotations

import torch

from .registry import add_alias, quantity

TINY = 1e-8


def batch_moments(inputs: torch.Tensor) -> torch.Tensor:
    """[2 channels]: the mean of each channel of a batch, then its unbiased variance."""
    wide = inputs.to(torch.promote_types(inputs.dtype, torch.float32))  # else both are rounded
    variance, mean = torch.var_mean(wide.reshape(-1, inputs.shape[-1]), 0)
    return torch.cat([mean, variance])


@quantity(
    "mean_tid",
    needs=["input_by_channel", "buffer:running_mean", "buffer:running_var"],
    gathers=batch_moments,
)
def mean_tid(
    moments: torch.Tensor, running_mean: torch.Tensor, running_var: torch.Tensor
) -> torch.Tensor:
    """How far batches' means are from the running mean of a BatchNorm, beside its deviation.

    The mean, over all batches since it was last due, of |mean - running mean| / |sqrt(running
    variance)|, norms over channels, and the running statistics as they are when it is due. For
    that, two numbers a channel and batch are kept, and every step reads the input once. Large: the
    model is another one in evaluation than in training; the batch is too small, or the momentum.
    """
    means = moments[:, : running_mean.numel()]
    return _apart(means, running_mean, running_var)


@quantity(
    "var_tid",
    needs=["input_by_channel", "buffer:running_mean", "buffer:running_var"],
    gathers=batch_moments,
)
def var_tid(
    moments: torch.Tensor, running_mean: torch.Tensor, running_var: torch.Tensor
) -> torch.Tensor:
    """How far batches' deviations are from the running one of a BatchNorm, beside it.

    The mean, over all batches since it was last due, of |sqrt(variance) - sqrt(running variance)| /
    |sqrt(running variance)|, norms over channels. Kept and read as of `mean_tid`.
    """
    deviations = moments[:, running_mean.numel() :].sqrt()
    return _apart(deviations, running_var.sqrt(), running_var)


def _apart(batches: torch.Tensor, running: torch.Tensor, running_var: torch.Tensor) -> torch.Tensor:
    apart = torch.linalg.vector_norm(batches - running, dim=1)
    return (apart / (torch.linalg.vector_norm(running_var.sqrt()) + TINY)).mean()


add_alias("MeanTID", "mean_tid")
add_alias("VarTID", "var_tid")
