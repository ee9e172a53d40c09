"""How a command's usage line is written: arguments as the manual pages of Unix have them."""

from typing import TYPE_CHECKING

from typer.core import TyperCommand

if TYPE_CHECKING:
    from typer._click import Context


class Command(TyperCommand):
    """A command whose usage says FILE, not {FILE}."""

    def collect_usage_pieces(self, ctx: "Context") -> list[str]:
        """Return the pieces of the usage line."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]
