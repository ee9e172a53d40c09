"""Guards around every test: no task, descriptor or process is left, no call blocks the loop."""

import contextlib
from collections.abc import Generator, Iterator
from typing import Final

import pytest

from tests.guards.blocking import blocking_calls_noted
from tests.guards.leaks import (
    Baseline,
    adopt_orphans,
    kill_children_since,
    new_children,
    new_descriptors,
    open_what_stays_open,
    take_baseline,
    what_stays,
)
from tests.guards.tasks import abandoned_tasks_noted

BASELINE: Final = pytest.StashKey[Baseline]()
TASKS: Final = pytest.StashKey[list[str]]()
CALLS: Final = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the guards' own tests be quick."""
    parser.addini("guards_linger_s", "how long what a test left may take to go away", default="5")


def pytest_configure(config: pytest.Config) -> None:
    """Put up what watches for the whole run."""
    adopt_orphans()
    open_what_stays_open()
    guards = contextlib.ExitStack()
    config.stash[TASKS] = guards.enter_context(abandoned_tasks_noted())
    config.stash[CALLS] = guards.enter_context(blocking_calls_noted())
    config.add_cleanup(guards.close)


@pytest.fixture(scope="session", autouse=True)
def no_process_outlives_the_run(pytestconfig: pytest.Config) -> Iterator[None]:
    """Fixtures that live longer than one test owe their processes an end, too."""
    before = take_baseline()
    yield
    left = what_stays(lambda: new_children(before), _linger_s(pytestconfig))
    kill_children_since(before)
    if left:
        pytest.fail(f"left when all tests had ended: {', '.join(left)}", pytrace=False)


@pytest.fixture(autouse=True)
def baseline(request: pytest.FixtureRequest) -> None:
    """Note what is there: after fixtures of wider scope, and before the test's own."""
    request.node.stash[BASELINE] = take_baseline()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Compare, once the test and its fixtures have ended; a failed fixture is the better story."""
    failed = True
    try:
        yield
        failed = False
    finally:
        problems = _problems(item)
        if problems and not failed:
            pytest.fail("\n".join(problems), pytrace=False)


def _problems(item: pytest.Item) -> list[str]:
    problems = [f"abandoned: {task}" for task in _drain(item.config.stash[TASKS])]
    problems += [f"in the event loop: {call}" for call in _drain(item.config.stash[CALLS])]
    before = item.stash.get(BASELINE, None)
    if before is not None:
        left = what_stays(
            lambda: new_descriptors(before) + new_children(before), _linger_s(item.config)
        )
        problems += [f"leaked: {leak}" for leak in left]
        kill_children_since(before)
    return problems


def _linger_s(config: pytest.Config) -> float:
    return float(config.getini("guards_linger_s"))


def _drain(noted: list[str]) -> list[str]:
    drained = noted[:]
    noted.clear()
    return drained
