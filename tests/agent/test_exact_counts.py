"""What is counted beside the sketches: by every kernel alike, and in a run as it was asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from rankscope.agent.kernel import DTYPES, count
from rankscope.agent.reading import Reading
from rankscope.agent.selection import RankscopeWarning
from rankscope.agent.sitebook import Counted
from rankscope.agent.steptable import StepRing
from rankscope.agent.torch import BlockExponents, CastCounts, FineExponents
from rankscope.agent.torch.arithmetic import Plain
from rankscope.agent.torch.counting import ToCount, counts_of
from rankscope.agent.torch.device import Copy, DeviceMeter
from rankscope.sketch import ExactCount, SettingError, sketch_array
from rankscope.store import open_run

if TYPE_CHECKING:
    from conftest import Observed

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXACT_COUNTS: list[ExactCount] = [
    FineExponents(bits=1),
    FineExponents(bits=4),
    BlockExponents(),
    BlockExponents(rows=3, columns=1),
    BlockExponents(rows=16, columns=7, scale="amax", bits=2),
    CastCounts("float8_e4m3fn"),
    CastCounts("float64"),
]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def any_bits(name: str) -> st.SearchStrategy[NDArray[Any]]:
    dtype = dtype_of(name)
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=20)
    words = hnp.arrays(np.dtype(f"u{dtype.itemsize}"), shapes)
    return words.map(lambda array: array.view(dtype))


def by_numba(exact_count: ExactCount, x: NDArray[Any]) -> NDArray[np.int64]:
    return count(exact_count, x.ctypes.data, x.shape, DTYPES.index(x.dtype.name))


def by_torch(exact_count: ExactCount, x: NDArray[Any]) -> NDArray[np.int64]:
    raw = torch.from_numpy(x.view(np.dtype(f"i{x.itemsize}")).copy())
    tensor = raw.view(getattr(torch, x.dtype.name)).to(DEVICE)
    return counts_of(exact_count, tensor).cpu().numpy().reshape(exact_count.shape)


makers = pytest.mark.parametrize("make", [by_numba, by_torch])
exact_counts = pytest.mark.parametrize(
    "exact_count", EXACT_COUNTS, ids=lambda exact_count: exact_count.name
)


@makers
@exact_counts
@example(np.array([1e200, 1e-200]))
@example(np.array([4.0, 2.2e-308]))
@example(np.array([1.7e308, 5e-324, -3e-308, 2.3e-308]))
@given(st.sampled_from(DTYPES).flatmap(any_bits))
def test_kernels_count_any_bits_as_the_reference_does(
    make: Any, exact_count: ExactCount, x: NDArray[Any]
) -> None:
    assert np.array_equal(make(exact_count, x), exact_count.count(x))


@makers
@exact_counts
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_agree_over_many_chunks(make: Any, exact_count: ExactCount, dtype: str) -> None:
    x = np.random.default_rng(0).lognormal(0, 8, 30_001).astype(np.float32)
    x[::997], x[5::1999], x[::89] = np.nan, -np.inf, 0
    with np.errstate(over="ignore", invalid="ignore"):
        x = x.astype(dtype_of(dtype))
    for shape in ((30_001,), (3, 9_000), (5, 37, 101)):
        part = x[: np.prod(shape)].reshape(shape)
        assert np.array_equal(make(exact_count, part), exact_count.count(part))


@makers
@exact_counts
def test_kernels_agree_on_large_matrices(make: Any, exact_count: ExactCount) -> None:
    x = np.random.default_rng(1).standard_normal((1_100, 1_000)).astype(np.float32)
    assert np.array_equal(make(exact_count, x), exact_count.count(x))
    assert np.array_equal(make(exact_count, x.T.copy()), exact_count.count(x.T))


@exact_counts
@pytest.mark.parametrize("shape", [(3, 50, 70), (64, 7, 11), (300,), (2, 3, 40, 9)])
def test_counts_do_not_depend_on_how_many_are_counted_at_a_time(
    exact_count: ExactCount, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    monkeypatch.setattr("rankscope.agent.torch.counting.CHUNK", 64)
    assert np.array_equal(by_torch(exact_count, x), exact_count.count(x))


def test_counts_of_a_device_come_home_with_their_step() -> None:
    meter, ring = DeviceMeter(DEVICE, Plain(DEVICE)), StepRing()
    casts, fine = CastCounts("float8_e5m2"), FineExponents(2)
    tensors = [torch.randn(50, 30, device=DEVICE) * 1e5 for _ in range(4)]
    asked: list[Counted] = [((0, casts),), ((2, fine), (1, casts))]
    steps = [ring.take(number) for number in range(2)]
    homes = list[Copy | None]()
    for number, step in enumerate(steps):
        assert step is not None
        for row, what in enumerate(asked):
            for tensor in (tensors[2 * number + row], tensors[0]):
                seen = tensor.expand(3, 50, 30) if row else tensor
                how = Reading(copies=3 if row else 1)
                meter.add(step, row, tensor, how, ToCount.of(seen, what))
        homes.append(meter.send_home())
    for number, (step, home) in enumerate(zip(steps, homes, strict=True)):
        assert step is not None
        assert home is not None
        while not meter.arrived(home):
            time.sleep(0.001)
        meter.receive(home, step)
        first, second, again = (
            tensors[place].cpu().numpy() for place in (2 * number, 2 * number + 1, 0)
        )
        assert step.counts.keys() == {0, 1, 2}
        assert np.array_equal(step.counts[0], casts.count(first) + casts.count(again))
        assert np.array_equal(step.counts[1], 3 * (casts.count(second) + casts.count(again)))
        assert np.array_equal(step.counts[2], 3 * (fine.count(second) + fine.count(again)))


def test_subnormals_are_counted_though_torch_flushes_them() -> None:
    x = np.full((2, 3), 1e-40, np.float32)
    torch.set_flush_denormal(True)
    try:
        found = [by_numba(exact_count, x) for exact_count in EXACT_COUNTS]
    finally:
        torch.set_flush_denormal(False)
    for exact_count, counts in zip(EXACT_COUNTS, found, strict=True):
        assert np.array_equal(counts, exact_count.count(x))


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.GELU(), torch.nn.Linear(24, 5))


def test_what_is_asked_for_is_counted_of_the_sites_whose_label_matches(
    observed: Observed, train: Callable[..., list[float]]
) -> None:
    net, batches = model(), [torch.randn(7, 40) for _ in range(5)]
    block, cast = BlockExponents(columns=8), CastCounts("float8_e4m3fn")
    optimizer = torch.optim.AdamW(net.parameters())
    asked = {r"^activation:1": [block, cast], "exp_avg_sq": FineExponents(2), "1": cast}
    with observed.observe(net, optimizer, every=2, exact_counts=asked) as scope:
        train(scope, net, optimizer, batches)
    run = open_run(observed.path)

    known = run.exact_counts()
    assert known[known["site"] == "activation:1"]["exact_count"].tolist() == [block.name, cast.name]
    states = known[known["exact_count"] == FineExponents(2).name]["site"].tolist()
    assert all(state.endswith("[exp_avg_sq]") for state in states)
    assert len(states) == 4
    found = run.exact_count(block, site="activation:1")
    assert found.step.values.tolist() == [0, 2, 4]
    assert found.sum(("exponent", "part", "at")).values.tolist() == [
        run.table(step, ["activation:1"])[1].histogram.sum() for step in (0, 2, 4)
    ]
    fine = run.exact_count(FineExponents(2), site=states[0]).sel(step=4)
    table = run.table(4, [states[0]])[1]
    assert np.array_equal(fine.sum(("part", "at"))[1:-1], table.histogram[0])


def test_counts_are_of_the_tensor_and_of_all_micro_batches(observed: Observed) -> None:
    net, exact_count = model(), BlockExponents(rows=2, columns=5, scale="amax")
    batches = [torch.randn(7, 40) for _ in range(3)]
    with observed.observe(net, exact_counts={"activation:": exact_count}) as scope:
        outputs = [net(batch) for batch in batches]
        scope.step()
    found = open_run(observed.path).exact_count(exact_count, site="activation:2").isel(step=0)
    assert np.array_equal(found, sum(exact_count.count(out.detach().numpy()) for out in outputs))


def test_a_permuted_tensor_is_counted_in_its_rows_and_columns(observed: Observed) -> None:
    net, block, cast = torch.nn.Linear(3, 2), BlockExponents(columns=4), CastCounts("float8_e5m2")
    x, expanded = torch.randn(12, 6).t(), torch.randn(5, 1).expand(5, 8)
    batch = torch.randn(1, 5, 6).expand(4, 5, 6)
    with observed.observe(net, exact_counts={"tap:": [block, cast]}) as scope:
        net(torch.randn(2, 3))
        scope.tap("permuted", x)
        scope.tap("expanded", expanded)
        scope.tap("batch", batch)
        scope.step()
    run = open_run(observed.path)
    found = run.exact_count(block, site="tap:permuted").isel(step=0)
    assert np.array_equal(found, block.count(x.numpy()))
    for exact_count in (block, cast):
        found = run.exact_count(exact_count, site="tap:expanded").isel(step=0)
        assert np.array_equal(found, exact_count.count(expanded.numpy()))
        found = run.exact_count(exact_count, site="tap:batch").isel(step=0)
        assert np.array_equal(found, exact_count.count(batch.numpy()))
    for site in ("permuted", "expanded", "batch"):  # nor does counting change the sketch
        assert sketch_array(x.T.numpy()).checksum == run.table(0, ["tap:permuted"])[1].checksum
        assert int(run.exact_count(block, site=f"tap:{site}").sum()) == int(
            run.table(0, [f"tap:{site}"])[1].histogram.sum()
        )


def test_a_site_that_is_counted_is_not_sampled(observed: Observed) -> None:
    net, exact_count = torch.nn.Linear(512, 400), FineExponents(1)
    with observed.observe(
        net, sample=1 / 8, exact_counts={"^weight:weight$": exact_count}
    ) as scope:
        net(torch.randn(256, 512))
        scope.step()
    run = open_run(observed.path)
    assert run.scalar("seen_share", sites="weight:weight").values.ravel()[0] == 1
    assert run.scalar("seen_share", kind="activation").values.ravel()[0] < 0.2
    counts = run.exact_count(exact_count, site="weight:weight").isel(step=0)
    assert int(counts.sum()) == 512 * 400


def test_a_pattern_that_no_site_has_is_told_with_near_ones(observed: Observed) -> None:
    net = model()
    scope = observed.observe(net, exact_counts={"activation:9": FineExponents()}).__enter__()
    net(torch.randn(2, 40))
    scope.step()
    with pytest.warns(RankscopeWarning, match=r"exact_counts='activation:9' matches no site; near"):
        scope.__exit__(None, None, None)


def test_what_does_not_fit_into_a_frame_is_counted_as_refused(observed: Observed) -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(12)))
    with observed.observe(net, exact_counts={"": FineExponents()}) as scope:
        net(torch.randn(2, 2))
        scope.step()
        refused = scope.health()["exact_counts_refused"]
    sites = len(observed.labels())
    known = open_run(observed.path).exact_counts()["site"]
    assert (len(known), refused) == (29, sites - 29)
    assert observed.reports().count("There is no room for all exact counts, and ") == 1
    assert "a rank has room for 262144 counts" in observed.reports()


def test_what_is_no_exact_count_is_refused_at_once(observed: Observed) -> None:
    with pytest.raises(SettingError, match=r"exact_counts\['x'\] must be FineExponents"):
        observed.observe(model(), exact_counts={"x": "fine"})
    with pytest.raises(SettingError, match=r"exact_counts='\(' is not a regular expression"):
        observed.observe(model(), exact_counts={"(": FineExponents()})


def test_what_a_run_has_no_room_for_is_told(observed: Observed) -> None:
    for name in ("first", "second"):
        net = torch.nn.ModuleDict({f"{name}{i}": torch.nn.Linear(2, 2) for i in range(10)})
        with observed.observe(net, kinds=["weight"], exact_counts={"": FineExponents()}) as scope:
            scope.step()
    run = open_run(observed.path)
    events = run.events()
    told = events[events["kind"] == "no-room"]["text"].tolist()
    assert len(run.exact_counts()) == 29
    assert len(told) == 1
    assert told[0].startswith("11 exact counts are not stored, fine_exponents:4 of weight:")


class Table(torch.nn.Module):
    """Returns the same buffer at each call, as a table of positions does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.randn(8, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.positions  # type: ignore[return-value]


def test_a_buffer_that_is_returned_again_is_counted_again(observed: Observed) -> None:
    net, exact_count = torch.nn.Sequential(Table(), torch.nn.Linear(64, 2)), FineExponents(1)
    optimizer = torch.optim.SGD(net.parameters())
    with observed.observe(net, optimizer, exact_counts={"activation:0": exact_count}) as scope:
        for _ in range(4):
            net(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        scope.step()
    run = open_run(observed.path)
    found = run.exact_count(exact_count, site="activation:0").sel(step=0)
    assert int(found.sum()) == 4 * 8 * 64
    assert int(run.table(0, ["activation:0"])[1].histogram.sum()) == 4 * 8 * 64


def test_sites_that_come_while_frames_are_made_lose_none(observed: Observed) -> None:
    net, before = torch.nn.Linear(2, 2), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with observed.observe(
            net, kinds=["tap"], exact_counts={"tap:": CastCounts("float8_e5m2")}
        ) as scope:
            for step in range(60):
                with ThreadPoolExecutor(3) as threads:
                    for one in range(6):
                        threads.submit(scope.tap, f"t{step}.{one}", torch.ones(2))
                scope.step()
    finally:
        sys.setswitchinterval(before)
    run = open_run(observed.path)
    dropped = int(scope.health()["steps_dropped"])
    # Any of 60 steps may be dropped, and what is recorded at the end.
    assert len(run.records()) == 60 + 1 - dropped
    assert set(run.events()["kind"]) <= {"gap"}
    assert sum(run.gaps()["frames"].tolist()) == dropped
    known = run.exact_counts()
    assert len(known) == len(set(known["site"])) == len(run.sites())


def test_an_error_in_the_block_is_not_hidden_by_a_warning(observed: Observed) -> None:
    with pytest.raises(KeyError), observed.observe(model(), exact_counts={"x": FineExponents()}):
        raise KeyError("the user's own")
