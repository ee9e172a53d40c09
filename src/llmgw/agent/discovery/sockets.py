"""Who listens where: listening TCP sockets from /proc/net, and whose process holds them."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

LISTEN: Final = "0A"
_V4_HEX: Final = 8


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening socket."""

    address: str
    port: int
    inode: int

    @property
    def everywhere(self) -> bool:
        """Whether it listens on every address."""
        return ip_address(self.address).is_unspecified


class Ownership(StrEnum):
    """Whether what listens on a port is ours."""

    OURS = "ours"
    STRANGER = "stranger"
    NOBODY = "nobody"
    CANNOT_TELL = "cannot_tell"


def listeners(proc: Path) -> tuple[Listener, ...]:
    """Return all listening TCP sockets; raise OSError where the kernel does not say."""
    found = _parse((proc / "net/tcp").read_text(encoding="ascii"))
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        found += _parse((proc / "net/tcp6").read_text(encoding="ascii"))
    return tuple(found)


def _parse(table: str) -> list[Listener]:
    found: list[Listener] = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != LISTEN:
            continue
        address, _, port = fields[1].partition(":")
        found.append(Listener(_address(address), int(port, 16), int(fields[9])))
    return found


def _address(text: str) -> str:
    """Return the address of /proc/net: 32-bit words in the machine's (little-endian) order."""
    raw = b"".join(bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    if len(text) == _V4_HEX:
        return str(IPv4Address(raw))
    six = IPv6Address(raw)
    return str(six.ipv4_mapped or six)


def on(address: str, port: int, table: Iterable[Listener]) -> tuple[Listener, ...]:
    """Return the sockets that a connection to this address may reach: exact ones come first."""
    here = [listener for listener in table if listener.port == port]
    exact = tuple(listener for listener in here if listener.address == address)
    return exact or tuple(listener for listener in here if listener.everywhere)


@dataclass(frozen=True, slots=True)
class Held:
    """What some processes hold open."""

    where: Mapping[int, tuple[int, int]]
    """By socket inode: a pid and its file descriptor."""
    complete: bool
    """Whether every process could be looked into."""


def held_sockets(proc: Path, pids: Iterable[int]) -> Held:
    """Return the sockets that these processes hold."""
    where: dict[int, tuple[int, int]] = {}
    complete = True
    for pid in pids:
        try:
            entries = list((proc / str(pid) / "fd").iterdir())
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            complete = False
            continue
        for entry in entries:
            if (inode := socket_inode(entry)) is not None:
                where[inode] = (pid, int(entry.name))
    return Held(where, complete)


def socket_inode(descriptor: Path) -> int | None:
    """Return the inode of the socket behind /proc/PID/fd/N; None if it is none."""
    try:
        target = str(descriptor.readlink())
    except OSError:
        return None
    if target.startswith("socket:["):
        return int(target[len("socket:[") : -1])
    return None


def ownership(listening: Iterable[Listener], held: Held) -> Ownership:
    """Say whether every one of these sockets is held by the processes that were looked into."""
    inodes = [listener.inode for listener in listening]
    if not inodes:
        return Ownership.NOBODY
    if all(inode in held.where for inode in inodes):
        return Ownership.OURS
    return Ownership.STRANGER if held.complete else Ownership.CANNOT_TELL
