"""The pieces that ranks hold merge to the tensors of one process.

Each model is trained in float64, where the numbers of all steps agree to 1e-10 and no element lies
in another bin; and in float32, where those of the first step do to what its rounding lets them.
"""

from __future__ import annotations

import runpy
from functools import partial
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch

from rankscope.sketch import sketch_array
from rankscope.store import Run

from .launching import run_of
from .one_process import (
    Tensors,
    as_ranks_see_it,
    assert_same_as_one_process,
    assert_same_weights,
    mode_and_dtype,
    one_process,
    runs_of,
)

JOB = Path(__file__).with_name("shards_job.py")
SCRIPT = runpy.run_path(str(JOB))
AXES: dict[str, tuple[str, ...]] = SCRIPT["AXES"]
SAMPLED = "activation", "activation_gradient", "input_gradient"


@pytest.fixture(scope="module", params=list(AXES))
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """By dtype: the runs of a job whose ranks hold pieces; their names say how."""
    ranks = 2 ** len(AXES[request.param])
    return runs_of(JOB, ranks, request.param, tmp_path_factory.mktemp("runs"))


def expected_of(run: Run) -> list[Tensors]:
    """By step: what is to be in the store."""
    mode, dtype = mode_and_dtype(run)
    model = SCRIPT["make_model"](mode, dtype)
    whole = one_process(
        model,
        SCRIPT["make_optimizer"](model),
        lambda step: SCRIPT["train"](model, SCRIPT["batch"](step)),
        SCRIPT["STEPS"],
        updates=True,
    )
    samples, gathered = SCRIPT["samples"](mode), not {"fsdp", "shard"}.isdisjoint(AXES[mode])
    seen = [as_ranks_see_it(tensors, samples, gathered=gathered) for tensors in whole]
    for tensors in seen if gathered else ():
        for label in [label for label in tensors if label.startswith("unsharded_weight:up.")]:
            tensors[f"{label}[backward]"] = tensors[label]  # a unit of its own, gathered once more
    for tensors in seen[:-1] if "tp" in AXES[mode] else ():
        tensors["local_activation:down"] = tensors["activation:down"]
        # Nothing else takes what the norm returns; what is added to others has their gradient.
        for layer, same in (("up", "norm"), ("head", "down")):
            for kind in ("input_gradient", "local_input_gradient"):
                tensors[f"{kind}:{layer}"] = tensors[f"activation_gradient:{same}"]
    return seen


def is_addend(mode: str, label: str) -> bool:
    """Whether ranks hold addends: torch leaves it so where a norm saw part of the sequence."""
    return label.startswith("local_") or (mode == "sp" and "weight_gradient:norm" in label)


def is_numbered(mode: str, label: str) -> bool:
    """Whether the elements have their numbers in the whole: of DTensors, and not of samples."""
    kind, _, name = label.partition(":")
    of_samples = kind.removeprefix("local_") in SAMPLED
    alone = mode in ("tp", "sp") and kind in ("local_activation", "local_input_gradient")
    return not of_samples or alone or (mode == "sp" and name == "norm")


def at(mode: str, rank: int) -> dict[str, int]:
    """Where a rank is on the mesh."""
    places = list(product((0, 1), repeat=len(AXES[mode])))
    return dict(zip(AXES[mode], places[rank], strict=True))


def weight_of(place: dict[str, int], weight: torch.Tensor) -> torch.Tensor:
    """The piece of a column-parallel weight that a rank holds there."""
    for axis in ("tp", "fsdp", "shard"):
        weight = weight.chunk(2)[place[axis]] if axis in place else weight
    return weight


def output_of(mode: str, rank: int, output: torch.Tensor, axis: int) -> torch.Tensor:
    """A rank's piece of what a module returns; along `tp` it is cut along an axis."""
    mine = output.chunk(SCRIPT["samples"](mode))[SCRIPT["share"](mode, rank)]
    place = at(mode, rank)
    return mine.chunk(2, axis)[place["tp"]] if "tp" in place else mine


