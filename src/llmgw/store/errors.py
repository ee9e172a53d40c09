"""What a store can refuse, grouped as core's errors are.

DependencyError
├── StorageError
│   ├── StoreFullError         no space left; goes on by itself once there is
│   ├── StoreReadOnlyError     the file, its directory or the server takes no writes
│   ├── StoreDamagedError      the file is no database, or a row cannot be read
│   ├── StoreBusyError         another process held it for too long
│   ├── StoreUnreachableError  the file cannot be opened, the server does not answer
│   └── StoreSchemaError       made by a newer llmgw, or by something else
├── StaleTermError             another leader has taken over
└── LeadHeldError              somebody else leads, and the wait for that to end is over
"""

from llmgw.core.errors import DependencyError, StorageError


class StoreFullError(StorageError):
    """There is no space left."""


class StoreReadOnlyError(StorageError):
    """The store can be read but not written."""


class StoreDamagedError(StorageError):
    """What is stored cannot be read."""


class StoreBusyError(StorageError):
    """Another process or too much work of this one was in the way for too long."""


class StoreUnreachableError(StorageError):
    """There is no way to the store."""


class StoreSchemaError(StorageError):
    """The tables are not those of this llmgw, and were left as they are."""


class StaleTermError(DependencyError):
    """Whoever writes is no leader any more: the store's term is another one."""

    code = "stale_term"

    def __init__(self, own: int, current: int) -> None:
        super().__init__(
            f"nothing was written: term {own} is over, the store is at {current}, so another "
            "control plane has taken the lead; stand down"
        )
        self.own = own
        self.current = current


class LeadHeldError(DependencyError):
    """Another control plane leads on this store."""

    code = "lead_held"
