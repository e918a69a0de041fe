"""Who may look: what may be said, and how others are kept out of the file of a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.sketch import AddressError, SettingError
from rankscope.viewer.access import Access, read_token


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.3", "::1", "localhost"])
def test_who_is_on_this_machine_needs_no_token(address: str) -> None:
    assert Access(address=address).token is None


@pytest.mark.parametrize("address", ["0.0.0.0", "", "::", "10.1.2.3", "gpu-7"])
def test_an_address_that_others_reach_wants_a_token_or_many_words(address: str) -> None:
    with pytest.raises(AddressError, match=r"--token-file FILE makes one.*or say `--insecure`"):
        Access(address=address)

    assert Access(address=address, insecure=True).token is None
    assert "a secret" not in repr(Access(address=address, token="a secret"))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"prefix": "rankscope"}, r"A prefix is a path such as /rankscope.*got 'rankscope'"),
        ({"prefix": "/rankscope/"}, "without a slash at its end"),
        ({"prefix": "/(a+)+"}, "A prefix is a path"),
        ({"origins": ("https://lab.org",)}, "without https:// and path, got 'https://lab.org'"),
        ({"origins": ("*",)}, "An origin is a host"),
        ({"token": "letmein"}, "8 characters or more, got 7"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        Access(**settings)


def test_pages_of_this_machine_and_of_the_named_hosts_are_answered() -> None:
    access = Access(origins=("lab.org", "gpu-7:8443"))

    assert access.hosts(5006) == ["127.0.0.1:5006", "gpu-7:8443", "lab.org:80", "localhost:5006"]
    assert access.hosts(5006) == Access(address="::", **_same(access)).hosts(5006)
    assert Access(address="fe80::1", insecure=True).host == "[fe80::1]"
    assert "fe80" not in str(Access(address="fe80::1", insecure=True).hosts(1))


def _same(access: Access) -> dict:
    return {"origins": access.origins, "insecure": True}


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "view.token"

    token, made = read_token(file)

    assert made
    assert len(token) >= 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_token(file) == (token, False)


def test_a_token_that_others_can_read_is_none(tmp_path: Path) -> None:
    file = tmp_path / "view.token"
    file.write_text("correct horse\n")
    file.chmod(0o644)
    with pytest.raises(SettingError, match=r"mode is 0644.*chmod 600"):
        read_token(file)

    file.chmod(0o600)

    assert read_token(file) == ("correct horse", False)


def test_a_file_of_a_token_that_cannot_be_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read or made: No such file"):
        read_token(tmp_path / "nowhere" / "view.token")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(SettingError, match="no text in UTF-8"):
        read_token(tmp_path / "binary")
