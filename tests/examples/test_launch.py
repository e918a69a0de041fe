"""What is told of a job that failed, or of telemetry that was lost."""

from __future__ import annotations

from rankscope.examples.launch import find_complaint, find_warning

FAILED = """\
W1121 15:58:33.491000 8458 torch/distributed/run.py:803] Setting OMP_NUM_THREADS
[rank2]: Traceback (most recent call last):
[rank2]:   File "/examples/gpt.py", line 66, in main
[rank2]:     with observe(model) as scope:
[rank2]: rankscope.sketch.errors.SettingError: Runs cannot be written to /: read-only.
[rank0]: RuntimeError: Connection closed by peer
"""


def test_the_rank_that_failed_first_is_quoted() -> None:
    expected = "rankscope.sketch.errors.SettingError: Runs cannot be written to /: read-only."

    assert find_complaint(FAILED) == f"rank 2 says “{expected}”"


def test_an_exit_without_a_reason_has_no_complaint() -> None:
    assert find_complaint("exitcode: -9 (pid: 77)\nSignal 9 (SIGKILL) received by PID 77\n") == ""


def test_a_warning_of_the_agent_is_found() -> None:
    said = (
        "/gpt.py:56: RankscopeWarning: 3 of 9 frames of rank telemetry were not stored.\n  with x\n"
    )

    assert find_warning(said) == "3 of 9 frames of rank telemetry were not stored."
    assert find_warning(FAILED) == ""
