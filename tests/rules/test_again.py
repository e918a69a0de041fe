"""Stored runs judged again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.rules import RuleBook, judge_again
from rankscope.store import Record, RunWriter, SiteInfo, open_run

from .conftest import Job

HALF = SiteInfo(kind="activation_gradient", name="fc", dtype="float16")


def test_each_attempt_is_judged_by_the_sites_that_it_had(
    tmp_path: Path, normal: Callable[..., np.ndarray]
) -> None:
    path = tmp_path / "gpt"
    tiny = normal() * 2.0**-16
    with RunWriter.open(path, run="gpt") as writer:
        for attempt, dtype in enumerate(("float16", "float32")):
            assert writer.catalog.attempt_of(f"launch {attempt}") == attempt
            writer.catalog.set_attempt(attempt, 1, {}, ())
            site = replace(HALF, dtype=dtype, attempt=attempt)
            writer.catalog.add_sites([site])
            job = Job([replace(site, dtype="float16")])
            job.records(4, tiny)
            writer.commit([_of(one, attempt) for one in job.kept], streams={})
        writer.finish()

    run = open_run(path)
    assert [run.site_infos_of(attempt)[0].dtype for attempt in (0, 1)] == ["float16", "float32"]
    [one], _ = judge_again(run, RuleBook())
    assert (one.cause.rule, one.attempt) == ("underflow", 0)
    told = CliRunner().invoke(cli, ["rules", "test", str(path)]).output
    assert told.startswith("steps 0 to …: warning underflow (1 alert)")
    assert "1 incident of 1 alert; " in told


def _of(record: Record, attempt: int) -> Record:
    return replace(record, index=4 * attempt + record.index, attempt=attempt)
