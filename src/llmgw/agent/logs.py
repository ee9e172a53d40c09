"""Answers questions for a shard's log, from its files: whether a runner lives does not matter."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from llmgw.agent.runs import RunsFolder, shard_key
from llmgw.runner.record import BrokenFileError, Phase, follow, read_record, tail
from llmgw.runtime.clock import Clock
from llmgw.runtime.threads import ThreadPool
from llmgw.wire.messages import Answer, Question, QuestionKind

LINES_MAX: Final = 10_000
LINES_DEFAULT: Final = 100
BYTES_MAX: Final = 1024 * 1024
"""Of one answer."""
FOLLOW_STEP_S: Final = 0.3
FOLLOW_S_MAX: Final = 3600.0
"""Whoever follows for longer asks again."""
LOST: Final = "[lines between were dropped before they could be read]"


class Logs:
    """Reads logs."""

    def __init__(self, runs: RunsFolder, pool: ThreadPool, clock: Clock) -> None:
        self._runs = runs
        self._pool = pool
        self._clock = clock

    async def answers(self, question: Question) -> AsyncGenerator[Answer, None]:
        """Yield the answers to a question; the last one says that it is."""
        if question.kind != QuestionKind.LOGS:
            yield Answer(question.id, last=True, error=f"this agent knows no {question.kind!r}")
            return
        folder = self._runs.folder(question.subject)
        if shard_key(question.subject) is None or not await self._pool.run(folder.is_dir):
            why = f"this node has no shard {question.subject}, or its logs were pruned"
            yield Answer(question.id, last=True, error=why)
            return
        follows = question.options.get("follow") == "1"
        try:
            lines = min(max(int(question.options.get("lines", LINES_DEFAULT)), 0), LINES_MAX)
            piece = await self._pool.run(tail, folder, lines, BYTES_MAX)
            yield Answer(question.id, piece.lines, last=not follows)
            if follows:
                async for answer in self._follow(question.id, folder, piece.cursor):
                    yield answer
        except (OSError, ValueError) as error:
            why = f"the log of {question.subject} cannot be read: {error}"
            yield Answer(question.id, last=True, error=why)

    async def _follow(self, number: int, folder: Path, cursor: str) -> AsyncGenerator[Answer, None]:
        end_s = self._clock.monotonic_s() + FOLLOW_S_MAX
        while self._clock.monotonic_s() < end_s:
            over = await self._pool.run(_is_over, folder)
            piece = await self._pool.run(follow, folder, cursor, BYTES_MAX)
            cursor = piece.cursor
            lines = (LOST, *piece.lines) if piece.lost else piece.lines
            if lines:
                yield Answer(number, lines)
            elif over:
                break
            else:
                await self._clock.sleep(FOLLOW_STEP_S)
        yield Answer(number, last=True)


def _is_over(folder: Path) -> bool:
    """Whether nothing more is written: asked before the last read, so that nothing is missed."""
    try:
        return read_record(folder).phase is Phase.ENDED
    except FileNotFoundError:
        return not folder.is_dir()
    except (OSError, BrokenFileError):
        return False
