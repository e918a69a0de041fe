"""Who this rank is in the job, and what the ranks of a launch share."""

from __future__ import annotations

import os
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ...sketch.errors import SettingError
from ...sketch.mesh_axes import MODEL_AXES, PIPELINE_PARALLEL
from ...wire.messages import MeshAxis
from ..own_collector import Meeting, is_loopback
from ..sharing import share
from .axes import JobAxes, job_axes, present_job

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_launches = count()
_observed = Counter[str]()
"""By run: how often this process has begun to observe it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One rank of one launch."""

    rank: int
    world_size: int
    local_world_size: int
    """Ranks on this host."""
    job: JobAxes
    """The axes of its mesh."""
    host: str


def identify(
    model: torch.nn.Module, mesh: DeviceMesh | Mapping[str, int] | None = None
) -> Identity:
    """From the process group, else from the launcher's environment, else a job of one.

    Args:
        mesh: the job's, or the sizes of its axes; else that of the model's DTensors.

    Raises:
        SettingError: the mesh is not one of all ranks.
    """
    rank, world_size = _rank_and_world_size()
    return Identity(
        rank=rank,
        world_size=world_size,
        local_world_size=ranks_on_this_host(),
        job=job_axes(model, mesh, rank, world_size),
        host=socket.gethostname(),
    )


def mesh_of_tensors(model: torch.nn.Module) -> tuple[MeshAxis, ...]:
    """The mesh of the job that is observed now; else what the model's DTensors tell."""
    return (present_job() or identify(model).job).axes


def ranks_on_this_host() -> int:
    """What the launcher says, else all ranks.

    Raises:
        SettingError: the launcher's variable is not a number.
    """
    return _number("LOCAL_WORLD_SIZE", _rank_and_world_size()[1])


def data_axes(mesh: Sequence[MeshAxis]) -> tuple[str, ...]:
    """The mesh axes along which ranks see different samples, or parts of them.

    Those of an axis `ep` do, too: each has its own samples, and some experts for those of all.
    """
    return tuple(axis.name for axis in mesh if axis.name not in MODEL_AXES)


def stage_axes(mesh: Sequence[MeshAxis]) -> tuple[str, ...]:
    """The mesh axes along which ranks hold other modules."""
    return tuple(axis.name for axis in mesh if axis.name == PIPELINE_PARALLEL and axis.size > 1)


class Rendezvous:
    """What rank 0 says to all ranks of this launch, through the job's own key-value store.

    No collective is involved: when observing begins, rank 0 sets a key and the others wait for it.

    Raises:
        SettingError: there are several ranks but no process group to share a store.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._prefix = f"rankscope/{_restart()}/{next(_launches)}"
        self._store: Any = None
        if identity.world_size > 1:
            if not dist.is_initialized():
                raise SettingError(
                    f"WORLD_SIZE is {identity.world_size}, but torch.distributed has no process "
                    "group: call torch.distributed.init_process_group() before observe()."
                )
            # torch has no public name for the store that a launch already shares.
            self._store = dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]

    def share(self, key: str, make: Callable[[], str]) -> str:
        """The string that rank 0 made; if making it failed there, the same error on every rank.

        Raises:
            RankscopeError: rank 0 could not make it.
        """
        if self._store is None:
            return make()
        is_first = self._identity.rank == 0
        return share(_Store(self._store), f"{self._prefix}/{key}", make, is_first=is_first)


class _Store:
    """Torch's, which gives bytes."""

    def __init__(self, store: Any) -> None:
        self.set, self._store = store.set, store

    def get(self, key: str) -> str:
        """Waits until it is set."""
        return bytes(self._store.get(key)).decode()


def meeting_of(identity: Identity) -> Meeting:
    """Where the ranks meet, as the launcher says."""
    address = os.environ.get("MASTER_ADDR", "")
    if identity.world_size > 1 and "LOCAL_WORLD_SIZE" in os.environ:
        is_on_one_host = identity.local_world_size == identity.world_size
    else:
        is_on_one_host = identity.world_size == 1 or is_loopback(address)
    return Meeting(host=identity.host, is_on_one_host=is_on_one_host, address=address)


def launch_token() -> str:
    """A new token: one start of the job."""
    return uuid.uuid4().hex


def named_launch(run: str) -> str:
    """What RANKSCOPE_LAUNCH says of this start of the job, so that its processes need not meet.

    Restarts by torchrun are starts of their own, and so is each observation of a run in a process.
    """
    name = os.environ.get("RANKSCOPE_LAUNCH", "")
    _observed[run] += 1
    return f"{name}/{_restart()}/{_observed[run]}" if name else ""


def _restart() -> str:
    """How often torchrun has started this job's processes anew, with the same key-value store."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def facts(model: torch.nn.Module) -> dict[str, str]:
    """What is worth keeping about this rank's software, and its device."""
    known = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "LOCAL_RANK")
    device = next(model.parameters()).device
    uuid = torch.cuda.get_device_properties(device).uuid if device.type == "cuda" else None
    return {
        **({"device_uuid": str(uuid)} if uuid else {}),
        "torch": str(torch.__version__),
        "model": type(model).__name__,
        **{name.lower(): os.environ[name] for name in known if name in os.environ},
    }


def _rank_and_world_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return _number("RANK", 0), _number("WORLD_SIZE", 1)


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise SettingError(f"{variable} must be a whole number, got {text!r}.") from None
