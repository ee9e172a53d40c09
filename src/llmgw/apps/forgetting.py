"""After everything was stopped and seen to be gone: the store forgets where it ran.

Otherwise the next start would find replicas that ended without having been asked to by the control
plane: failures, each with a longer wait than the one before.
"""

import asyncio
import secrets
from typing import Final

from llmgw.config.settings import STORE_FILE, UpSettings
from llmgw.core.errors import DependencyError
from llmgw.runtime.clock import Clock
from llmgw.store.events import NewEvent
from llmgw.store.store import open_store

LEAD_S_MAX: Final = 10.0


async def forget_placements(settings: UpSettings, clock: Clock) -> str:
    """Forget all placements; return why that could not be done, or nothing."""
    file = settings.serve_dir / STORE_FILE
    if not await asyncio.to_thread(file.exists):
        return ""
    try:
        async with (
            open_store(f"sqlite:///{file}", clock, secrets.token_bytes) as store,
            store.lead("llmgw up, at its end", LEAD_S_MAX, lambda _: None) as lead,
        ):
            placed = await store.placements.all()
            ids = [intent.replica for intent in placed.intents]
            now_s = clock.wall_s()
            told = [NewEvent(id_, "was stopped, with everything else", now_s) for id_ in ids]
            if ids:
                await store.placements.apply(lead.term, forgets=ids, events=told)
    except DependencyError as error:
        return str(error)
    return ""
