"""The messages that cross between processes, and their codec. No sockets here.

The one rule of this room: nothing from the network is trusted. The vocabulary is closed, sizes are
bounded before they are allocated, and bad bytes end in a `ProtocolError`.
"""

from .address import Address, parse_address
from .codec import (
    COLUMNS,
    MAX_BLOB_BYTES,
    MAX_HEADER_BYTES,
    Frame,
    PackedFrame,
    decode,
    decode_frame,
    encode,
    encode_frame,
    make_schema,
    open_frame,
)
from .messages import (
    PROTOCOL,
    Ack,
    Column,
    Control,
    FrameHeader,
    Gap,
    Goodbye,
    Hello,
    Kind,
    MeshAxis,
    Message,
    NeedSchema,
    Placement,
    Reject,
    Schema,
    Site,
    State,
    Welcome,
)

__all__ = [
    "COLUMNS",
    "MAX_BLOB_BYTES",
    "MAX_HEADER_BYTES",
    "PROTOCOL",
    "Ack",
    "Address",
    "Column",
    "Control",
    "Frame",
    "FrameHeader",
    "Gap",
    "Goodbye",
    "Hello",
    "Kind",
    "MeshAxis",
    "Message",
    "NeedSchema",
    "PackedFrame",
    "Placement",
    "Reject",
    "Schema",
    "Site",
    "State",
    "Welcome",
    "decode",
    "decode_frame",
    "encode",
    "encode_frame",
    "make_schema",
    "open_frame",
    "parse_address",
]
