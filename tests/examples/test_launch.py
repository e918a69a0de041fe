"""What is told of a job that failed, or of telemetry that was lost."""

from __future__ import annotations

from rankscope.examples.launch import find_complaint, find_warning

FAILED = """\
W1121 15:58:33.491000 8458 torch/distributed/run.py:803] Setting OMP_NUM_THREADS
[rank0]: RuntimeError: Connection closed by peer
[rank2]: Traceback (most recent call last):
[rank2]:   File "/examples/gpt.py", line 66, in main
[rank2]:     with observe(model) as scope:
[rank2]: rankscope.sketch.errors.SettingError: Runs cannot be written to /: read-only.
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 15742)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 2 (local_rank: 2)
  exitcode  : 1 (pid: 15741)
"""


def test_the_rank_that_failed_first_is_quoted() -> None:
    expected = "rankscope.sketch.errors.SettingError: Runs cannot be written to /: read-only."

    assert find_complaint(FAILED) == f"rank 2 says “{expected}”"


def test_a_rank_that_could_not_say_why_is_named() -> None:
    silent = FAILED.replace("[rank2]", "[rank1]")
    killed = silent.replace("exitcode  : 1 (pid: 15741)", "exitcode  : -9 (pid: 15741)  (SIGKILL)")

    assert find_complaint(silent) == "rank 2 ended with exit code 1"
    assert find_complaint(killed) == "rank 2 was ended by signal 9"


def test_a_job_that_never_had_ranks_has_no_complaint() -> None:
    assert find_complaint("run.py: error: unrecognized arguments: --nonsense\n") == ""


def test_a_warning_of_the_agent_is_found() -> None:
    said = (
        "/gpt.py:56: RankscopeWarning: 3 of 9 frames of rank telemetry were not stored.\n  with x\n"
    )

    assert find_warning(said) == "3 of 9 frames of rank telemetry were not stored."
    assert find_warning(FAILED) == ""
