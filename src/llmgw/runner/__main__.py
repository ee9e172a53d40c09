"""Runs one shard: python -m llmgw.runner DIR, as the leader of a new session.

Standard output and error may be a file or a pipe: they carry the reason when the runner refuses
to begin, and are left alone once it owns the shard. The exit codes are `ExitCode`; a bug ends the
runner with its story in logs/runner.err, and the shard goes on until another takes it over.
"""

import sys

from llmgw.runner.host import close_inherited, lead_session, say_error
from llmgw.runner.running import run
from llmgw.runner.state import ExitCode


def main(arguments: list[str]) -> int:
    """The whole life of a runner."""
    if len(arguments) != 1:
        say_error("usage: python -m llmgw.runner DIR")
        return ExitCode.USAGE
    try:
        close_inherited()
        lead_session()
    except OSError as fault:
        say_error(f"start it as the leader of a new session: {fault}")
        return ExitCode.USAGE
    return run(arguments[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
