"""The spectra of what a layer takes and returns, and of the gradients of what it returns."""

from __future__ import annotations

import torch

from ....sketch.spectra import Statistic
from .quantity import Quantity
from .registry import add, quantity

_OF = {
    "input_cov": ("input_by_channel", "InputCov", "the inputs"),
    "output_cov": ("output_by_channel", "OutputCov", "the outputs"),
    "output_grad_cov": ("output_gradient_by_channel", "OutputGradCov", "the outputs' gradients"),
}
_SHALLOW = (
    "The largest eigenvalue over the one at {} % of the spectrum: the condition without the tail, "
    "which few samples leave unknown. Bad: it grows over steps."
)
_READ: dict[str, tuple[Statistic, str, str]] = {
    "max_eig": (
        "largest",
        "MaxEig",
        "The largest eigenvalue: the variance along the direction of most. Read it beside the "
        "trace. Bad: it grows over steps while the trace does not, for one direction takes over.",
    ),
    "trace": (
        "trace",
        "Trace",
        "The sum of all eigenvalues: the variances of the channels, added up. Bad: it runs to 0, "
        "all samples become alike, or grows without end.",
    ),
    "stable_rank": (
        "stable_rank",
        "StableRank",
        "The trace over the largest eigenvalue (Rudelson and Vershynin 2007): from 1, where all "
        "samples lie on a line, to the number of channels. Bad: it falls towards 1.",
    ),
    "effective_rank": (
        "effective_rank",
        "EffectiveRank",
        "exp of the entropy of the eigenvalues as shares of their sum (Roy and Vetterli 2007): how "
        "many directions are in use. Bad: it falls, representations collapse.",
    ),
    "condition": (
        "condition",
        "Condition",
        "The largest eigenvalue over the least; infinite where that is below rounding. Large is "
        "slow for gradient descent; infinite says that channels depend on each other, or that "
        "there are fewer samples than channels.",
    ),
    "condition20": ("condition20", "Condition20", _SHALLOW.format(20)),
    "condition50": ("condition50", "Condition50", _SHALLOW.format(50)),
    "condition80": ("condition80", "Condition80", _SHALLOW.format(80)),
    "spectrum": (
        "spectrum",
        "Spectrum",
        "All eigenvalues, the largest first. A cliff is the dimension of what is in use; a "
        "straight line on logarithmic axes a power law.",
    ),
}
_COST = (
    "The covariance is the unbiased one, of channels over samples: tokens are samples, and so are "
    "positions of a convolution. It costs about 1.3 rows * channels^2 operations in float64 on "
    "the device in steps in which it is due, and 8 channels^2 bytes until the step's end; up to "
    "`limit` channels (1024). Ranks with different samples are merged exactly, in the "
    "collector, where the eigenvalues are computed. What was not finite makes it "
    "NaN. Taiyi's of the same name."
)


def samples(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself: its rows are the samples."""
    return tensor


for _prefix, (_need, _taiyi, _of) in _OF.items():
    for _name, (_statistic, _alias, _text) in _READ.items():
        add(
            Quantity(
                name=f"{_prefix}_{_name}",
                needs=(_need,),
                compute=samples,
                form="covariance",
                statistic=_statistic,
                describe=f"Of the covariance of {_of}. {_text}\n\n{_COST}",
            ),
            f"{_taiyi}{_alias}",
        )

add(
    Quantity(
        name="rank_me",
        needs=("output_by_channel",),
        compute=samples,
        form="gram",
        statistic="effective_rank",
        either_side=True,
        describe=(
            "The effective rank of the matrix of outputs, samples by channels: exp of the entropy "
            "of its singular values as shares of their sum (RankMe, Garrido et al. 2023). From 1 "
            "to the lesser of samples and channels. Bad: it falls, representations collapse.\n\n"
            "Singular values are the roots of a Gram matrix's eigenvalues: over channels, which "
            "ranks and micro-batches add up, as long as they are within `limit` (1024); beyond it "
            "over the samples of one call, rank by rank, of the first micro-batch, and of "
            "batches as large as the first; beyond both "
            "it is not computed. Costs as a covariance. Taiyi folds tokens into channels, and its "
            "number is another where outputs have three axes."
        ),
    ),
    "RankMe",
)


@quantity("input_channel_mean", needs=["input_by_channel"], merge="mean")
def input_channel_mean(inputs: torch.Tensor) -> torch.Tensor:
    """The mean of each channel of the inputs, [channels].

    Over samples, tokens and positions. Ranks and micro-batches merge by their samples. It reads the
    input once. Means far from 0 beside the spread, in all channels alike, waste what a layer can
    tell apart; one channel far off is a known cause of bad rounding in low precision.
    """
    return inputs.reshape(-1, inputs.shape[-1]).mean(0, dtype=torch.float64)
