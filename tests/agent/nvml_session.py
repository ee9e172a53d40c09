"""Reads GPUs through the real pynvml at each line of input, in a process of its own.

The scripted driver library stays loaded in whoever loaded it, so it must not be the test's process.
"""

import dataclasses
import json
import sys

from llmgw.agent.discovery.nvml import Nvml


def main() -> None:
    nvml = Nvml()
    for _ in sys.stdin:
        reading = dataclasses.asdict(nvml.read())
        sys.stdout.write(json.dumps(reading) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
