"""What ranks say to each other, where a process group is given: sketches alone, never a tensor."""

from __future__ import annotations

import torch.distributed as dist

from ...toolkit.named import Group
from ...toolkit.ranks import RankPart, merge_ranks
from ...toolkit.sketches import Sketches


def merged_across(part: RankPart, group: Group) -> Sketches:
    """The sketches of the whole, the same on all ranks of the group.

    One collective, some 2 kB a tensor and rank: all ranks of the group must call it.
    """
    parts: list[RankPart | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, part, group=group)
    ranks = dist.get_process_group_ranks(group)
    return merge_ranks(
        {rank: one for rank, one in zip(ranks, parts, strict=True) if one is not None}
    )
