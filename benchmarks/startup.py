"""Milliseconds until rankscope is imported or its help is printed.

Each row starts fresh interpreters in turn with those of its base; the shortest of each counts, for
whatever else runs on the machine only adds.
"""

from __future__ import annotations

import subprocess
import sys
import time

RUNS = 15

OURS = "rankscope.agent"
ROWS = [
    (f"import {OURS}", "import numpy, zmq", f"import numpy, zmq, {OURS}", 100),
    (f"import {OURS}.torch", "import torch, zmq", f"import torch, zmq, {OURS}.torch", 0),
    (f"import {OURS}.jax", "import jax, zmq", f"import jax, zmq, {OURS}.jax", 0),
    ("rankscope --help", None, "import rankscope.__main__ as m; m.cli(['--help'])", 300),
]
"""What is done, on top of what, how, and the aim in ms; 0: there is none."""


def main() -> None:
    """Print the table."""
    print("| what | ms | beyond | ms | aim |\n|---|---|---|---|---|")
    for name, base, script, aim in ROWS:
        less = "pass" if base is None else base
        shortest = {less: float("inf"), script: float("inf")}
        for _ in range(RUNS):
            for each in shortest:
                shortest[each] = min(shortest[each], _milliseconds(each))
        whole = shortest[script]
        extra = whole if base is None else whole - shortest[less]
        print(f"| `{name}` | {whole:.0f} | {base or 'nothing'} | {extra:.0f} | {aim or ''} |")


def _milliseconds(script: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - begin) * 1e3


if __name__ == "__main__":
    main()
