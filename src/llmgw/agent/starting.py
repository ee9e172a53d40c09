"""Prepares one start: localize, prove the port free, write down what the GPUs hold, make the files.

What cannot be started is a Refusal with a sentence, whatever refused; nothing is left behind.
"""

import os
import shutil
from collections.abc import Mapping
from typing import Final

from llmgw.agent.discovery.programs import Programs, find_programs
from llmgw.agent.discovery.sockets import listeners
from llmgw.agent.gpus import Gpus
from llmgw.agent.localize import Ground, Refusal, localize
from llmgw.agent.options import AgentOptions
from llmgw.agent.runs import RunsFolder
from llmgw.core.errors import StorageError
from llmgw.core.fleet.assignment import ShardSpec
from llmgw.runner import record
from llmgw.runtime.threads import ThreadPool

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Starting:
    """Makes a run of a spec."""

    def __init__(
        self, options: AgentOptions, runs: RunsFolder, gpus: Gpus, pool: ThreadPool
    ) -> None:
        self._options = options
        self._runs = runs
        self._gpus = gpus
        self._pool = pool

    async def prepare(self, spec: ShardSpec, key: str | None) -> Refusal | None:
        """Make everything ready for the runner; None if it is."""
        name = str(spec.key)
        launch = await self._pool.run(self._localize, spec, key)
        if isinstance(launch, Refusal):
            return launch
        try:
            await self._gpus.grant(name, spec.gpus)
            await self._pool.run(self._runs.create, spec, launch)
        except StorageError as error:
            self._gpus.cancel(name)
            return Refusal(str(error))
        return None

    def programs(self) -> Programs:
        """Look for the engines of this node; blocking."""
        return find_programs(self._options.engines, search_path(self._options.environment))

    def _localize(self, spec: ShardSpec, key: str | None) -> record.Launch | Refusal:
        if self._is_taken(spec.port):
            return Refusal(
                f"port {spec.port} is taken: something else listens on it; another one is placed"
                " with the next start",
                port_taken=True,
            )
        state = self._gpus.state
        ground = Ground(
            program=self.programs().of(spec.engine),
            gpus=state.gpus,
            any_gpu_lost=state.any_lost,
            environment=self._options.environment,
            has_path=lambda path: os.access(path, os.R_OK),
            find=lambda name, path: shutil.which(name, path=path),
            log_bytes_max=self._options.log_bytes_max,
        )
        return localize(spec, key, ground)

    def _is_taken(self, port: int) -> bool:
        try:
            return any(one.port == port for one in listeners(self._options.machine.proc))
        except OSError:
            return False  # not known; the engine itself will find out


def search_path(environment: Mapping[str, str]) -> str:
    """Return where programs are looked for."""
    return environment.get("PATH") or DEFAULT_PATH
