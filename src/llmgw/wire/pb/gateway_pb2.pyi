from llmgw.wire.pb import link_pb2 as _link_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GatewayMessage(_message.Message):
    __slots__ = ("hello", "load", "usage", "heartbeat", "end", "piece")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    hello: GatewayHello
    load: Load
    usage: UsageBatch
    heartbeat: _link_pb2.Heartbeat
    end: _link_pb2.End
    piece: _link_pb2.Piece
    def __init__(self, hello: _Optional[_Union[GatewayHello, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., usage: _Optional[_Union[UsageBatch, _Mapping]] = ..., heartbeat: _Optional[_Union[_link_pb2.Heartbeat, _Mapping]] = ..., end: _Optional[_Union[_link_pb2.End, _Mapping]] = ..., piece: _Optional[_Union[_link_pb2.Piece, _Mapping]] = ...) -> None: ...

class PublisherMessage(_message.Message):
    __slots__ = ("welcome", "refusal", "snapshot", "change", "stored", "heartbeat", "end", "piece")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    welcome: _link_pb2.Welcome
    refusal: _link_pb2.Refusal
    snapshot: str
    change: str
    stored: UsageStored
    heartbeat: _link_pb2.Heartbeat
    end: _link_pb2.End
    piece: _link_pb2.Piece
    def __init__(self, welcome: _Optional[_Union[_link_pb2.Welcome, _Mapping]] = ..., refusal: _Optional[_Union[_link_pb2.Refusal, _Mapping]] = ..., snapshot: _Optional[str] = ..., change: _Optional[str] = ..., stored: _Optional[_Union[UsageStored, _Mapping]] = ..., heartbeat: _Optional[_Union[_link_pb2.Heartbeat, _Mapping]] = ..., end: _Optional[_Union[_link_pb2.End, _Mapping]] = ..., piece: _Optional[_Union[_link_pb2.Piece, _Mapping]] = ...) -> None: ...

class GatewayHello(_message.Message):
    __slots__ = ("gateway", "term", "revision")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    term: int
    revision: int
    def __init__(self, gateway: _Optional[str] = ..., term: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("term", "revision", "in_flight")
    class InFlightEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TERM_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    term: int
    revision: int
    in_flight: _containers.ScalarMap[str, int]
    def __init__(self, term: _Optional[int] = ..., revision: _Optional[int] = ..., in_flight: _Optional[_Mapping[str, int]] = ...) -> None: ...

class UsageBatch(_message.Message):
    __slots__ = ("batch", "records")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    batch: int
    records: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, batch: _Optional[int] = ..., records: _Optional[_Iterable[str]] = ...) -> None: ...

class UsageStored(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: int
    def __init__(self, batch: _Optional[int] = ...) -> None: ...
