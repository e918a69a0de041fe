"""Quantities from ranks' series: merged over real sockets, stored, and asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.agent import Outbox
from rankscope.rules import judge_again, rule_book
from rankscope.sketch import ProtocolError, SettingError, SketchTable, Weighted
from rankscope.store import open_run
from rankscope.wire import (
    Frame,
    MeshAxis,
    Reading,
    Series,
    decode,
    encode,
    make_schema,
    open_frame,
    pack_frame,
)

from .serving import QUICK, SITES, close_all, hello, outbox, serving
from .serving import send as send_sketches

FEATURES = 5
SPLIT = Series(
    of="fc",
    form="covariance",
    size=FEATURES,
    readings=[
        Reading(quantity="input_cov_max_eig", statistic="largest"),
        Reading(quantity="input_cov_spectrum", statistic="spectrum"),
    ],
    axes={"dp": "merge", "tp": "own"},
)
DEAD = Series(
    of="act",
    form="values",
    size=3,
    merge="maximum",
    readings=[Reading(quantity="dead_neurons", statistic="share_at_most")],
    axes={"dp": "merge"},
)


def covariance(x: np.ndarray) -> Weighted:
    mean = x.mean(axis=0)
    upper = np.triu_indices(x.shape[1])
    return Weighted(len(x), np.concatenate([mean, ((x - mean).T @ (x - mean))[upper]]))


def eigenvalues(x: np.ndarray) -> np.ndarray:
    return np.linalg.eigvalsh(np.cov(x.T))[::-1]


def rank(address: str, number: int, dp: tuple[int, int], tp: tuple[int, int]) -> Outbox:
    mesh = [
        MeshAxis(name=name, size=size, coordinate=at)
        for name, (size, at) in {"dp": dp, "tp": tp}.items()
    ]
    box = Outbox(address, hello(number, dp[0] * tp[0], mesh=mesh))
    box.set_sites(SITES, (), [SPLIT, DEAD])
    return box


def send(box: Outbox, step: int, series: Mapping[int, Weighted]) -> None:
    sites, table = np.zeros(0, np.uint32), SketchTable.empty(0)
    frame = Frame(step=step, time_ns=time.time_ns(), sites=sites, table=table, series=dict(series))
    box.send(pack_frame(frame))
    box.poll(time.monotonic())


def samples(number: int, step: int) -> np.ndarray:
    return np.random.default_rng([number, step]).normal(3, 1 + number, (4 + number, FEATURES))


def values(frame: pd.DataFrame, *by: str, of: str = "value") -> dict[tuple[object, ...], float]:
    """A column by the values in others."""
    keys = zip(*(frame[name].tolist() for name in by), strict=True)
    return dict(zip(keys, frame[of].tolist(), strict=True))


@pytest.fixture
def four_ranks(tmp_path: Path) -> Path:
    """Two data-parallel pairs of two tensor-parallel ranks: steps 0 and 1, and 2 with a NaN."""
    with serving(tmp_path) as service:
        boxes = [rank(service.address, one, (2, one // 2), (2, one % 2)) for one in range(4)]
        for step in range(3):
            for one, box in enumerate(boxes):
                x = samples(one, step)
                if (step, one) == (2, 3):
                    x[0, 0] = np.nan
                dead = Weighted(1, np.array([-1.0, 2.0, -1.0 if one < 2 else 1.0]))
                send(box, step, {0: covariance(x), 1: dead} if step != 1 else {0: covariance(x)})
        assert all(close_all(boxes))
    return tmp_path / "demo"


def test_covariances_merge_over_samples_and_stay_apart_over_features(four_ranks: Path) -> None:
    run = open_run(four_ranks)
    found = run.quantity("input_cov_spectrum", of="fc", steps=(0, 1))
    largest = values(run.quantity("input_cov_max_eig"), "step", "part")

    for step in (0, 1):
        for part, ranks in {"tp=0": (0, 2), "tp=1": (1, 3)}.items():
            expected = eigenvalues(np.concatenate([samples(one, step) for one in ranks]))
            own = found[(found["step"] == step) & (found["part"] == part)]
            assert own["index"].tolist() == list(range(FEATURES))
            np.testing.assert_allclose(own["value"], expected, rtol=1e-9)
            assert largest[step, part] == pytest.approx(expected[0])


def test_a_nan_is_told_and_spoils_its_own_part_alone(four_ranks: Path) -> None:
    run = open_run(four_ranks)
    found = values(run.quantity("input_cov_max_eig", steps=(2, 2)), "part")
    events = run.events()
    told = events[events["kind"] == "quantity-unknown"]["text"].tolist()

    assert np.isnan(found["tp=1",])
    assert found["tp=0",] > 0
    expected = "input_cov_max_eig:fc@tp=1 is not known: it has values that are not finite."
    assert expected in told
    assert not any("tp=0" in one for one in told)


OF_ZERO, BAD = "one of its two vectors is zero", "it has values that are not finite"


def reasons(folder: Path, form: str, size: int, part: Weighted, *statistics: str) -> dict[str, str]:
    """What a run tells of a quantity for each of these statistics, all read off one array."""
    readings = [Reading(quantity=one, statistic=cast("Any", one)) for one in statistics]
    series = Series(of="fc", form=cast("Any", form), size=size, readings=readings, axes={})
    with serving(folder) as service:
        box = Outbox(service.address, hello())
        box.set_sites(SITES, (), [series])
        send(box, 0, {0: part})
        assert close_all([box]) == [True]
    run = open_run(folder / "demo")
    events = run.events()
    texts = events.loc[events["kind"] == "quantity-unknown", "text"].tolist()
    told = dict(text.removesuffix(".").split(":fc is not known: ") for text in texts)
    unknown = {one for one in statistics if np.isnan(run.quantity(one)["value"].to_numpy()).any()}
    assert told.keys() == unknown
    return told


@pytest.mark.parametrize(
    ("form", "part", "why"),
    [
        ("covariance", covariance(np.ones((4, 3))), "all samples are alike"),
        ("gram", Weighted(4, np.zeros(6)), "all elements are zero"),
    ],
)
def test_of_a_spectrum_that_is_zero_those_that_are_not_known_say_why(
    tmp_path: Path, form: str, part: Weighted, why: str
) -> None:
    undefined = "stable_rank", "effective_rank", "condition", "condition20"
    told = reasons(tmp_path, form, 3, part, "largest", "trace", "spectrum", *undefined)

    assert told == dict.fromkeys(undefined, f"its spectrum is zero: {why}")


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1.0, 4.0, 4.0], {}),
        ([0.0, 0.0, 4.0], {"cosine": OF_ZERO, "ratio": "what it is divided by is zero"}),
        ([0.0, 2.0, 0.0], {"cosine": OF_ZERO}),
        ([3.0, 0.0, 1.0], {}),  # the ratio is infinite, and told so
        ([np.nan, 1.0, 1.0], dict.fromkeys(("values", "cosine", "ratio", "share_at_most"), BAD)),
        ([1.0, 1.0, np.nan], dict.fromkeys(("values", "cosine", "share_at_most"), BAD)),
    ],
)
def test_values_of_which_nothing_can_be_said_tell_why(
    tmp_path: Path, numbers: list[float], expected: dict[str, str]
) -> None:
    statistics = "values", "cosine", "ratio", "share_at_most"

    assert reasons(tmp_path, "values", 3, Weighted(1, np.array(numbers)), *statistics) == expected


def test_arrays_of_other_lengths_on_ranks_are_told_and_stop_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        boxes = [rank(service.address, one, (2, one), (1, 0)) for one in range(2)]
        boxes[1].set_sites(SITES, (), [SPLIT, msgspec.structs.replace(DEAD, size=4)])
        for one, box in enumerate(boxes):
            send(box, 0, {0: covariance(samples(one, 0)), 1: Weighted(1, np.ones(3 + one))})
        assert all(close_all(boxes))

    run = open_run(tmp_path / "demo")
    assert not np.isnan(run.quantity("input_cov_max_eig")["value"].to_numpy()).any()
    expected = "dead_neurons:act is not known: its arrays have 3 and 4 numbers on ranks."
    assert expected in run.events()["text"].tolist()


def test_what_was_not_measured_is_not_there(four_ranks: Path) -> None:
    run = open_run(four_ranks)
    dead = run.quantity("dead_neurons")

    assert dead["step"].tolist() == [0, 2]
    assert dead["value"].tolist() == pytest.approx([1 / 3, 1 / 3])
    assert dead["part"].unique().tolist() == [""]

    listed = values(run.quantities(), "quantity", "part", of="numbers")
    assert listed["input_cov_spectrum", "tp=1"] == FEATURES
    assert listed["dead_neurons", ""] == 1
    with pytest.raises(SettingError, match="no quantity 'dead_neuron'; did you mean dead_neurons"):
        run.quantity("dead_neuron")
    known = r"it has dead_neurons, input_cov_max_eig, .*\. Others are derived on request, as by "
    with pytest.raises(SettingError, match=rf"{known}observe\(…, quantities=\{{'Linear'"):
        run.quantity("rank_me")
    with pytest.raises(SettingError, match=r"No dead_neurons was derived of 'x'; .* of act\."):
        run.quantity("dead_neurons", of="x")


def test_the_command_lists_and_shows_them(four_ranks: Path, tmp_path: Path) -> None:
    run = str(four_ranks)
    listed = CliRunner().invoke(cli, ["quantities", run])
    shown = CliRunner().invoke(
        cli,
        ["quantities", run, "input_cov_max_eig", "--steps", "0:1", "--csv", f"{tmp_path}/x.csv"],
    )
    nothing = CliRunner().invoke(cli, ["quantities", run, "--step", "0"])
    nowhere = CliRunner().invoke(
        cli, ["quantities", run, "input_cov_max_eig", "--csv", f"{tmp_path}/none/x.csv"]
    )

    assert "input_cov_spectrum: of fc" in listed.output
    assert "dead_neurons: of act" in listed.output
    lines = [line.split() for line in shown.output.splitlines()]
    assert [line[:3] for line in lines[1:]] == [["fc", "tp=0", "2"], ["fc", "tp=1", "2"]]
    assert len(pd.read_csv(tmp_path / "x.csv")) == 4
    dead = [
        CliRunner().invoke(cli, ["quantities", run, "dead_neurons", *steps]).output
        for steps in (["--steps", "1"], ["--step", "1"], ["--steps", "1:1"])
    ]
    assert (
        dead[0]
        == dead[1]
        == ("dead_neurons was not measured in step 1; the nearest recorded are 0 and 2.\n")
    )
    assert dead[2] == "dead_neurons was not measured in these steps; it was in 0 to 2.\n"
    assert nowhere.exit_code == 1
    assert "none/x.csv cannot be written: there is no folder" in nowhere.output
    assert nothing.exit_code == 2
    assert "name it after the run" in nothing.output


def test_sketches_tell_norms(four_ranks: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "other") as service:
        box = outbox(service.address)
        send_sketches(box, range(3), value=2.0)
        assert close_all([box]) == [True]
    run = open_run(tmp_path / "other" / "demo")

    assert run.quantity("output_norm", of="fc")["value"].tolist() == pytest.approx([32**0.5] * 3)
    assert "weight_norm" in run.quantities("fc")["quantity"].tolist()
    with pytest.raises(SettingError, match=r"no weight of .nosuch., .*; there are fc\."):
        run.quantity("weight_norm", of="nosuch")
    with pytest.raises(SettingError, match="no weight_gradient of any module"):
        run.quantity("weight_grad_norm")


def test_numbers_come_in_the_order_of_steps_whatever_attempt_they_are_of(tmp_path: Path) -> None:
    for launch, steps in (("first", range(5)), ("second", range(1, 3))):
        with serving(tmp_path) as service:
            box = outbox(service.address, launch=launch, stream=launch)
            send_sketches(box, steps, value=2.0)
            assert close_all([box]) == [True]
    found = open_run(tmp_path / "demo").quantity("output_norm", of="fc")

    assert found["step"].tolist() == [0, 1, 2, 3, 4]
    assert found["attempt"].tolist() == [0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"form": "covariance", "size": 4097}, "<= 4096"),
        ({"form": "gram", "readings": [Reading(quantity="a")]}, "no values of gram"),
        ({"readings": [Reading(quantity="a", statistic="largest")]}, "no largest of values"),
        ({"readings": [Reading(quantity="a", statistic="cosine")], "size": 2}, "of 2 values"),
        ({"readings": [Reading(quantity="a"), Reading(quantity="a")]}, "names a of fc twice"),
    ],
)
def test_series_that_make_no_sense_are_refused(changes: dict[str, object], words: str) -> None:
    plain = Series(of="fc", form="values", size=3, readings=[Reading(quantity="a")])
    series: Sequence[Series] = [msgspec.structs.replace(plain, **changes)]
    with pytest.raises(ProtocolError, match=words):
        decode(encode(make_schema(SITES, (), series)), "agent")


def test_a_frame_with_too_few_numbers_is_refused() -> None:
    schema = decode(encode(make_schema(SITES, (), [SPLIT])), "agent")
    sites, table = np.zeros(0, np.uint32), SketchTable.empty(0)
    frame = Frame(
        step=0, time_ns=1, sites=sites, table=table, series={0: Weighted(3.0, np.zeros(4))}
    )
    with pytest.raises(ProtocolError, match="takes 160 bytes"):
        open_frame(*pack_frame(frame, schema.hash), schema)


def test_bounds_of_quantities_are_alerts_live_and_again(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        """
        [[bounds]]
        quantity = "dead_neurons"
        of = "^act$"
        above = 0.5
        severity = "error"
        records = 2

        [[bounds]]
        quantity = "input_cov_max_eig"
        below = 1e9
        """
    )
    book = rule_book(rules)
    settings = replace(QUICK, joiner=replace(QUICK.joiner, rules=book))
    with serving(tmp_path, settings) as service:
        box = rank(service.address, 0, (1, 0), (1, 0))
        for step, maxima in enumerate([[1, -1, -1], [1, -1, -1], [1, -1, -1], [1, 1, -1]]):
            dead = Weighted(1, np.array(maxima, np.float64))
            send(box, step, {0: covariance(samples(0, step)), 1: dead})
        assert close_all([box]) == [True]

    run = open_run(tmp_path / "demo")
    alerts = run.alerts().set_index("rule")
    low = alerts.loc["input_cov_max_eig below"]
    dead = alerts.loc["dead_neurons above"]
    assert (dead["first_step"], dead["last_step"], dead["severity"]) == (0, 2, "error")
    assert (dead["value"], dead["threshold"]) == (pytest.approx(2 / 3), 0.5)
    assert dead["text"] == "dead_neurons of act is 0.667, above 0.5."
    assert low["first_step"] == 0
    assert 0 < low["value"] < low["threshold"] == 1e9

    again, judged = judge_again(run, book)
    found = {one.rule: one for incident in again for one in incident.alerts}
    assert found.keys() == {"dead_neurons above", "input_cov_max_eig below"}
    assert found["dead_neurons above"].last_step == 2
    assert judged["dead_neurons above"] == 4


def test_bounds_of_what_sketches_tell_are_alerts_live_and_again(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[bounds]]\nquantity = 'output_norm'\nabove = 6\n")
    book = rule_book(rules)
    settings = replace(QUICK, joiner=replace(QUICK.joiner, rules=book))
    with serving(tmp_path, settings) as service:
        box = outbox(service.address)
        for step, value in enumerate([1.0, 4.0, 4.0, 1.0]):
            send_sketches(box, [step], value=value)
        assert close_all([box]) == [True]

    run = open_run(tmp_path / "demo")
    alert = run.alerts().set_index("rule").loc["output_norm above"]
    assert (alert["site"], alert["first_step"], alert["last_step"]) == ("activation:fc", 1, 2)
    assert alert["text"] == "output_norm of fc is 11.3, above 6."
    assert alert["value"] == pytest.approx(128**0.5)

    again, judged = judge_again(run, book)
    [found] = [one for incident in again for one in incident.alerts if "norm" in one.rule]
    assert (found.site, found.first_step, found.last_step) == ("activation:fc", 1, 2)
    assert judged["output_norm above"] == 4


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("quantity = 'rank_me'", "give one of above and below"),
        ("quantity = 'rank_me'\nabove = 'x'", "above cannot be 'x': expected `float`"),
        (
            "quantity = 'rank_me'\nabove = 1\nrecords = 0",
            "records cannot be 0: expected `int` >= 1",
        ),
        ("quantity = 'rank_me'\nabove = 1\nof = '('", r"of holds no regular expression '\('"),
        (
            "quantity = 'update_ratio'\nabove = 1",
            r"bounds\]\] 1: update_ratio cannot have a bound\. The rule update-ratio watches it\.",
        ),
        ("quantity = 'unchanged_share'\nabove = 1", "The rule lost-updates watches it"),
        ("quantity = 'trust_ratio'\nbelow = 1", "No rule watches it; update-ratio tells of"),
        ("quantity = 'noise_scale'\nabove = 1", r"No rule watches it; ask run\.noise_scale\(\)"),
        *(
            (f"quantity = '{name}'\nabove = 1", rf"as dead_neurons\(threshold=-2\), got '{known}")
            for name, known in {
                "rank_me(limit=5": r"rank_me\(limit=5'",
                "rank_me)": r"rank_me\)'",
                "dead_neurons(-2)": r"dead_neurons\(-2\)'",
                "(rank_me)": r"\(rank_me\)'",
                "": "'",
            }.items()
        ),
        ("quantiti = 'rank_me'", "there is no 'quantiti'; did you mean quantity"),
    ],
)
def test_bounds_that_cannot_be_are_refused(tmp_path: Path, said: str, words: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(f"[[bounds]]\n{said}\n")
    with pytest.raises(SettingError, match=words):
        rule_book(file)


@pytest.mark.parametrize("name", ["mine", "my-own.2", "rank_me(limit=5)", "mine(a='x', b=(1, 2))"])
def test_a_quantity_that_nobody_knows_yet_may_have_a_bound(tmp_path: Path, name: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(f'[[bounds]]\nquantity = "{name}"\nabove = 1\n')

    assert rule_book(file).bounds[-1].quantity == name


def test_a_bound_is_of_a_quantity_however_its_options_are_written(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text("[[bounds]]\nquantity = \" mine( b =1e-3, a = 'x' ) \"\nabove = 1\n")

    assert rule_book(file).bounds[-1].quantity == "mine(a='x', b=0.001)"
