from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class End(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("data", "index", "last")
    DATA_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    index: int
    last: bool
    def __init__(self, data: _Optional[bytes] = ..., index: _Optional[int] = ..., last: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("link", "term", "store", "heartbeat_s", "silent_after_s", "no_ledger")
    LINK_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    SILENT_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    NO_LEDGER_FIELD_NUMBER: _ClassVar[int]
    link: str
    term: int
    store: str
    heartbeat_s: float
    silent_after_s: float
    no_ledger: bool
    def __init__(self, link: _Optional[str] = ..., term: _Optional[int] = ..., store: _Optional[str] = ..., heartbeat_s: _Optional[float] = ..., silent_after_s: _Optional[float] = ..., no_ledger: _Optional[bool] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("why", "retry_after_s")
    WHY_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    why: str
    retry_after_s: float
    def __init__(self, why: _Optional[str] = ..., retry_after_s: _Optional[float] = ...) -> None: ...
