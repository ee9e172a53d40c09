"""Applies the revisions, in order, inside the caller's transaction."""

from pathlib import Path
from typing import Self

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection


class Upgrade:
    """The revisions, read from their files."""

    def __init__(self, directory: ScriptDirectory, revisions: tuple[Script, ...]) -> None:
        self._directory = directory
        self.revisions = revisions

    @classmethod
    def load(cls) -> Self:
        """Read all revisions, the oldest first."""
        directory = ScriptDirectory(str(Path(__file__).parent))
        return cls(directory, tuple(reversed(list(directory.walk_revisions()))))

    def run(self, connection: Connection, found: str | None) -> None:
        """Apply what comes after `found`; the caller commits all of it or nothing."""
        context = MigrationContext.configure(connection)
        for script in self._after(found):
            with Operations.context(context):
                script.module.upgrade()
            context.stamp(self._directory, script.revision)

    def _after(self, found: str | None) -> tuple[Script, ...]:
        if found is None:
            return self.revisions
        return tuple(s for s in self.revisions if int(s.revision) > int(found))
