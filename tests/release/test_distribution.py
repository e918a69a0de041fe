"""What is published: a wheel and an sdist that hold what they should, under one version."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from .installs import EXTRAS, install

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was made of that."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(published: Path) -> Path:
    [file] = published.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def test_the_wheel_holds_all_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    code = {name for name in names if name.endswith(".py")}
    listed = PROJECT["tool"]["setuptools"]["packages"]

    expected = {
        str(file.relative_to(ROOT))
        for package in listed
        for file in (ROOT / "/".join(package.split(".")[1:])).glob("*.py")
    }
    assert code == {f"rankscope/{name}" for name in expected}
    assert "rankscope/py.typed" in names
    assert any(name.endswith("/LICENSE") for name in names)


def test_the_wheel_holds_what_lies_beside_the_code(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())

    for room in ("agent", "config", "viewer", "examples"):
        needed = {
            f"rankscope/{file.relative_to(ROOT)}"
            for ending in ("css", "cu", "html", "ipynb", "js", "json", "svg", "toml")
            for file in (ROOT / room).rglob(f"*.{ending}")
        }
        assert needed <= shipped


def test_both_pass_the_checks_of_the_index(published: Path) -> None:
    files = sorted(published.iterdir())

    assert [file.name for file in files] == [
        f"rankscope-{VERSION}-py3-none-any.whl",
        f"rankscope-{VERSION}.tar.gz",
    ]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)


def test_the_sdist_holds_no_runs_and_no_builds(published: Path) -> None:
    with tarfile.open(published / f"rankscope-{VERSION}.tar.gz") as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}

    assert not tops & {".venv", "build", "dist", "rankscope-runs", "__pycache__"}


def test_the_version_comes_from_one_place(metadata: Message) -> None:
    assert metadata["Version"] == importlib.metadata.version("rankscope") == VERSION
    images = [
        *(ROOT / "deploy").rglob("*.yaml"),
        *(ROOT / "deploy").rglob("Dockerfile"),
        ROOT / "docs" / "deploy.md",
    ]
    told = [
        version
        for file in images
        for version in re.findall(
            r"rankscope-(?:agent|server)(?::|, newTag: )(\d[\w.]*)", file.read_text()
        )
    ]
    assert len(told) >= 6
    assert set(told) == {VERSION}
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_base_is_what_an_agent_needs(metadata: Message) -> None:
    base = {
        re.split(r"[^\w]", line)[0]
        for line in metadata.get_all("Requires-Dist", [])
        if "extra ==" not in line
    }

    assert base == {"click", "ml_dtypes", "msgspec", "numpy", "pyzmq"}


def test_each_extra_has_its_check() -> None:
    published = PROJECT["project"]["optional-dependencies"].keys() - {"dev", "docs"}

    assert published | {""} == EXTRAS.keys()


@pytest.mark.timeout(600)
def test_the_base_is_small_and_works_alone(wheel: Path, tmp_path: Path) -> None:
    assert install(wheel, "", tmp_path / "venv") < 25


def test_each_direct_dependency_is_in_the_list_of_licences() -> None:
    listed = (ROOT / "docs" / "licences.md").read_text().lower()
    extras = PROJECT["project"]["optional-dependencies"]
    direct = [*PROJECT["project"]["dependencies"]]
    for extra in EXTRAS.keys() - {"", "poptorch"}:
        direct += [line for line in extras[extra] if not line.startswith("rankscope")]

    for line in direct:
        name = re.split(r"[^\w.-]", line)[0].lower().replace("_", "-")
        assert f"| {name} " in listed.replace("_", "-"), name
