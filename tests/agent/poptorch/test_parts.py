"""What is taken of what PopTorch returns: names, modes, replicas, and steps on their way."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankscope.agent import Outbox
from rankscope.agent.modes import Mode
from rankscope.agent.poptorch.delivery import HELD, MOST, Delivery, Parcel
from rankscope.agent.poptorch.names import anchors_of, numbers_of
from rankscope.agent.poptorch.returned import Returned
from rankscope.agent.poptorch.sketching import Part, sketch
from rankscope.agent.sitebook import SiteBook
from rankscope.agent.telling import Telling
from rankscope.wire import Hello, MeshAxis
from rankscope.wire.messages import PROTOCOL

sizes = st.integers(1, 4)


@given(sizes, sizes, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_what_is_asked_of_all_is_what_the_model_would_return(
    periods: int, accumulation: int, replicas: int, period: int, times: int
) -> None:
    iterations = periods * period * times
    micro = [(i, a) for i in range(iterations) for a in range(accumulation)]

    def returned(mode: Mode) -> Returned:
        return Returned(
            mode=mode, iterations=iterations, accumulation=accumulation, replicas=replicas
        )

    every = [one for one in micro if (one[0] + 1) % (period * times) == 0]
    of_all = returned(Mode("all"))
    assert of_all.repeats == len(micro) * replicas
    for asked, expected in (
        (Mode("all"), micro),
        (Mode("final"), micro[-1:]),
        (Mode("every", period * times), every),
    ):
        assert [micro[at] for at in of_all.chosen(asked) or []] == expected
    fewer = returned(Mode("every", period))
    there = [one for one in micro if (one[0] + 1) % period == 0]
    assert fewer.groups == len(there)
    assert [there[at] for at in fewer.chosen(Mode("every", period * times)) or []] == every


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("final", "all"),
        ("final", "sum"),
        ("sum", "final"),
        ("every(2)", "sum"),
        ("all", "every(3)"),
    ],
)
def test_what_is_not_returned_cannot_be_taken(model: str, asked: str) -> None:
    returned = Returned(mode=Mode.parse(model), iterations=4, accumulation=2, replicas=1)
    assert returned.chosen(Mode.parse(asked)) is None


def test_sites_are_found_among_all_that_a_graph_has() -> None:
    names = ["fc.w", "fc.w/Gemm:0", "Gradient___fc.w", "Gradient___fc/Gemm:0", "UpdatedVar___fc.w"]
    names += ["Accl1___fc.w", "UpdatedVar___Accl1___fc.w", "Accl2___fc.w", "Step___fc.w", "loss"]
    found = {anchor.key[::2]: anchor.long_name for anchor in anchors_of(names, ["fc.w"], "AdamW")}
    assert found == {
        ("weight_gradient", ""): "Gradient___fc.w",
        ("weight", ""): "UpdatedVar___fc.w",
        ("optimizer_state", "exp_avg"): "UpdatedVar___Accl1___fc.w",
        ("optimizer_state", "exp_avg_sq"): "Accl2___fc.w",
        ("optimizer_state", "Step"): "Step___fc.w",
    }
    slots = {anchor.key[2] for anchor in anchors_of(names, ["fc.w"], "RMSprop")}
    assert slots == {"", "Accl1", "Accl2", "Step"}


def test_a_parameter_may_be_called_model() -> None:
    names = ["Gradient___model.fc.w", "Gradient___model.model.fc.w"]
    [anchor] = anchors_of(names[:1], ["model.fc.w", "fc.w"], "")
    assert anchor.key[1] == "model.fc.w"
    [anchor] = anchors_of(names[1:], ["model.fc.w"], "")
    assert anchor.key[1] == "model.fc.w"


def test_hyperparameters_that_differ_have_the_name_of_their_parameter() -> None:
    told = {
        "lossScaling_FLOAT": torch.tensor(8.0),
        "learningRate___specific___a.w": torch.tensor([0.5]),
        "learningRate___specific___b.w": torch.tensor([0.25]),
        "weightDecay___default___": torch.tensor(0.0),
    }
    assert numbers_of(told) == {
        "loss_scale": 8.0,
        "lr.a.w": 0.5,
        "lr.b.w": 0.25,
        "weightDecay": 0.0,
    }


def test_replicas_that_differ_in_one_bit_are_found_and_counted_once() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    tensor[1:] = tensor[0]
    tensor[2, 3] += 1e-6
    parts = [Part(0, tensor, 4 * replica, 4, replica) for replica in range(3)]
    table, differ = sketch(0, parts[:2], 1)
    assert differ == set()
    assert table.table.counts[0, 0] == 4
    assert sketch(0, parts, 1)[1] == {0}


def test_steps_that_wait_are_few_and_those_that_are_lost_are_told() -> None:
    jobs, telling = list[Callable[[], object]](), Telling()
    hello = Hello(
        protocol_min=PROTOCOL,
        protocol_max=PROTOCOL,
        run="x",
        launch="x",
        stream=uuid4().hex,
        rank=0,
        world_size=1,
        mesh=[MeshAxis(name="dp", size=1, coordinate=0)],
    )
    outbox = Outbox("tcp://127.0.0.1:9", hello)
    book = SiteBook(lambda _: True)
    delivery = Delivery(book, outbox, telling, jobs.append, dict[str, float])
    parcels = [Parcel(step=step, parts=()) for step in range(HELD + 3)]
    for parcel in parcels:
        delivery.send(parcel)
    assert [parcel.table is not None for parcel in parcels].index(True) == MOST
    assert len(jobs) == HELD
    assert (delivery.lost, telling.counters["steps_dropped"]) == (3, 3)
    [gap] = telling.take_lost()
    assert (gap.first_step, gap.last_step) == (HELD, HELD + 2)
    for job in jobs:
        job()
    assert outbox.statistics().pending_frames == HELD
    delivery.send(Parcel(step=99, parts=()))
    assert len(jobs) == HELD + 1
    outbox.close(timeout_s=0)
