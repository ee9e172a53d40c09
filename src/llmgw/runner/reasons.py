"""The sentences for how a shard ended."""

import signal


def describe_status(status: int | None) -> str:
    """An exit status as people read it."""
    if status is None:
        return "its exit status could not be observed"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"killed by signal {-status}"


def unasked(name: str, status: int | None, *, is_engine: bool) -> str:
    """Why a shard failed whose command ended by itself."""
    what = "the engine" if is_engine else f"the sidecar {name}"
    after = "" if is_engine else " before the engine"
    why = f"{what} ended{after} without being asked ({describe_status(status)})"
    if status == 0:
        why += "; an exit that was not asked for is a failure, whatever its status"
    return why + "; the last lines of the log say more"


def asked(name: str, status: int | None, outlasted: tuple[str, ...], grace_s: float) -> str:
    """Why a shard ended that was asked to."""
    if not outlasted:
        return f"stopped as asked; {name}: {describe_status(status)}"
    late = ", ".join(outlasted)
    return f"stopped as asked; {late} did not end within {grace_s:g} s of SIGTERM and was killed"


RESTARTED = "the machine restarted; nothing of this shard can still run"
KILLED_BEFORE_START = (
    "the runner was killed before it had started any command; nothing is started a second time"
)


def unobserved(name: str) -> str:
    """Why a shard failed that nobody watched."""
    return (
        f"the runner was killed, and {name} ended unobserved: its exit status is unknown; "
        "the kernel's log may show an out-of-memory kill"
    )


def never_started(name: str) -> str:
    """Why a shard failed whose runner was killed while it started the commands."""
    return (
        f"the runner was killed before it had started {name}; nothing is started a second time, "
        "so what it had started is stopped"
    )
