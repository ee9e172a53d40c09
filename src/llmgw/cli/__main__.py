"""The command `llmgw`: every failure becomes one sentence on stderr and an exit code."""

import logging
import sys
from collections.abc import Sequence

from llmgw.cli.app import build_app
from llmgw.cli.exits import Exit, exit_of, sentences

logger = logging.getLogger(__name__)


def main() -> None:
    """Run the command that was typed, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command; return its exit code."""
    try:
        build_app()(args=list(arguments), prog_name="llmgw")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.FAILED
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    # Broad: the edge of the process. What was foreseen is a sentence, all else a trace as well.
    except (Exception, BaseExceptionGroup) as error:
        code = exit_of(error)
        if code is None:
            logger.exception("a fault of llmgw itself")
        sys.stderr.write(f"llmgw: {sentences(error)}\n")
        return Exit.FAILED if code is None else code
    return Exit.DONE


if __name__ == "__main__":
    main()
