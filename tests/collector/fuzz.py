"""Atheris over the decoder and the whole collector; `make fuzz` runs it.

Usage: python tests/collector/fuzz.py NEW_CORPUS CORPUS [libFuzzer's options]
"""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
import types
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec

atheris: Any = importlib.import_module("atheris")  # installed by `make fuzz` alone
HERE = Path(__file__).parent
EACH = 500
"""Sessions that one collector bears: to open a store takes longer than anything else."""
STRUCTURED = 0.7
"""Of all changes: what is tried as a message rather than as bytes."""

# `hostile` and `serving` import each other as a package, which the tests' folders are not.
package = types.ModuleType("hostile_tests")
package.__path__ = [str(HERE)]
sys.modules["hostile_tests"] = package
with atheris.instrument_imports(include=["rankscope"]):
    from hostile_tests import hostile  # pyright: ignore[reportMissingImports]

    from rankscope.collector import CollectorSettings
    from rankscope.sketch import ProtocolError
    from rankscope.wire import decode


class Target:
    """What atheris calls, over and over."""

    def __init__(self) -> None:
        self.sandbox: Any = None
        self.count = 0

    def __call__(self, data: bytes) -> None:
        if self.count % EACH == 0:
            if self.sandbox is not None:
                self.sandbox.close()
                self.sandbox.check()
            folder = Path(tempfile.mkdtemp(prefix="rankscope-fuzz-"))
            # As often as a collector commits; after each message would take ten times as long.
            self.sandbox = hostile.Sandbox(folder, CollectorSettings(max_runs=4))
        self.count += 1
        session = [list(parts) for parts in hostile.load(data)]
        for parts in session[:20]:
            with suppress(ProtocolError):
                decode(parts[0] if parts else b"", "collector")
        self.sandbox.play(session[:20], b"%d" % self.count)
        self.sandbox.check()


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """A session changed at places of its structure, or in some bytes.

    Bytes alone hardly ever get past the checksums, and so not into what is behind them.
    """
    random = Random(seed)
    session = [list(parts) for parts in hostile.load(data)]
    if random.random() < STRUCTURED and session and all(session):
        changed = msgspec.msgpack.encode(hostile.mutate(session, random))
        if len(changed) <= max_size:
            return changed
    return atheris.Mutate(data, max_size)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    atheris.Setup(sys.argv, Target(), custom_mutator=mutate)
    atheris.Fuzz()
