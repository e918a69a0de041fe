"""The repository's layout is law: what is shipped, what a room shows, who imports whom."""

import ast
import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

MAY_IMPORT = {
    "sketch": set[str](),
    "settings": {"sketch"},
    "wire": {"sketch"},
    "store": {"merge", "sketch", "wire"},
    "agent": {"merge", "settings", "sketch", "wire"},
    "launch": {"agent", "settings", "sketch", "store"},
    "merge": {"sketch", "wire"},
    "collector": {"merge", "rules", "settings", "sinks", "sketch", "store", "wire"},
    "doctor": {"collector", "sketch", "store", "wire"},
    "relay": {"merge", "settings", "sketch", "wire"},
    "rules": {"settings", "sketch", "store"},
    "config": {"agent", "rules", "settings", "sketch", "wire"},
    "sinks": {"sketch", "store", "wire"},
    "logframe": {"rules", "sketch", "store", "wire"},
    "viewer": {"rules", "sketch", "store"},
    "examples": {"agent", "collector", "sketch", "store", "viewer", "wire"},
}

FRAMEWORKS = {"jax", "numba", "torch", "triton"}
SCREEN = {"bokeh", "holoviews", "panel"}
STORAGE = {"icechunk", "pandas", "xarray", "zarr"}
TRAINERS = {"accelerate", "lightning", "pytorch_lightning", "transformers"}
TOLD = {"prometheus_client", "tensorboard", "wandb"}
MUST_NOT_LOAD = {
    "sketch": {"msgspec", "zmq"} | FRAMEWORKS | SCREEN | STORAGE,
    "settings": {"zmq"} | FRAMEWORKS | SCREEN | STORAGE,
    "wire": {"zmq"} | FRAMEWORKS | SCREEN | STORAGE,
    "agent": FRAMEWORKS | SCREEN | STORAGE | TRAINERS,
    "launch": {"msgspec", "numpy", "zmq"} | FRAMEWORKS | SCREEN | STORAGE | TRAINERS,
    "merge": {"zmq"} | FRAMEWORKS | SCREEN | STORAGE,
    "store": {"torch", "zmq"} | SCREEN,
    "collector": {"pandas", "torch", "xarray"} | SCREEN | TOLD,
    "config": FRAMEWORKS | SCREEN | STORAGE,
    "doctor": FRAMEWORKS | SCREEN | STORAGE,
    "relay": FRAMEWORKS | SCREEN | STORAGE,
    "rules": {"torch", "zmq"} | SCREEN,
    "sinks": {"torch", "zmq"} | SCREEN | TOLD,
    "logframe": {"torch", "zmq"} | SCREEN,
    "viewer": {"torch", "zmq"},
}

NOT_ROOMS = {"benchmarks", "build", "deploy", "dist", "docs", "rankscope-runs", "tests"}
ROOMS = sorted(
    folder.name
    for folder in ROOT.iterdir()
    if folder.is_dir() and folder.name[0] != "." and folder.name not in NOT_ROOMS
    if any(folder.rglob("*.py"))
)


def source_files() -> list[Path]:
    return [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]


def module_name(file: Path) -> str:
    """`store/schema.py` is `store.schema`, `store/__init__.py` is `store`."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file) for file in source_files()}
PACKAGES = sorted(module_name(file.parent / "__init__.py") for file in source_files())


def imports(file: Path) -> Iterator[str]:
    """The modules of this house that a file imports, wherever in it, without `rankscope.`."""
    package = file.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                targets = [alias.name for alias in names]
            case ast.ImportFrom(module=module, names=names, level=0):
                targets = [f"{module}.{alias.name}" for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                above = ["rankscope", *package[: len(package) - level + 1]]
                start = ".".join(above + ([module] if module else []))
                targets = [f"{start}.{alias.name}" for alias in names]
            case _:
                continue
        for target in targets:
            if target.startswith("rankscope."):
                yield nearest_module(target.removeprefix("rankscope."))


def nearest_module(dotted: str) -> str:
    """`store.schema.Frame` is a name in the module `store.schema`."""
    while dotted not in MODULES and "." in dotted:
        dotted = dotted.rpartition(".")[0]
    return dotted


def modules_loaded_by(import_line: str, folder: Path) -> set[str]:
    """What a fresh Python has loaded after one line; run away from the checkout."""
    script = f"import sys\n{import_line}\nprint(*sys.modules)"
    command = [sys.executable, "-c", script]
    return set(subprocess.check_output(command, text=True, cwd=folder).split())


def test_every_package_that_exists_is_listed_and_the_other_way_round() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = settings["tool"]["setuptools"]["packages"]

    existing = {"rankscope"} | {f"rankscope.{package}" for package in PACKAGES}

    assert sorted(existing) == listed


def test_every_folder_with_code_is_a_package() -> None:
    missing = {file.parent for file in source_files() if not (file.parent / "__init__.py").exists()}

    assert missing == set()


def test_the_root_holds_no_other_code() -> None:
    # setuptools ships every .py file that lies beside the root's __init__.py.
    assert {file.name for file in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_the_root_face_holds_only_a_docstring() -> None:
    [statement] = ast.parse((ROOT / "__init__.py").read_text()).body

    assert isinstance(statement, ast.Expr)


def test_importing_rankscope_imports_no_room(tmp_path: Path) -> None:
    loaded = modules_loaded_by("import rankscope", tmp_path)

    assert {name for name in loaded if name.startswith("rankscope.")} == set()


@pytest.mark.parametrize("room", sorted(MUST_NOT_LOAD.keys() & ROOMS))
def test_importing_a_room_loads_only_what_it_may(room: str, tmp_path: Path) -> None:
    loaded = modules_loaded_by(f"import rankscope.{room}", tmp_path)

    assert loaded & MUST_NOT_LOAD[room] == set()


def test_the_agent_for_jax_loads_jax_and_no_other_framework(tmp_path: Path) -> None:
    loaded = modules_loaded_by("import rankscope.agent.jax", tmp_path)

    assert loaded & {"equinox", "flax", "jax", "numba", "optax", "torch", "triton"} == {"jax"}


def test_the_agent_for_poptorch_loads_no_framework_that_is_not_there(tmp_path: Path) -> None:
    loaded = modules_loaded_by("import rankscope.agent.poptorch", tmp_path)

    assert loaded & {"jax", "poptorch", "torch", "triton"} == set()


def test_every_room_is_known_here() -> None:
    assert set(ROOMS) - MAY_IMPORT.keys() == set()


@pytest.mark.parametrize("room", ROOMS)
def test_imports_between_rooms_run_one_way(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room}

    wrong = {
        f"{module_name(file)} imports {target}"
        for file in sorted((ROOT / room).rglob("*.py"))
        for target in imports(file)
        if target.partition(".")[0] not in allowed
    }

    assert wrong == set()


def test_there_are_no_import_circles() -> None:
    graph = {module_name(file): set(imports(file)) - {module_name(file)} for file in source_files()}

    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def sort_key(name: str) -> tuple[int, str]:
    """Ruff's order of `__all__` (RUF022): CONSTANTS, then Classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("package", sorted(set(PACKAGES)))
def test_a_face_lists_all_that_it_shows_in_order(package: str) -> None:
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())
    shown = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    } | {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    public = {name for name in shown if not name.startswith("_")}

    face = importlib.import_module(f"rankscope.{package}")
    listed: list[str] = face.__all__

    assert ast.get_docstring(tree)
    assert listed == sorted(public, key=sort_key)
    assert [name for name in listed if not hasattr(face, name)] == []
