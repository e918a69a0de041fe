"""Attention: how spread its probabilities are, and how large its logits.

Attention that is fused never has them in memory. Of torch.nn.MultiheadAttention they are computed
anew from its query and key; of other modules they are what the module returns or takes: point to
one that returns probabilities first, or to a torch.nn.Softmax.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import linear

from .registry import quantity

ROUNDING = 0.1
"""By how much the probabilities of a row, in a narrow format, may miss 1."""


@quantity("attention_entropy", needs=["probabilities"])
def attention_entropy(probabilities: torch.Tensor) -> torch.Tensor:
    """The mean entropy of attention's probabilities, in nats, over samples, heads and queries.

    From 0, where each query looks at one key, to log(keys). Of torch.nn.MultiheadAttention the
    probabilities are computed anew, which costs as much as the attention itself did, and their
    memory; of any other module its first output is taken for probabilities along the last axis.
    Rows of zeros alone, as of queries that may look at nothing, count for nothing. NaN where it is
    no probabilities: an element is below 0, or a row adds up to less than 0.9 or more than 1.1.
    Falling to 0 is the collapse of attention entropy (Zhai et al. 2023), which comes before
    instability.
    """
    wide = probabilities.to(torch.float32) if probabilities.itemsize < 4 else probabilities
    sums, entropies = wide.sum(-1), torch.special.entr(wide).sum(-1)
    looks = sums != 0
    are_so = ((sums - 1).abs() <= ROUNDING) | ~looks
    mean = entropies.sum(dtype=torch.float64) / looks.sum()
    return torch.where(are_so.all() & (wide >= 0).all(), mean, torch.nan)


@quantity("attention_largest_logit", needs=["logits"], merge="maximum")
def attention_largest_logit(logits: torch.Tensor) -> torch.Tensor:
    """The largest of attention's logits, before their softmax.

    Of torch.nn.MultiheadAttention they are computed anew; of any other module without parameters,
    as torch.nn.Softmax, its first input is taken for logits. Beyond about 50 softmax has no
    gradient left, and bf16 rounds them to steps of 1/4: growth is the known forerunner of
    divergence (Dehghani et al. 2023).
    """
    return logits.amax()


def logits_of(
    module: torch.nn.MultiheadAttention, positional: Sequence[Any], keywords: Mapping[str, Any]
) -> torch.Tensor:
    """[samples, heads, queries, keys], at least float32; where a mask forbids a key, -inf.

    Raises:
        ValueError: the module adds keys of its own.
    """
    if module.bias_k is not None or module.add_zero_attn:
        raise ValueError("attention that adds keys of its own (add_bias_kv, add_zero_attn)")
    given = inspect.signature(module.forward).bind(*positional, **keywords).arguments
    dtype = torch.promote_types(given["query"].dtype, torch.float32)
    query, key = given["query"].detach().to(dtype), given["key"].detach().to(dtype)
    if query.dim() == 2:
        query, key = query.unsqueeze(0), key.unsqueeze(0)
    elif not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    weights, biases = _projections(module, dtype)
    q = _heads(linear(query, weights[0], biases[0]), module.num_heads)
    k = _heads(linear(key, weights[1], biases[1]), module.num_heads)
    scores = (q / math.sqrt(module.head_dim)) @ k.transpose(-2, -1)
    attend, padding = given.get("attn_mask"), given.get("key_padding_mask")
    if attend is not None:
        shaped = attend if attend.dim() == 2 else attend.unflatten(0, (-1, module.num_heads))
        scores = _masked(scores, shaped)
    return scores if padding is None else _masked(scores, padding.view(-1, 1, 1, k.shape[-2]))


def _projections(
    module: torch.nn.MultiheadAttention, dtype: torch.dtype
) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor | None]]:
    """Weights and biases of query, key and value."""
    has: Any = module  # torch says that all of them are always there
    joint, bias = has.in_proj_weight, has.in_proj_bias
    weights = (has.q_proj_weight, has.k_proj_weight) if joint is None else joint.chunk(3)
    biases = [None] * 3 if bias is None else bias.detach().to(dtype).chunk(3)
    return [weight.detach().to(dtype) for weight in weights], biases


def _heads(projected: torch.Tensor, heads: int) -> torch.Tensor:
    return projected.unflatten(-1, (heads, -1)).transpose(1, 2)


def _masked(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else scores + mask
