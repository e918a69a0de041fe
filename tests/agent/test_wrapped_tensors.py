"""Tensors that are made of tensors: a quantised weight has its elements and its scales."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map

from rankscope.sketch import derive
from rankscope.store import open_run

if TYPE_CHECKING:
    from conftest import Observed

BLOCK = 32


class Quantised(torch.Tensor):
    """Elements in float8 and a power of two for each block of 32, as torchao's MXTensor."""

    @staticmethod
    def __new__(cls: type[Quantised], qdata: torch.Tensor, scale: torch.Tensor) -> Quantised:
        return torch.Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=torch.float32)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]

    def __init__(self, qdata: torch.Tensor, scale: torch.Tensor) -> None:
        self.qdata, self.scale = qdata, scale

    @classmethod
    def of(cls, x: torch.Tensor) -> Quantised:
        blocks = x.view(-1, BLOCK)
        exponent = blocks.abs().amax(1).log2().floor() - 8
        scaled = blocks / torch.exp2(exponent)[:, None]
        scaled = scaled.clamp(-448, 448).to(torch.float8_e4m3fn)  # torch 2.9 rounds more to NaN
        return cls(scaled.view(x.shape), torch.exp2(exponent).to(torch.float8_e8m0fnu))

    def plain(self) -> torch.Tensor:
        blocks = self.qdata.float().view(-1, BLOCK) * self.scale.float()[:, None]
        return blocks.view(self.shape)

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["qdata", "scale"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, torch.Tensor], *_: Any) -> Quantised:
        return Quantised(parts["qdata"], parts["scale"])

    # `Any`: whatever operation torch runs.
    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten.view.default):
            copy = Quantised(args[0].qdata, args[0].scale)
            return return_and_correct_aliasing(function, args, kwargs or {}, copy)
        unwrapped = tree_map(lambda x: x.plain() if isinstance(x, Quantised) else x, (args, kwargs))
        return function(*unwrapped[0], **(unwrapped[1] or {}))


def test_a_quantised_weight_is_recorded_with_its_real_scales(observed: Observed) -> None:
    torch.manual_seed(0)
    first = nn.Linear(64, 8)
    frozen = Quantised.of(first.weight.detach() * 2.0**-20)
    first.weight = nn.Parameter(frozen, requires_grad=False)
    model = nn.Sequential(first, nn.Linear(8, 8))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with observed.observe(model, optimizer) as scope:
        for _ in range(2):
            model(torch.randn(3, 64)).sum().backward()
            optimizer.step()
            scope.step()
    sites = open_run(observed.path).sites(kind="weight")
    assert sites["dtype"].to_dict() == {
        "weight:0.weight[qdata]": "float8_e4m3fn",
        "weight:0.weight[scale]": "float8_e8m0fnu",
        "weight:0.bias": "float32",
        "weight:1.weight": "float32",
        "weight:1.bias": "float32",
    }
    scale = observed.sketches(1)["weight:0.weight[scale]"]
    assert derive(scale, "count") == 64 * 8 / BLOCK
    assert derive(scale, "max") == frozen.scale.double().max().item()
    elements = observed.sketches(1)["weight:0.weight[qdata]"]
    assert derive(elements, "abs_max") == frozen.qdata.double().abs().max().item()
    assert scope.health()["tensors_unsupported"] == 0
    assert scope.health()["hook_errors"] == 0


def test_a_wrapper_of_integers_alone_is_counted_as_not_read(observed: Observed) -> None:
    model = nn.Linear(2, 2)
    wrapped = Quantised(torch.ones(2, 32, dtype=torch.int8), torch.ones(2, dtype=torch.int8))
    with observed.observe(model, kinds=["tap"]) as scope:
        scope.tap("codes", wrapped)
        scope.tap("plain", torch.ones(3))
        scope.step()
    assert observed.labels() == ["tap:plain"]
    assert scope.health()["tensors_unsupported"] == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_nested_tensors_are_recorded_by_their_values(observed: Observed) -> None:
    parts = [torch.ones(3, 2), torch.full((5, 2), 3.0)]
    with observed.observe(nn.Linear(2, 2), kinds=["tap"]) as scope:
        scope.tap("jagged", torch.nested.nested_tensor(parts, layout=torch.jagged))
        scope.tap("strided", torch.nested.nested_tensor(parts))
        scope.step()
    assert observed.labels() == ["tap:jagged[_values]", "tap:strided"]
    for sketch in observed.sketches(0).values():
        assert derive(sketch, "mean") == (3 + 15) / 8


class Stored(torch.Tensor):
    """Bytes and scales under the names that TransformerEngine 2.8 and 2.20 give them.

    Theirs cannot be made without a GPU. By hand the attributes were held against their own classes.
    """

    @staticmethod
    def __new__(cls: type[Stored], shape: tuple[int, ...], **_: Any) -> Stored:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]

    def __init__(self, shape: tuple[int, ...], **attributes: Any) -> None:
        self.attributes = attributes
        for name, value in attributes.items():
            setattr(self, name, value)

    # `Any`: whatever operation torch runs.
    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        copy = Stored(args[0].shape, **args[0].attributes)
        return return_and_correct_aliasing(function, args, kwargs or {}, copy)


