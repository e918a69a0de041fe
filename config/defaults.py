"""What a file of settings says for a command, as click takes it for what the user leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..agent.settings import PLACES, agent_settings
from ..settings import CONFIGURED, TABLES, check_names, read_toml
from ..sketch.errors import SettingError
from .options import check_options


def defaults_of(command: click.Command, name: str, file: Path) -> Mapping[str, Any]:
    """What holds of a command's options where the user says nothing.

    Raises:
        SettingError: the file cannot be read, or holds what the command cannot take.
    """
    if name in CONFIGURED:
        whole, faults = read_toml(file), list[str]()
        check_names(whole, TABLES, f"{file}", faults)
        said = whole.get(name, {})
        faults += check_options(said, command, f"{file}, [{name}]")
        if name == "collect":
            # Imported late: a relay has not what it needs.
            from ..rules.book import book_of

            book_of(whole, f"{file}", faults)
        if faults:
            raise SettingError("\n".join(faults))
        return {"rules": str(file), **said} if name == "collect" else said
    if name == "rules":
        return {"list": {"file": str(file)}, "test": {"file": str(file)}}
    if name == "run":
        return {key: value for key, value in agent_settings(file).items() if key in PLACES}
    return {}
