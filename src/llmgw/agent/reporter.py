"""Makes the node's report: its whole truth at this moment, from what each part knows."""

from dataclasses import replace

from llmgw.agent.inventory import InventoryKeeper
from llmgw.agent.obedience import Claim, Obedience
from llmgw.agent.pulse import Events
from llmgw.agent.supervisor import Supervisor
from llmgw.core.fleet.report import Report


class Reporter:
    """Joins inventory, shards, obedience and events."""

    def __init__(
        self,
        inventory: InventoryKeeper,
        supervisor: Supervisor,
        obedience: Obedience,
        events: Events,
    ) -> None:
        self._inventory = inventory
        self._supervisor = supervisor
        self._obedience = obedience
        self._events = events

    async def ready(self) -> None:
        """Wait until a report would be complete: every run was looked at, the inventory read."""
        await self._supervisor.adopted.wait()
        await self._inventory.ready.wait()

    def report(self, claim: Claim | None = None) -> Report:
        """Return the report of this moment, as it is said over the link of a claim."""
        inventory = self._inventory.current()
        warnings = (*inventory.warnings, *self._obedience.warnings)
        return Report(
            inventory=replace(inventory, warnings=warnings),
            shards=self._supervisor.reports(),
            term=self._obedience.obeyed.term,
            generation=self._supervisor.generation(claim),
            refused=self._supervisor.refused,
            waiting=self._supervisor.waiting,
            events=self._events.recent(),
        )
