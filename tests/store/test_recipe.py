"""`rankscope formats`: what it says, the table and the recipe that it writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.store import Record, RunWriter, SiteInfo, open_run, recipe

Make = Callable[..., Record]
SITES = [
    *(SiteInfo(kind="activation", name=f"blocks.{n}.up", dtype="float32", order=n) for n in (0, 9)),
    *(SiteInfo(kind="weight", name=f"blocks.{n}.up", dtype="float32", order=n) for n in (10, 11)),
]


@pytest.fixture
def run(path: Path, record: Make) -> Path:
    """Activations fit float8 alike, weights do not."""
    one = np.array([1, 1.5, 0.25], np.float32)
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.add_sites(SITES)
        many = {0: one, 1: one, 2: one * 2.0**-14, 3: one * 2.0**20}
        writer.commit([record(step, many) for step in range(3)], streams={})
    return path


def said(*arguments: object) -> str:
    result = CliRunner().invoke(cli, ["formats", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_it_says_what_fits_and_what_breaks_the_worst_first(run: Path) -> None:
    assert said(run, "--format", "e4m3", "--format", "bf16").splitlines() == [
        "Step 2",
        "  float8_e4m3fn: 2 fit, 2 break",
        "  bfloat16: 4 fit",
        "weight:blocks.11.up breaks in float8_e4m3fn: 100.000% overflow",
        "weight:blocks.10.up breaks in float8_e4m3fn: 100.000% become zero",
    ]
    assert said(run, "--format", "e4m3", "--scale", "site", "--steps", ":").splitlines() == [
        "The worst of steps 0 to 2",
        "  float8_e4m3fn: 4 fit",
    ]
    assert said(run, "--steps", "1") == said(run, "--step", 1)
    assert said(run, "--steps", "5:9") == (
        "Nothing was recorded in these steps. Recorded are 0 to 2.\n"
    )
    assert "no fit" not in said(run, "--kind", "weight", "--scale", "weight=14", "--step", 1)


def test_sites_without_a_finite_element_are_told_from_those_without_a_histogram(
    path: Path, record: Make, tmp_path: Path
) -> None:
    lost = np.full(3, np.nan, np.float32)
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.add_sites(SITES)
        writer.commit([record(0, {0: lost, 1: lost, 2: np.ones(3, np.float32)})], streams={})
    file = tmp_path / "recipe.json"

    assert said(path, "--step", 0, "--format", "e4m3", "--recipe", file).splitlines()[-2:] == [
        "2 sites have no finite element in these steps.",
        "1 site has no histogram in these steps.",
    ]
    assert said(path, "--format", "mxfp4_e2m1").splitlines()[-2:] == [
        "3 sites have no counted blocks in these steps.",
        "1 site has no histogram in these steps.",
    ]
    assert [one["reason"] for one in json.loads(file.read_text())["sites"]] == [
        "no finite element in these steps; it has NaN or infinity",
        "nothing overflows or becomes zero",
        "no histogram in these steps",
    ]


def test_without_a_step_it_is_the_last_of_nearly_all_sites(path: Path, record: Make) -> None:
    one = np.array([1, 1.5, 0.25], np.float32)
    weights = {2: one, 3: one}
    many = {0: one, 1: one} | weights
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.add_sites(SITES)
        records = [record(0, many), record(1, many), record(2, weights)]
        writer.commit([*records, record(3, many, final=True)], streams={})

    assert said(path, "--format", "bf16").splitlines() == ["Step 1", "  bfloat16: 4 fit"]
    assert said(path, "--format", "bf16", "--step", 3).startswith("Step 3")


def test_of_a_run_that_has_only_its_final_record_it_is_that(path: Path, record: Make) -> None:
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.add_sites(SITES)
        assert said(path) == "Nothing was recorded in these steps.\n"
        writer.commit([record(0, {2: np.ones(3, np.float32)}, final=True)], streams={})

    assert said(path).startswith("Step 0\n")


def test_the_table_is_written_as_csv(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"

    said(run, "--csv", file, "--format", "e4m3", "--scale", "kind")

    table = pd.read_csv(file, index_col=["site", "format"])
    assert len(table) == 4
    assert table.loc[("weight:blocks.10.up", "float8_e4m3fn"), "shift"] == -12
    assert {"overflow_low", "overflow_high", "underflow_step", "verdict"} <= set(table.columns)


def test_the_recipe_names_each_site_once_and_says_why(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "recipe.json"

    said(run, "--recipe", file, "--format", "e2m1", "--format", "e4m3", "--format", "e5m2")

    told = json.loads(file.read_text())
    assert {name: told[name] for name in ("schema", "run", "steps", "formats", "most")} == {
        "schema": "rankscope.recipe/1",
        "run": "gpt",
        "steps": [2, 2],
        "formats": ["float4_e2m1fn", "float8_e4m3fn", "float8_e5m2"],
        "most": {"overflow": 0.0, "underflow": 0.01},
    }
    both, small, large = told["sites"]
    assert both["pattern"] == r"activation:blocks\.[0-9]+\.up"
    assert (both["sites"], both["format"], both["scale"]) == (2, "float8_e4m3fn", 0)
    assert both["reason"] == "nothing overflows or becomes zero"
    assert (small["format"], small["scale"]) == ("float8_e5m2", 0)
    assert (large["pattern"], large["format"]) == (r"weight:blocks\.11\.up", "keep")
    assert large["reason"] == (
        "float4_e2m1fn breaks it, float8_e4m3fn breaks it, float8_e5m2 breaks it; it has float32"
    )
    for site in SITES:
        matching = [one for one in told["sites"] if re.fullmatch(one["pattern"], site.label)]
        assert len(matching) == 1


def test_a_scale_is_part_of_a_recipe(run: Path) -> None:
    table = open_run(run).format_table(formats=["e4m3"], scale="site")

    told = recipe(table, run="gpt")

    assert [(one["pattern"], one["format"], one["scale"]) for one in told["sites"]] == [
        (r"activation:blocks\.[0-9]+\.up", "float8_e4m3fn", 0),
        (r"weight:blocks\.10\.up", "float8_e4m3fn", 10),
        (r"weight:blocks\.11\.up", "float8_e4m3fn", -12),
    ]
    assert told["steps"] == [0, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", 1, "--steps", ":"], "Give --step or --steps, not both."),
        (["--steps", "x"], "--steps must be as 100, 100:200, 100: or :, got 'x'."),
        (["--steps", "5"], "Step 5 was not recorded; the nearest recorded is 2."),
        (["--steps", "2:1"], "`steps` must not end before it begins, got 2 to 1."),
        (["--scale", "big"], "--scale must be as 4, weight=4, site or kind, got big."),
        (["--format", "fp9"], "There is no number format 'fp9'"),
    ],
)
def test_what_it_cannot_do_it_says(run: Path, arguments: list[object], message: str) -> None:
    result = CliRunner().invoke(cli, ["formats", str(run), *map(str, arguments)])

    assert result.exit_code == 1
    assert message in result.output


@pytest.mark.parametrize("option", ["--csv", "--recipe"])
def test_a_file_that_cannot_be_written_is_an_error(run: Path, tmp_path: Path, option: str) -> None:
    file = tmp_path / "none" / "a"
    result = CliRunner().invoke(cli, ["formats", str(run), option, str(file)])

    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {file} cannot be written: there is no folder")
