"""Settings of the rules, and rules of installed packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rankscope.rules import BUILT_IN, rule_book
from rankscope.sketch import SettingError


def book_of(folder: Path, text: str):
    file = folder / "rules.toml"
    file.write_text(text)
    return rule_book(file)


def test_without_a_file_all_rules_are_as_they_are() -> None:
    assert tuple(rule_book().rules) == tuple(BUILT_IN)
    assert not rule_book().is_muted("nonfinite", "activation:fc")


def test_a_file_changes_rules_turns_them_off_and_mutes_sites(tmp_path: Path) -> None:
    book = book_of(
        tmp_path,
        """
        [rules]
        mute = ["nonfinite activation:.*mask", "^replica-divergence"]

        [rules.underflow]
        threshold = 0.05
        severity = "notice"
        records = 5

        [rules.loss-spike]
        off = true
        """,
    )
    rules = {rule.name: rule for rule in book.rules}

    assert "loss-spike" not in rules
    assert len(rules) == len(BUILT_IN) - 1
    changed = rules["underflow"]
    assert (changed.threshold, changed.severity, changed.records) == (0.05, "notice", 5)
    assert changed.clear <= changed.threshold
    assert book.is_muted("nonfinite", "activation:attention.mask")
    assert book.is_muted("replica-divergence", "weight:fc")
    assert not book.is_muted("nonfinite", "activation:fc")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[rules.underflw]\noff = true", "there is no 'underflw'; did you mean underflow"),
        ("[rules.underflow]\nthreshhold = 1", "there is no 'threshhold'; did you mean threshold"),
        (
            "[rules.underflow]\nthreshold = 'a'",
            "threshold cannot be 'a': expected `float`, got `str`",
        ),
        ("[rules.underflow]\nrecords = 0", "records cannot be 0: expected `int` >= 1"),
        ("[rules.underflow]\nrecords = 1.5", "records cannot be 1.5: expected `int`"),
        ("[rules.underflow]\nclear = 9.0", "clear is at most the threshold, 0.25"),
        ("[rules.underflow]\nseverity = 'bad'", "severity is one of error, warning, notice, got"),
        ("[rules]\nunderflow = 3", "[rules.underflow] is a table of settings, got 3"),
        ("[rules.conservation]\nthreshold = 3", "conservation is exact; it can only be muted"),
        ("[rules]\nmute = ['(']", "mute holds no regular expression '('"),
        ("rules = [", "is no TOML"),
        ("sinks = 1", "there is no 'sinks'"),
        ("rules = 1", "[rules] is a table of settings, got 1"),
        ("[rules]\nmute = 'x'", "mute cannot be 'x': expected `array`"),
        ("[closer_look]\nsteps = 65", "steps cannot be 65: expected `int` <= 64"),
        ("bounds = 3", "bounds are tables, as [[bounds]], got 3"),
    ],
)
def test_what_cannot_be_is_told_with_what_can(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingError) as error:
        book_of(tmp_path, text)
    assert said in str(error.value)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as error:
        book_of(tmp_path, "[rules.underflow]\nrecords = 0\ncalm = 0\n[closer_look]\nring = 1")
    assert len(str(error.value).splitlines()) == 3


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot be read from .*No such file"):
        rule_book(tmp_path / "none.toml")


def install(folder: Path, module: str, target: str) -> None:
    """A package, as pip would put it there."""
    (folder / "mine.py").write_text(module)
    info = folder / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rankscope.rules]\nmine = {target}\n")


OWN = """
from rankscope.rules import Rule
def measure(seen, memory): return None
OWN = Rule(name="own", severity="notice", meaning="It is.", advice="Do.", threshold=1.0, clear=0.0,
           measure=measure)
"""


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


def test_rules_of_installed_packages_come_after_those_that_are_built_in(
    site_packages: Path,
) -> None:
    install(site_packages, OWN, "mine:OWN")
    rules = rule_book().rules

    assert [rule.name for rule in rules] == [*(rule.name for rule in BUILT_IN), "own"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("mine:OTHER", "Rules of mine:OTHER cannot be loaded: AttributeError"),
        ("mine:measure", "mine:measure holds <function measure"),
    ],
)
def test_a_package_without_rules_is_named(site_packages: Path, target: str, said: str) -> None:
    install(site_packages, OWN, target)
    with pytest.raises(SettingError, match=said):
        rule_book()
