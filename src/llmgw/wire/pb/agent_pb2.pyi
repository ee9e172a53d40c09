from llmgw.wire.pb import link_pb2 as _link_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentMessage(_message.Message):
    __slots__ = ("hello", "report", "answer", "heartbeat", "end", "piece")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: str
    answer: Answer
    heartbeat: _link_pb2.Heartbeat
    end: _link_pb2.End
    piece: _link_pb2.Piece
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[str] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., heartbeat: _Optional[_Union[_link_pb2.Heartbeat, _Mapping]] = ..., end: _Optional[_Union[_link_pb2.End, _Mapping]] = ..., piece: _Optional[_Union[_link_pb2.Piece, _Mapping]] = ...) -> None: ...

class ControlMessage(_message.Message):
    __slots__ = ("welcome", "refusal", "assignment", "question", "cancel", "heartbeat", "end", "piece")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    welcome: _link_pb2.Welcome
    refusal: _link_pb2.Refusal
    assignment: Assignment
    question: Question
    cancel: Cancel
    heartbeat: _link_pb2.Heartbeat
    end: _link_pb2.End
    piece: _link_pb2.Piece
    def __init__(self, welcome: _Optional[_Union[_link_pb2.Welcome, _Mapping]] = ..., refusal: _Optional[_Union[_link_pb2.Refusal, _Mapping]] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., question: _Optional[_Union[Question, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., heartbeat: _Optional[_Union[_link_pb2.Heartbeat, _Mapping]] = ..., end: _Optional[_Union[_link_pb2.End, _Mapping]] = ..., piece: _Optional[_Union[_link_pb2.Piece, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("node", "name", "machine", "boot", "version", "term", "store")
    NODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    node: str
    name: str
    machine: str
    boot: str
    version: str
    term: int
    store: str
    def __init__(self, node: _Optional[str] = ..., name: _Optional[str] = ..., machine: _Optional[str] = ..., boot: _Optional[str] = ..., version: _Optional[str] = ..., term: _Optional[int] = ..., store: _Optional[str] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("term", "generation", "specs", "keys", "keep")
    class KeysEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TERM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SPECS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    term: int
    generation: int
    specs: _containers.RepeatedScalarFieldContainer[str]
    keys: _containers.ScalarMap[str, str]
    keep: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, term: _Optional[int] = ..., generation: _Optional[int] = ..., specs: _Optional[_Iterable[str]] = ..., keys: _Optional[_Mapping[str, str]] = ..., keep: _Optional[_Iterable[str]] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("id", "kind", "subject", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    subject: str
    options: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., subject: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "lines", "last", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: int
    lines: _containers.RepeatedScalarFieldContainer[str]
    last: bool
    error: str
    def __init__(self, id: _Optional[int] = ..., lines: _Optional[_Iterable[str]] = ..., last: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...