def weights_of_groups(mode: str, weight: torch.Tensor) -> dict[str, list[torch.Tensor]]:
    """By name of a group of ranks, along one axis or two: the pieces that they hold, each once."""
    held = dict[str, dict[int, torch.Tensor]]()
    for rank in range(2 ** len(AXES[mode])):
        place = at(mode, rank)
        piece = weight_of(place, weight)
        for some in (*combinations(place, 1), *combinations(place, 2)):
            if len(some) < len(place):
                name = ",".join(f"{axis}={place[axis]}" for axis in some)
                held.setdefault(name, {})[piece.data_ptr()] = piece
    return {name: list(pieces.values()) for name, pieces in held.items()}


def norm_of(*pieces: torch.Tensor) -> float:
    """Of all of them together; torch's norm of float32 is right to 1e-6 only."""
    return torch.cat([piece.flatten().double() for piece in pieces]).norm().item()


def test_every_site_has_the_numbers_of_one_process(run: Run) -> None:
    mode, _ = mode_and_dtype(run)
    assert_same_as_one_process(
        run, expected_of(run), partial(is_addend, mode), partial(is_numbered, mode)
    )


def test_initial_weights_are_those_of_one_process_to_the_last_bit(run: Run) -> None:
    assert_same_weights(run, expected_of(run)[0])


def test_each_rank_has_the_numbers_of_its_own_pieces(run: Run) -> None:
    mode, _ = mode_and_dtype(run)
    whole = expected_of(run)[0]
    cut_along = {"up": -1}
    if mode in SCRIPT["SEQUENCE_PARALLEL"]:
        cut_along |= {"tokens": 1, "norm": 1, "down": 1}
    for rank in range(2 ** len(AXES[mode])):
        pieces = {"weight:up.weight": weight_of(at(mode, rank), whole["weight:up.weight"])}
        for name, axis in cut_along.items():
            label = f"activation:{name}"
            pieces[label] = output_of(mode, rank, whole[label], axis)
        for label, piece in pieces.items():
            seen = run.ranks("l2", site=label, steps=0).sel(rank=rank).item()
            assert seen == pytest.approx(norm_of(piece), rel=1e-6), (label, rank)


def test_groups_of_ranks_are_seen_as_merged_over_them(run: Run) -> None:
    mode, _ = mode_and_dtype(run)
    groups = weights_of_groups(mode, expected_of(run)[0]["weight:up.weight"])
    assert set(run.groups) == set(groups)
    for group, pieces in groups.items():
        seen = run.scalar("l2", sites="weight:up.weight", steps=0, view=group).item()
        assert seen == pytest.approx(norm_of(*pieces), rel=1e-6), group


def test_where_each_piece_lies_is_told(run: Run) -> None:
    mode, _ = mode_and_dtype(run)
    whole = expected_of(run)[0]["weight:up.weight"]
    cut_by = [axis for axis in AXES[mode] if axis in ("tp", "fsdp", "shard")]
    found = run.regions(kind="weight", name="up.weight")
    assert len(found) == 2 ** len(cut_by) * bool(cut_by)
    for rank in range(2 ** len(AXES[mode])):
        place = at(mode, rank)
        cell = ",".join(f"{axis}={place[axis]}" for axis in sorted(cut_by))
        mine = found[found["cell"] == cell]
        for offset, shape in zip(mine["offset"], mine["shape"], strict=True):
            (first, second), (rows, columns) = offset, shape
            piece = whole[first : first + rows, second : second + columns]
            assert torch.equal(piece, weight_of(place, whole))
    assert set(found["whole"]) <= {tuple(whole.shape)}


def eigenvalues_of(samples: torch.Tensor) -> np.ndarray:
    """Of the covariance of the last axis over all others, the largest first."""
    rows = samples.flatten(0, -2).double().numpy()
    return np.linalg.eigvalsh(np.cov(rows.T))[::-1]