Stored.__module__ = "transformer_engine.pytorch.tensor"


class Named:
    """A member of TransformerEngine's enumerations."""

    def __init__(self, name: str) -> None:
        self.name = name


def padded(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    whole = torch.zeros(rows, columns, dtype=scales.dtype)
    whole[: scales.shape[0], : scales.shape[1]] = scales
    return whole


ELEMENTS = (torch.arange(6 * 96).view(6, 96) % 7 + 1.0).to(torch.float8_e4m3fn)
OCTETS = ELEMENTS.view(torch.uint8)
E4M3, GEMM_READY = Named("kFloat8E4M3"), Named("GEMM_READY")
MX = {
    "_rowwise_data": OCTETS,
    "_rowwise_scale_inv": padded(torch.full((6, 3), 130, dtype=torch.uint8), 128, 4),
    "_fp8_dtype": E4M3,
}
BLOCKWISE = {"_rowwise_data": OCTETS, "_fp8_dtype": E4M3, "_data_format": GEMM_READY}


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (
            {"_data": OCTETS, "_scale_inv": torch.tensor([0.5]), "_fp8_dtype": E4M3},
            {"data": ("float8_e4m3fn", 576), "scale_inv": ("float32", 1)},
        ),
        (MX, {"data": ("float8_e4m3fn", 576), "scale_inv": ("float8_e8m0fnu", 18)}),
        (
            MX | {"_with_gemm_swizzled_scales": True},
            {"data": ("float8_e4m3fn", 576), "scale_inv": ("float8_e8m0fnu", 512)},
        ),
        (
            BLOCKWISE
            | {"_rowwise_scale_inv": padded(torch.ones(1, 1), 1, 4), "_is_2D_scaled": True},
            {"data": ("float8_e4m3fn", 576), "scale_inv": ("float32", 1)},
        ),
        (
            BLOCKWISE
            | {"_rowwise_scale_inv": padded(torch.ones(1, 6), 1, 8), "_is_2D_scaled": False},
            {"data": ("float8_e4m3fn", 576), "scale_inv": ("float32", 6)},
        ),
        (
            {
                "_rowwise_data": OCTETS[:, :48],
                "_rowwise_scale_inv": padded(torch.full((6, 6), 0x38, dtype=torch.uint8), 128, 8),
                "_amax_rowwise": torch.ones(1),
                "_fp4_dtype": Named("kFloat4E2M1"),
            },
            {"scale_inv": ("float8_e4m3fn", 36), "amax": ("float32", 1)},
        ),
    ],
)
def test_the_bytes_of_transformer_engine_are_read_as_what_they_stand_for(
    observed: Observed, attributes: dict[str, Any], expected: dict[str, tuple[str, int]]
) -> None:
    model = nn.Linear(2, 2)
    with observed.observe(model, kinds=["tap"]) as scope:
        scope.tap("t", Stored((6, 96), **attributes))
        scope.step()
    sites = open_run(observed.path).sites(kind="tap")
    sketches = observed.sketches(0)
    assert {
        slot: (dtype, int(sketches[f"tap:t[{slot}]"].counts[0, 0]))
        for slot, dtype in zip(sites["slot"], sites["dtype"], strict=True)
    } == expected
    assert all(derive(sketch, "abs_min")[0] > 0.1 for sketch in sketches.values()) == (
        not attributes.get("_with_gemm_swizzled_scales")
    )


def test_parts_of_a_piece_are_placed_as_the_piece(observed: Observed, tmp_path: Path) -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    meeting = f"file://{tmp_path}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0], mesh_dim_names=("fsdp",))
        wrapped = Quantised.of(torch.randn(4, 32))
        piece = DTensor.from_local(wrapped, mesh, [Shard(0)], run_check=False)
        with observed.observe(nn.Linear(2, 2), kinds=["tap"], mesh={"fsdp": 1}) as scope:
            scope.tap("w", piece)
            scope.step()
    finally:
        torch.distributed.destroy_process_group()
    sites = open_run(observed.path).sites(kind="tap")
    assert sites["placement"].to_dict() == {
        "tap:w[qdata]": {"fsdp": "shard"},
        "tap:w[scale]": {"fsdp": "shard"},
    }


def test_what_transformer_engine_keeps_by_columns_alone_is_counted_as_unread(
    observed: Observed,
) -> None:
    with observed.observe(nn.Linear(2, 2), kinds=["tap"]) as scope:
        scope.tap("t", Stored((6, 96), _rowwise_data=None, _columnwise_data=OCTETS))
        scope.step()
        unread = scope.health()["tensors_unsupported"]
    assert unread == 1
