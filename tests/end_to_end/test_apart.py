"""Under tensor parallelism one rank is wrong: the first incident has its tensor, ranks and step."""

from __future__ import annotations

from pathlib import Path

import pytest

from .launching import run_of

JOB = Path(__file__).with_name("apart_job.py")


@pytest.mark.parametrize(
    ("arguments", "rule", "site", "ranks", "step"),
    [
        ("large", "poor-initialisation", "2.up.weight", (2,), 0),
        ("large fsdp", "poor-initialisation", "2.up.weight", (2,), 0),
        ("norm", "replica-divergence", "2.norm.weight", (2,), 0),
        ("norm fsdp", "replica-divergence", "2.norm.weight", (2, 3), 0),  # of two none is odd
        ("nan", "nonfinite", "2.down.weight", (2,), 3),
    ],
)
def test_the_rank_whose_part_or_copy_is_wrong_is_named(
    tmp_path: Path, arguments: str, rule: str, site: str, ranks: tuple[int, ...], step: int
) -> None:
    run = run_of(JOB, 4, "apart", tmp_path, *arguments.split())

    incident = run.incidents()[0]
    found = incident.cause.rule, incident.cause.site, incident.ranks, incident.first_step
    assert found == (rule, f"weight:{site}", ranks, step)
    assert "conservation" not in {one.rule for one in incident.alerts}
