"""Which code of the pages is run, and by what."""

from __future__ import annotations

import ast
import builtins

from .pages import Block

RUN_ELSEWHERE = {
    "docs/how-to/ipu.md",  # by tests/agent/poptorch/test_page.py
    "docs/integrations.md",  # by tests/agent/test_libraries.py
    "docs/toolkit.md",  # by tests/agent/test_toolkit_page.py
}
NOT_RUN = {
    "docs/logframe.md",  # it asks for a log that tandv has written: tests/logframe has such
}
OBSERVES = "observe(", "update("
"""What snippets call that want something which is trained."""
WITH_RANKS = "torch.distributed"
"""What those import that want several ranks: tests/end_to_end."""


def is_of_the_reader(block: Block) -> bool:
    """Whether a snippet observes what a script has, and no other test runs it."""
    if block.language != "python" or block.page in RUN_ELSEWHERE | NOT_RUN:
        return False
    observes = any(one in block.text for one in OBSERVES) and WITH_RANKS not in block.text
    return observes and free_names(block.text) != set()


def is_of_jax(block: Block) -> bool:
    return "agent.jax" in block.text


def free_names(code: str) -> set[str]:
    """The names that code uses and does not make."""
    nodes = list(ast.walk(ast.parse(code)))
    used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    made = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    made |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    made |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    imports = [a for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names]
    made |= {alias.asname or alias.name.partition(".")[0] for alias in imports}
    return used - made - set(dir(builtins))
