"""Who sends: one process, which is one rank, whatever replicas it has."""

from __future__ import annotations

import os
import socket
import uuid
from typing import Any

from ...wire.messages import PROTOCOL, Hello, MeshAxis
from .compiling import poptorch_of


def hello_of(run: str, model: Any, options: Any) -> Hello:
    """The first message of a stream, with facts worth keeping about this process's software."""
    return Hello(
        protocol_min=PROTOCOL,
        protocol_max=PROTOCOL,
        run=run,
        launch=uuid.uuid4().hex,
        stream=uuid.uuid4().hex,
        rank=0,
        world_size=1,
        mesh=[MeshAxis(name="dp", size=1, coordinate=0)],
        host=socket.gethostname(),
        process=os.getpid(),
        device="ipu",
        facts={
            "poptorch": str(getattr(poptorch_of(options), "__version__", "")),
            "model": type(model).__name__,
            "replicas": str(options.replication_factor),
        },
    )
