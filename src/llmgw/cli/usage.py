"""How a command's help is written: arguments as the manual pages of Unix have them."""

from typing import TYPE_CHECKING

from typer.core import TyperCommand

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter


class Command(TyperCommand):
    """A command whose help says FILE, neither {FILE} nor FILE <path>."""

    def collect_usage_pieces(self, ctx: "Context") -> list[str]:
        """Return the pieces of the usage line."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write what may be given, arguments first."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            rows = [
                (row[0].partition(" <")[0], row[1])
                for each in self.get_params(ctx)
                if each.param_type_name == kind and (row := each.get_help_record(ctx))
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
