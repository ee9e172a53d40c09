"""Tests of llmgw.runtime.log."""

import io
import logging
from collections.abc import Iterator

import pytest

from llmgw.runtime.log import QUIET_LOGGERS, blank_secrets, set_up_logging


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """set_up_logging takes the root logger over; pytest wants it back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.NOTSET)


def written(stream: io.StringIO, message: str, *values: object) -> str:
    set_up_logging(stream)
    logging.getLogger("llmgw.agent.link").info(message, *values)
    return stream.getvalue()


def test_a_terminal_gets_time_level_source_and_words() -> None:
    line = written(Terminal(), "connected to %s", "10.0.0.1")
    assert line[8:] == " info    agent.link: connected to 10.0.0.1\n"


def test_others_get_one_line_of_pairs() -> None:
    line = written(io.StringIO(), "two words\nand a line")
    assert line.startswith("time=20")
    assert line.endswith('level=info logger=llmgw.agent.link message="two words\\nand a line"\n')


def test_a_trace_stays_on_its_line_for_machines() -> None:
    stream = io.StringIO()
    set_up_logging(stream)
    try:
        int("boom")
    except ValueError:
        logging.getLogger("x").exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert 'trace="Traceback' in line
    assert "ValueError: invalid literal" in line


def test_what_others_put_into_a_message_cannot_move_the_cursor() -> None:
    line = written(Terminal(), "model %s", "x\x1b[2J\ny")
    assert line.endswith("model x\\x1b[2J\\ny\n")


def test_a_library_that_logs_each_request_is_quiet() -> None:
    stream = io.StringIO()
    set_up_logging(stream)
    logging.getLogger("httpx").info("HTTP Request: GET ...")
    logging.getLogger("httpx").warning("odd")
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("text", "blanked"),
    [
        ("Authorization: Bearer abcdef123456", "Authorization: Bearer [blanked]"),
        ("postgresql://llmgw:hunter2@db/llmgw", "postgresql://llmgw:[blanked]@db/llmgw"),
        ("--api-key=s3cret next", "--api-key=[blanked] next"),
        ("{'api_key': 'verysecret', 'a': 1}", "{'api_key': '[blanked]', 'a': 1}"),
        ("VLLM_API_KEY=0123abcd x", "VLLM_API_KEY=[blanked] x"),
        ("key sk-abcdefghijk was refused", "key sk-[blanked] was refused"),
        ("prompt_tokens=12 max_tokens: 5", "prompt_tokens=12 max_tokens: 5"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("no api_key was given", "no api_key was given"),
    ],
)
def test_what_looks_like_a_secret_is_blanked_and_other_words_are_not(
    text: str, blanked: str
) -> None:
    assert blank_secrets(text) == blanked
    assert written(Terminal(), "%s", text).endswith(f": {blanked}\n")
