"""The errors that rankscope raises on purpose, as one tree.

RankscopeError
├── SettingError        an argument, variable or option that cannot be used
├── AddressError        a network address that cannot be bound or understood
├── ProtocolError       a message that breaks the wire protocol
├── LogFrameError       a file of logs that breaks its schema, or cannot be read
└── StoreError          a store that cannot be opened, read or written
    ├── NotARunError    the path holds something else, or nothing
    ├── BusyError       another writer holds the store
    └── GoneError       the store was moved or deleted under its writer
"""


class RankscopeError(Exception):
    """What went wrong, with the value, and what to do about it, in one sentence."""


class SettingError(RankscopeError, ValueError):
    """An argument, environment variable or option has a value that cannot be used."""


class AddressError(RankscopeError):
    """A network address cannot be bound, reached or understood."""


class ProtocolError(RankscopeError):
    """A message from the network is malformed, oversized, foreign or of an unknown version."""


class LogFrameError(RankscopeError):
    """A LogFrame breaks its schema, or its file cannot be read; the column is named."""


class StoreError(RankscopeError):
    """A store cannot be opened, read or written."""


class NotARunError(StoreError):
    """A path was opened as a run but holds something else, or nothing."""


class BusyError(StoreError):
    """Another process is already writing to this store."""


class GoneError(StoreError):
    """The store of a run was moved or deleted while this process wrote it."""