def effective_rank_of(samples: torch.Tensor) -> float:
    levels = np.linalg.svd(samples.flatten(0, -2).double().numpy(), compute_uv=False)
    share = levels[levels > 0] / levels.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def test_quantities_are_those_of_one_process(run: Run) -> None:
    mode, dtype = mode_and_dtype(run)
    close = partial(np.testing.assert_allclose, rtol=1e-8 if dtype == torch.float64 else 2e-3)
    whole, parts = expected_of(run), 2 if "tp" in AXES[mode] else 1
    texts = run.events()["text"].tolist()
    # FSDP hands on an input that a collective has not filled; that is told, and not waited for.
    sees_inputs = mode != "hsdp-sp"
    assert any("it is still on its way from other ranks" in text for text in texts) != sees_inputs
    for step in range(SCRIPT["STEPS"]):
        of_up = partial(run.quantity, of="^up$", steps=step)
        entering, leaving = (whole[step][f"activation:{name}"] for name in ("norm", "up"))
        if sees_inputs:
            close(of_up("input_cov_spectrum")["value"][:8], eigenvalues_of(entering)[:8])
            means = entering.flatten(0, -2).double().mean(0).numpy()
            np.testing.assert_allclose(of_up("input_channel_mean")["value"], means, atol=1e-5)

        pieces = leaving.chunk(parts, -1)
        largest = of_up("output_cov_max_eig")
        assert largest["part"].tolist() == (["tp=0", "tp=1"] if parts > 1 else [""])
        close(largest["value"], [eigenvalues_of(piece)[0] for piece in pieces])
        close(of_up("rank_me")["value"], [effective_rank_of(piece) for piece in pieces])

        weight = whole[step]["weight:up.weight"].double().numpy()
        close(of_up("weight_spectral_norm")["value"], [np.linalg.norm(weight, 2)])
    for quantity, kind in (
        ("weight_gradient_cosine", "weight_gradient"),
        ("update_cosine", "update"),
    ):
        before, after = (whole[step][f"{kind}:up.weight"].double().flatten() for step in (0, 1))
        found = run.quantity(quantity)
        assert found["step"].tolist() == [1]
        close(found["value"], [torch.cosine_similarity(before, after, 0).item()])


def test_nothing_is_found_wrong(run: Run) -> None:
    assert run.alerts()["text"].tolist() == []
    for counter in ("tensors_unsupported", "tensors_stale", "hook_errors", "steps_dropped"):
        assert set(run.health()[counter]["total"]) == {0.0}, counter
    assert run.records()["complete"].tolist() == [True] * (SCRIPT["STEPS"] + 1)


def test_what_is_used_through_a_view_alone_is_read(tmp_path: Path) -> None:
    run = run_of(JOB.with_name("views_job.py"), 2, "views", tmp_path)
    assert run.health()["tensors_unsupported"]["total"].tolist() == [0, 0]
    order = run.sites(kind="activation")["order"].to_dict()
    assert sorted(order, key=lambda label: order[label]) == [
        f"activation:{name}" for name in ("up", "down", "head", "(root)")
    ]
    down = runpy.run_path(str(JOB.with_name("views_job.py")))["make_model"]().whole_down()
    assert run.scalar("l2", sites="activation:down").values[0, 0] == pytest.approx(
        norm_of(down), rel=1e-6
    )


def test_odd_pieces_are_not_told_as_what_they_are_not(tmp_path: Path) -> None:
    run = run_of(JOB, 2, "odd", tmp_path, "odd")
    for name, whole in SCRIPT["odd_pieces"]().items():
        exact = sketch_array(whole.numpy())
        for step in (0, 1):
            [_], merged = run.table(step, [f"tap:{name}"])
            assert np.array_equal(merged.counts, exact.counts), name
            assert np.array_equal(merged.histogram, exact.histogram), name
            if name != "flat":  # whose pieces are interleaved
                assert np.array_equal(merged.checksum, exact.checksum), name
    assert run.health()["hook_errors"]["total"].tolist() == [0, 0]
