"""How log lines look: readable on a terminal, else key=value; what looks like a secret is blank."""

import datetime
import json
import logging
import re
from collections.abc import Sequence
from typing import Final, TextIO

BLANK: Final = "[blanked]"

# A net below the rule that secrets are never logged, for what libraries and engines print.
SECRET_SHAPES: Final[Sequence[tuple[re.Pattern[str], str]]] = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {BLANK}"),
    (re.compile(r"(://[^\s:/@]*:)[^\s@/]+@"), rf"\1{BLANK}@"),
    (
        re.compile(
            r"(?i)\b([\w-]*(?:api[_-]?key|password|secret|access[_-]?token))"
            r"""(["']?\s*[=:]\s*["']?)(?!\[blanked)[^\s"',;&]+"""
        ),
        rf"\1\2{BLANK}",
    ),
    (re.compile(r"\b(sk-)[\w-]{8,}"), rf"\1{BLANK}"),
)

# They say at INFO what llmgw says better, once per request.
QUIET_LOGGERS: Final = ("aiohttp.access", "alembic", "asyncio", "httpcore", "httpx", "sqlalchemy")


def blank_secrets(text: str) -> str:
    """Return `text` without what looks like a credential."""
    for shape, replacement in SECRET_SHAPES:
        text = shape.sub(replacement, text)
    return text


class HumanFormatter(logging.Formatter):
    """Time, level and words, for a person who watches."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        time = _local_time(record).strftime("%H:%M:%S")
        source = record.name.removeprefix("llmgw.")
        line = f"{time} {record.levelname.lower():7} {source}: {_printable(record.getMessage())}"
        trace = _trace(self, record)
        return blank_secrets(f"{line}\n{trace}" if trace else line)


class KeyValueFormatter(logging.Formatter):
    """One line per record, `key=value`, for journals and machines."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        pairs = {
            "time": _local_time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := _trace(self, record):
            pairs["trace"] = trace
        return " ".join(f"{key}={_quoted(blank_secrets(value))}" for key, value in pairs.items())


def set_up_logging(stream: TextIO, level: str = "INFO") -> None:
    """Send every log record at `level` and above to `stream`, in the form that suits it."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(HumanFormatter() if stream.isatty() else KeyValueFormatter())
    root = logging.getLogger()
    for old in tuple(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _local_time(record: logging.LogRecord) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(record.created, datetime.UTC).astimezone()


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)


def _printable(text: str) -> str:
    """Keep what others put into a message from adding lines or moving the cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _quoted(value: str) -> str:
    plain = value.isprintable() and value and not any(c in value for c in ' "=\\')
    return value if plain else json.dumps(value, ensure_ascii=False)
