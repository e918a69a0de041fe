"""Imported by Python when it starts: waits for torch, and has what is trained observed.

Until torch is imported it costs nothing: nothing of rankscope is loaded, and nothing else is.
"""

import atexit
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))


class Waiting(MetaPathFinder):
    """Finds nothing; where torch is imported it has `launch.finder` installed afterwards."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """That of torch, whose loader does a little more; whoever asks may not load it yet."""
        if fullname != "torch":
            return None
        others = [one.find_spec for one in sys.meta_path if one is not self]
        found = (find(fullname, path, target) for find in others)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_install(module: ModuleType) -> None:
                load(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    _install()

            spec.loader.exec_module = load_and_install
        return spec


def _install() -> None:
    try:
        from rankscope.launch.finder import install

        install()
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"rankscope: nothing is observed: {sys.executable} has no {error.name}; install "
            "rankscope[torch] there, too.\n"
        )
    except Exception as error:
        sys.stderr.write(f"rankscope: nothing is observed: {type(error).__name__}: {error}\n")


def _tell_of_jax() -> None:
    if "jax" in sys.modules and not {"torch", "rankscope.agent.jax"} & sys.modules.keys():
        sys.stderr.write(
            "rankscope: nothing is observed: a jitted step of JAX cannot be seen from outside; "
            "docs/jax.md has the lines that show it.\n"
        )


def _import_the_next() -> None:
    """There may be another `sitecustomize` further down the path."""
    path = [folder for folder in sys.path if os.path.abspath(folder) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("RANKSCOPE_OBSERVE"):
    sys.meta_path.insert(0, Waiting())
    atexit.register(_tell_of_jax)
_import_the_next()
