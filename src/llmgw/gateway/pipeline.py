"""The life of one call, top to bottom. Each step is one line here and one module elsewhere."""

from dataclasses import dataclass

from llmgw.core.traffic.call import decode
from llmgw.gateway.gate import Gate
from llmgw.gateway.ports import Caller, Client, Endpoint, Keyring, Ledger, Request
from llmgw.gateway.relay import EngineRelay
from llmgw.gateway.render import UnknownModelError
from llmgw.gateway.replicas import Model, Replicas


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Key → ledger opened → body → model → admission and route → relay; undone in reverse."""

    keyring: Keyring
    ledger: Ledger
    replicas: Replicas
    gate: Gate
    relay: EngineRelay

    async def handle(self, endpoint: Endpoint, request: Request, client: Client) -> None:
        """Carry one call through; a known caller gets one ledger record, however it ends."""
        caller = self.keyring.identify(request)
        with self.ledger.entry(caller, endpoint, client) as entry:
            call = decode(await request.body())
            model = self._model(caller, call.model)
            entry.model, entry.streamed = model.route.name, call.streamed
            slot = await self.gate.admit(model, caller.account)
            try:
                await self.relay.relay(slot, endpoint, request, call, client, entry)
            finally:
                slot.leave()

    def models_of(self, request: Request) -> dict[str, Model]:
        """Return the models that the caller may name, by name and alias."""
        caller = self.keyring.identify(request)
        found = {}
        for name, model in self.replicas.models.items():
            for named in (name, *model.route.aliases):
                if self.replicas.find(named) is model and caller.covers(name, named):
                    found[named] = model
        return found

    def _model(self, caller: Caller, named: str) -> Model:
        model = self.replicas.find(named)
        if model is None or not caller.covers(model.route.name, named):
            raise UnknownModelError(
                f"the model `{named}` does not exist, or this key does not cover it"
            )
        return model
