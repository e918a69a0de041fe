"""Print config/config.schema.json: the JSON Schema of a file of settings.

    python tests/release/config_schema.py > config/config.schema.json

It reads commands and settings of all rooms, so run it with the environment of `make .venv`.
"""

from __future__ import annotations

import ast
import inspect
import json
from itertools import pairwise
from textwrap import dedent
from typing import Any

import msgspec

from rankscope.__main__ import COMMANDS, load
from rankscope.agent.settings import AgentSettings
from rankscope.config import settings_struct
from rankscope.rules.book import BoundSettings, CloserSettings, RuleSettings

TOLD = {
    "agent": "What `observe` takes, in scripts and under `rankscope run`.",
    "collect": "What `rankscope collect` takes.",
    "relay": "What `rankscope relay` takes.",
    "view": "What `rankscope view` takes.",
}


def _told_of(kind: type[msgspec.Struct]) -> dict[str, str]:
    """What the docstring of each field of a Struct says."""
    (body,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    told = dict[str, str]()
    for field, text in pairwise(body.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(said))
            ):
                told[name] = " ".join(said.split())
            case _:
                pass
    return told


def json_schema() -> dict[str, Any]:
    """The schema, draft 2020-12."""
    commands = {name: load(COMMANDS[name].target) for name in TOLD if name != "agent"}
    tables = {"agent": AgentSettings}
    tables |= {name: settings_struct(command) for name, command in commands.items()}
    rules = {"rule": RuleSettings, "closer_look": CloserSettings, "bound": BoundSettings}
    structs = list((tables | rules).values())
    _, found = msgspec.json.schema_components(structs, ref_template="#/$defs/{name}")
    of = {name: found[kind.__name__] for name, kind in (tables | rules).items()}
    for name, kind in ({"agent": AgentSettings} | rules).items():
        for field, text in _told_of(kind).items():
            of[name]["properties"][field]["description"] = text
    mute = {"type": "array", "items": {"type": "string", "format": "regex"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rankscope",
        "description": "A file of settings of rankscope: docs/configuration.md.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            **{name: {**of[name], "title": name, "description": TOLD[name]} for name in tables},
            "rules": {
                "title": "rules",
                "description": "What is changed of a rule, by its name, and what is not told.",
                "type": "object",
                "properties": {"mute": mute},
                "additionalProperties": {**of["rule"], "title": "rule"},
            },
            "closer_look": {**of["closer_look"], "title": "closer_look"},
            "bounds": {
                "description": "What derived quantities may be at most, or at least.",
                "type": "array",
                "items": {**of["bound"], "title": "bound"},
            },
        },
    }


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
