"""Under tensor parallelism one rank is wrong: the first incident has its tensor, ranks and step."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.rules import why

from .launching import run_of

JOB = Path(__file__).with_name("apart_job.py")
FIRST = 0, 1
"""Where a rank is late with the first step, what needs all of it is judged in the next."""


@pytest.mark.parametrize(
    ("arguments", "rule", "site", "ranks", "steps"),
    [
        ("large", "poor-initialisation", "2.up.weight", (2,), FIRST),
        ("large fsdp", "poor-initialisation", "2.up.weight", (2,), FIRST),
        ("norm", "replica-divergence", "2.norm.weight", (2,), (0,)),
        ("norm fsdp", "replica-divergence", "2.norm.weight", (2, 3), (0,)),  # of two none is odd
        ("nan", "nonfinite", "2.down.weight", (2,), (3,)),
        ("copy", "replica-divergence", "2.norm.weight", (2,), (3,)),
    ],
)
def test_the_rank_whose_part_or_copy_is_wrong_is_named(
    tmp_path: Path,
    arguments: str,
    rule: str,
    site: str,
    ranks: tuple[int, ...],
    steps: tuple[int, ...],
) -> None:
    run = run_of(JOB, 4, "apart", tmp_path, *arguments.split())

    incident = run.incidents()[0]
    found = incident.cause.rule, incident.cause.site, incident.ranks
    assert found == (rule, f"weight:{site}", ranks)
    assert incident.first_step in steps
    assert "conservation" not in {one.rule for one in incident.alerts}
    told = why(run)
    spoilt = told.findings[0].stored.moments[-1].nonfinite
    assert spoilt is not None
    assert (spoilt > 0) == (arguments in ("nan", "copy"))
    alone = "each of 4 holds a part of the model that no other has."
    if "fsdp" in arguments:
        alone = "2 of 4 hold the same part of the model, and of 2 none has a majority to be unlike."
    [said] = [one for one in told.not_observed if "compares" in one]
    assert said.startswith(f"No rule compares the ranks: {alone}")
