"""Binding the port first, before anything slow: what is wrong with an address is said within the first second."""

import contextlib
import errno
import ipaddress
import os
import socket
from pathlib import Path

from tuili.config.options import ServerOptions
from tuili.errors import ConfigError

BACKLOG = 2048

Address = tuple[socket.AddressFamily, str]


def open_sockets(options: ServerOptions) -> list[socket.socket]:
    """Listening sockets on every address of ``options.host`` (port 0: one free port for all of them).

    Raises ConfigError for a host that does not resolve, is not this machine's, or is open to others without a key; and for a
    port that is taken or not allowed.
    """
    addresses = _resolve(options.host)
    open_to_others = [address for _, address in addresses if not ipaddress.ip_address(address.partition("%")[0]).is_loopback]
    if open_to_others and not options.api_keys:
        raise ConfigError(
            f"host {options.host} would let other machines in without a key; add --api-key KEY, or listen on 127.0.0.1 only"
        )
    sockets: list[socket.socket] = []
    port = options.port
    try:
        for family, address in addresses:
            sockets.append(_listen(family, address, port))
            port = port or sockets[0].getsockname()[1]
    except BaseException:
        for opened in sockets:
            opened.close()
        raise
    return sockets


def shown_url(host: str, sockets: list[socket.socket]) -> str:
    """The address to type: the host as it was given, with the port that was bound."""
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    return f"http://{shown}:{sockets[0].getsockname()[1]}"


def _resolve(host: str) -> list[Address]:
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"host {host!r} does not resolve ({error}); use an address of this machine, such as 127.0.0.1"
        ) from None
    usable = (socket.AF_INET, socket.AF_INET6)
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found if family in usable))


def _listen(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # "::" alone means all addresses, IPv4 ones too; beside an IPv4 socket it has to keep to its own.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != "::"))
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(_explain(error, address, port)) from None
    listener.setblocking(False)
    return listener


def _explain(error: Exception, address: str, port: int) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EADDRINUSE:
        return f"port {port} on {address} is taken{port_owner(port)}; stop that, or choose another port with --port"
    if code == errno.EACCES:
        return f"port {port} needs special rights on this machine; choose one above 1023 with --port"
    if code == errno.EADDRNOTAVAIL:
        return f"{address} is not an address of this machine; use 127.0.0.1, or 0.0.0.0 with a key for all of its addresses"
    return f"cannot listen on {address} port {port}: {error}; choose another with --host and --port"


def port_owner(port: int) -> str:
    """`` by tuili serve smollm2 (process 4711)``, or nothing where the system does not tell. Linux only; source: proc(5)."""
    inodes = _listening_inodes(port)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor).removeprefix("socket:[").rstrip("]") in inodes:
                        return f" by {_command(process)} (process {process.name})"
    return ""


def _listening_inodes(port: int) -> set[str]:
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                columns = line.split()
                # Local address as ADDRESS:PORT in hexadecimal; state 0A is LISTEN.
                if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:
                    inodes.add(columns[9])
    return inodes


def _command(process: Path) -> str:
    """The words of a command line before its first option: what follows may be a key or a password."""
    words = [word for word in (process / "cmdline").read_bytes().decode(errors="replace").split("\0") if word]
    if not words:
        return (process / "comm").read_text().strip()
    shown = [Path(words[0]).name]
    for word in words[1:6]:
        if word.startswith("-") and word != "-m":  # python -m tuili serve …
            break
        shown.append(Path(word).name if word.startswith("/") else word)
    return " ".join(shown)[:100]
