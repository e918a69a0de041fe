"""A weight that two modules of an FSDP2 unit share, and a bias that one rank holds alone."""

from __future__ import annotations

from pathlib import Path

from rankscope.sketch import COUNTS

from .launching import run_of


def test_each_weight_of_a_unit_is_read_once_however_many_modules_have_it(tmp_path: Path) -> None:
    run = run_of(Path(__file__).with_name("tied_job.py"), 2, "tied", tmp_path)
    whole = {"tokens.weight": 60, "mix.0.weight": 36, "mix.1.bias": 6, "last.bias": 1}
    for step in range(3):
        for name, elements in whole.items():
            kinds = ("unsharded_weight", "weight", "weight_gradient")
            _, table = run.table(step, [f"{kind}:{name}" for kind in kinds])
            assert table.counts[:, COUNTS.index("count")].tolist() == 3 * [elements], (name, step)
    assert run.alerts().empty
    assert run.health()["hook_errors"]["total"].tolist() == [0, 0]
