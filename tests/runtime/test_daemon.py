"""Tests of llmgw.runtime.daemon and signals, each with a real process and real signals."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from llmgw.runtime.daemon import EXIT_LEFT_BEHIND

END_S_MAX = 20.0

PRELUDE = """
import asyncio, sys, threading, time
from llmgw.runtime.daemon import run_daemon
from llmgw.runtime.log import set_up_logging
set_up_logging(sys.stderr)
def say(words): print(words, flush=True)
"""


@contextmanager
def running(script: str) -> Iterator[subprocess.Popen[str]]:
    """Start `script` and wait until it says that it is up."""
    source = PRELUDE + textwrap.dedent(script)
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


ORDERLY = """
async def main(stop):
    say("up")
    await stop.wait()
    say("stopping")
run_daemon(main, left_behind_s_max=0.1)
say("ended")
"""

STUCK_LOOP = """
async def main(stop):
    say("up")
    await stop.wait()
    say("stopping")
    time.sleep(60)
run_daemon(main, left_behind_s_max=0.1)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_an_orderly_stop(number: signal.Signals) -> None:
    with running(ORDERLY) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=END_S_MAX)
    assert (out, process.returncode) == ("stopping\nended\n", 0)
    assert number.name in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_same_signal_again_ends_the_process_even_when_its_loop_is_stuck(
    number: signal.Signals,
) -> None:
    with running(STUCK_LOOP) as process:
        process.send_signal(number)
        assert process.stdout is not None
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(number)
        assert process.wait(END_S_MAX) == -number


def test_ctrl_c_and_then_a_parents_sigterm_is_still_an_orderly_stop() -> None:
    script = """
    async def main(stop):
        say("up")
        await stop.wait()
        say("stopping")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    run_daemon(main, left_behind_s_max=0.1)
    say("ended")
    """
    source = PRELUDE + textwrap.dedent(script)
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate("\n", timeout=END_S_MAX)
    assert (out, process.returncode) == ("ended\n", 0)


def test_what_main_raises_is_raised() -> None:
    script = """
    async def main(stop):
        say("up")
        raise ValueError("no catalog")
    run_daemon(main, left_behind_s_max=0.1)
    """
    with running(script) as process:
        _, err = process.communicate(timeout=END_S_MAX)
    assert process.returncode == 1
    assert "ValueError: no catalog" in err


def test_a_task_that_ignores_its_cancellation_is_named_and_left() -> None:
    script = """
    async def stubborn():
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
    async def main(stop):
        task = asyncio.create_task(stubborn(), name="journal")
        await asyncio.sleep(0)
        say("up")
    run_daemon(main, left_behind_s_max=0.1)
    """
    with running(script) as process:
        _, err = process.communicate(timeout=END_S_MAX)
    assert process.returncode == EXIT_LEFT_BEHIND
    assert "exiting without the tasks that do not end: journal" in err


def test_a_thread_that_does_not_return_is_named_and_left() -> None:
    script = """
    async def main(stop):
        threading.Thread(target=threading.Event().wait, name="nvml").start()
        say("up")
    run_daemon(main, left_behind_s_max=0.1)
    """
    with running(script) as process:
        _, err = process.communicate(timeout=END_S_MAX)
    assert process.returncode == EXIT_LEFT_BEHIND
    assert "exiting without the threads that do not end: nvml" in err
