"""Log lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """time (UTC), level, logger, message; and traceback, where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_to_stderr(*, as_json: bool) -> None:
    """Send what is logged to stderr, from now on."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    handler.setFormatter(JsonLines() if as_json else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("wandb").setLevel(logging.WARNING)  # it tells each step of its own
