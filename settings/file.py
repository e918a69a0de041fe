"""Where the file of settings is, and the tables that it may have."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from ..sketch.errors import SettingError
from .checking import check_names

VARIABLE = "RANKSCOPE_CONFIG"
"""The variable that names the file."""
TABLES = ("agent", "collect", "relay", "view", "rules", "closer_look", "bounds")
"""What a file may have: what `observe` takes, what three commands take, and what is watched for."""


def settings_file() -> Path | None:
    """The file that RANKSCOPE_CONFIG names; None: there is none."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def read_settings(file: Path) -> dict[str, Any]:
    """What a file of settings says, by table.

    Raises:
        SettingError: it cannot be read, is no TOML, or has something else than `TABLES`.
    """
    said = read_toml(file)
    faults = list[str]()
    check_names(said, TABLES, f"{file}", faults)
    if faults:
        raise SettingError("\n".join(faults))
    return said


def read_toml(file: Path) -> dict[str, Any]:
    """What a TOML file says.

    Raises:
        SettingError: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"Settings cannot be read from {file}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{file} is no TOML: {error}.") from None
