"""`llmgw ctl logs` and `llmgw ctl events`: what was written and what happened, and what comes."""

from llmgw.admin.client import AdminClient
from llmgw.admin.schema import EventInfo, LogLines
from llmgw.cli.ctl.asking import Target, ask
from llmgw.cli.output import at, note, print_json_line, print_text, printable
from llmgw.core.errors import UpstreamFailedError


def logs(target: Target, subject: str, lines: int, *, follow: bool, as_json: bool) -> None:
    """Print a shard's last lines, and to follow, those to come."""

    async def work(client: AdminClient) -> str:
        error = ""
        async for piece in client.logs(subject, lines, follow=follow):
            _print_piece(piece, as_json=as_json)
            error = piece.error
        return error

    if error := ask(target, work):
        raise UpstreamFailedError(f"the log of {subject} ends here: {error}")


def _print_piece(piece: LogLines, *, as_json: bool) -> None:
    if as_json:
        print_json_line(piece)
        return
    for line in piece.lines:
        print_text(printable(line))


def events(target: Target, subject: str | None, lines: int, *, follow: bool, as_json: bool) -> None:
    """Print the newest events, and to follow, those to come."""

    async def work(client: AdminClient) -> None:
        found = await client.events(limit=lines, subject=subject)
        for event in found:
            _print_event(event, as_json=as_json)
        if not found and not follow and not as_json:
            note("nothing has happened yet")
        if follow:
            after = found[-1].id if found else 0
            async for event in client.follow_events(after, subject):
                _print_event(event, as_json=as_json)

    ask(target, work)


def _print_event(event: EventInfo, *, as_json: bool) -> None:
    if as_json:
        print_json_line(event)
    else:
        print_text(f"{at(event.at_wall_s)}  {event.subject}: {printable(event.what)}")
