"""What lies in `deploy/` is read by the tools that would read it, and says only what exists."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from rankscope.__main__ import cli

from ..required import do_without

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SERVICES = sorted((DEPLOY / "systemd").glob("*.service"))
OPERATORS = {"PodMonitor", "Kustomization"}
"""Kinds that Kubernetes itself does not know."""


def program(name: str) -> str:
    """Where it is; without it the test skips, or fails if it is required."""
    found = shutil.which(name, path=os.pathsep.join([str(BIN), os.environ["PATH"]]))
    if found is None:
        do_without(f"{name} was not found", "RANKSCOPE_REQUIRE_DEPLOY_TOOLS")
    return found


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def commands() -> list[list[str]]:
    """The arguments of every call of `rankscope` in a file of `deploy/`."""
    found: list[list[str]] = []
    for path in MANIFESTS:
        for document in documents(path):
            pod = document.get("spec", {}).get("template", {}).get("spec", {})
            found += [container["args"] for container in pod.get("containers", [])]
    services = documents(DEPLOY / "docker" / "compose.yaml")[0]["services"]
    found += [services[name]["command"] for name in ("collector", "viewer")]
    for path in [*SERVICES, DEPLOY / "slurm" / "observe.sbatch"]:
        text = path.read_text().replace("\\\n", " ")
        for line in re.findall(r"^[^#\n]*?\brankscope ((?:[a-z]+ ).*)$", text, re.MULTILINE):
            found.append(shlex.split(line.split(" &")[0].split(" ||")[0]))
    return found


@pytest.mark.parametrize("arguments", commands(), ids=lambda said: " ".join(said)[:40])
def test_every_option_exists(arguments: list[str]) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, arguments[0])
    assert command is not None
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    own = arguments[1 : arguments.index("--") if "--" in arguments else None]
    said = {one.split("=")[0] for one in own if one.startswith("--")}
    assert said <= known


def test_every_file_that_calls_rankscope_is_looked_at() -> None:
    assert sorted(one[0] for one in commands()) == [
        *("collect", "collect", "collect", "collect", "keygen"),
        *("relay", "relay", "relay", "run", "view", "view", "view"),
    ]


def test_every_variable_exists() -> None:
    read = {
        name
        for path in ROOT.rglob("*.py")
        if not {".venv", "tests", "build"} & set(path.relative_to(ROOT).parts)
        for name in re.findall(r"RANKSCOPE_[A-Z]+(?:_[A-Z]+)*", path.read_text())
    }
    for path in (one for one in DEPLOY.rglob("*") if one.is_file()):
        assert set(re.findall(r"RANKSCOPE_[A-Z]+(?:_[A-Z]+)*", path.read_text())) <= read, path


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_fit_the_schemas_of_kubernetes(path: Path) -> None:
    for document in documents(path):
        if document["kind"] not in OPERATORS:
            kubernetes_validate.validate(document, "1.33", strict=True)


def test_the_pod_monitor_fits_the_operators_schema() -> None:
    # Takes seconds, which only this test needs.
    from cloudcoil.models.prometheus_operator.v1 import PodMonitor

    document = documents(DEPLOY / "kubernetes" / "podmonitor.yaml")[0]
    read = PodMonitor.model_validate(document)
    # A field that the schema does not know is not read.
    assert read.model_dump(by_alias=True, exclude_none=True, mode="json") == document


def compose(environment: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What Docker Compose makes of our file and such an `.env`."""
    (folder / ".env").write_text(environment)
    return subprocess.run(
        [
            *(program("docker-compose"), "--file", DEPLOY / "docker" / "compose.yaml"),
            *("--env-file", folder / ".env", "config", "--format", "json"),
        ],
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


EXAMPLE = (DEPLOY / "docker" / "example.env").read_text()


def test_docker_compose_takes_the_file_with_the_variables_of_the_example(tmp_path: Path) -> None:
    done = compose(re.sub(r"=$", "=chosen", EXAMPLE, flags=re.MULTILINE), tmp_path)
    assert done.stderr == ""
    services = json.loads(done.stdout)["services"]
    assert sorted(services) == ["bucket", "collector", "s3", "viewer"]
    assert services["collector"]["build"]["context"] == str(ROOT)
    assert services["viewer"]["environment"]["RANKSCOPE_VIEW_TOKEN"] == "chosen"


@pytest.mark.parametrize("name", ["S3_PASSWORD", "VIEWER_TOKEN"])
def test_docker_compose_refuses_what_was_left_empty(name: str, tmp_path: Path) -> None:
    done = compose(re.sub(rf"^(?!{name})(\w+)=$", r"\1=chosen", EXAMPLE, flags=re.M), tmp_path)
    assert f"required variable {name} is missing a value: is in .env" in done.stderr


def test_ports_volumes_and_secrets_that_are_named_are_there() -> None:
    made = documents(DEPLOY / "kubernetes" / "kustomization.yaml")[0]
    secrets = {
        one["name"]: {file.split("=")[0] for file in one["files"]}
        for one in made["secretGenerator"]
    }
    health = set[str]()
    for document in (one for path in MANIFESTS for one in documents(path)):
        pod = document["spec"]["template"]["spec"] if "template" in document.get("spec", {}) else {}
        claims = document.get("spec", {}).get("volumeClaimTemplates", [])
        volumes = {one["name"] for one in pod.get("volumes", [])}
        volumes |= {one["metadata"]["name"] for one in claims}
        for container in pod.get("containers", []):
            ports = {one["name"] for one in container["ports"]}
            health |= ports
            for probe in ("readinessProbe", "livenessProbe"):
                asked = container[probe]
                assert (asked.get("httpGet") or asked["tcpSocket"])["port"] in ports
            assert {one["name"] for one in container["volumeMounts"]} == volumes
        for volume in pod.get("volumes", []):
            if "secret" in volume:
                keys = {item["key"] for item in volume["secret"]["items"]}
                assert keys == secrets[volume["secret"]["secretName"]]
    monitor = documents(DEPLOY / "kubernetes" / "podmonitor.yaml")[0]
    assert {one["port"] for one in monitor["spec"]["podMetricsEndpoints"]} <= health


def test_kustomize_builds_it_with_the_keys_that_keygen_makes(tmp_path: Path) -> None:
    folder = tmp_path / "kubernetes"
    shutil.copytree(DEPLOY / "kubernetes", folder)
    subprocess.run([BIN / "rankscope", "keygen", "keys", "--relay", "node"], cwd=folder, check=True)
    (folder / "keys" / "view-token").write_text("a token of mine")
    built = subprocess.run(
        [program("kubectl"), "kustomize", folder], capture_output=True, text=True, check=True
    ).stdout
    kinds: list[str] = []
    for document in yaml.safe_load_all(built):
        kinds.append(document["kind"])
        if document["kind"] not in OPERATORS:
            kubernetes_validate.validate(document, "1.33", strict=True)
    assert kinds.count("Secret") == 4
    assert built.count("image: rankscope-server:0.1.0") == 2


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_systemd_takes_the_units(path: Path, tmp_path: Path) -> None:
    unit = tmp_path / path.name
    unit.write_text(path.read_text().replace("/opt/rankscope/bin/rankscope", "/bin/true"))
    done = subprocess.run(
        [program("systemd-analyze"), "verify", unit], capture_output=True, text=True, check=False
    )
    assert path.name not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


def test_hadolint_and_shellcheck_find_nothing() -> None:
    for command in (
        [BIN / "hadolint", DEPLOY / "docker" / "Dockerfile"],
        [BIN / "shellcheck", DEPLOY / "slurm" / "observe.sbatch"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_images_are_built_of_all_that_is_shipped_and_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]
    rooms = {name.split(".")[1] for name in packages if "." in name}
    taken = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    assert rooms | {"pyproject.toml", "README.md", "LICENSE", "*.py", "py.typed"} <= taken
    files = [one for one in DEPLOY.rglob("*") if one.suffix == ".yaml" or one.name == "Dockerfile"]
    tags = re.compile(r"rankscope-(?:agent|server):([\d.]+)|newTag: ([\d.]+)")
    versions = {"".join(pair) for one in files for pair in tags.findall(one.read_text())}
    assert versions == {project["project"]["version"]}


def test_the_dashboard_asks_for_metrics_that_the_collector_tells(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        [
            *(BIN / "rankscope", "collect", "--announce", "--bind", "tcp://127.0.0.1:*"),
            *("--store", tmp_path / "runs", "--health", place, "--sink", "prometheus"),
        ],
        stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if "RANKSCOPE" not in name},
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        with urllib.request.urlopen(f"http://{place}/metrics", timeout=10) as answer:
            told = answer.read().decode()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
    dashboard = json.loads((DEPLOY / "grafana" / "pipeline.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = set(re.findall(r"rankscope_\w+", " ".join(asked)))
    families = dict(re.findall(r"^# TYPE (rankscope_\w+) (\w+)$", told, re.MULTILINE))
    assert len(names) > 20
    assert names <= set(families)
    for expression in asked:
        (name,) = re.findall(r"rankscope_\w+", expression)
        assert families[name] == ("counter" if "(" in expression else "gauge")
