"""Parses addresses that users write, such as `tcp://HOST:PORT`, and opens a socket that listens at a host and port.

Names what is wrong with an address, where `name` is the flag or key that the user set. Also decides which addresses
other machines can reach.
"""

import errno
import ipaddress
import re
import socket
from typing import NamedTuple

from protocol.errors import AddressInUse, ConfigError

MAX_PORT = 65535
_ENDPOINT = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+(?:%[0-9A-Za-z_.-]+)?\]|[^\s\[\]:/@]+):([0-9]{1,5})")


class HostPort(NamedTuple):
    """Where a socket listens; an IPv6 host without brackets."""

    host: str
    port: int


def split_endpoint(endpoint: str, name: str, *, min_port: int = 0) -> HostPort:
    """The parts of "tcp://HOST:PORT". An IPv6 host is written in brackets. ConfigError names `name`."""
    parts = _ENDPOINT.fullmatch(endpoint)
    if parts is None or not min_port <= int(parts[2]) <= MAX_PORT:
        ports = f" with a port from {min_port} to {MAX_PORT}" if parts is not None else ""
        raise ConfigError(f"{name}: got {endpoint[:80]!r}, expected tcp://HOST:PORT{ports}", param=name.lstrip("-"))
    return HostPort(parts[1].strip("[]"), int(parts[2]))


def refuse_exposed(host: str, name: str, *, has_keys: bool, trust_network: bool) -> None:
    """ConfigError if sockets for workers would be bound, without keys, at a `host` that other machines can reach."""
    if not (has_keys or trust_network or is_loopback(host)):
        raise ConfigError(
            f"{name}: {host[:80]!r} can be reached from other machines, where any process could pose as a worker;"
            " expected --keys DIR (`baton keys new` makes one), an address of this machine alone such as 127.0.0.1,"
            " or --trust-network",
            param="keys",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a socket bound at `host`: each address of the name is a loopback address.
    False for a name without addresses."""
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries]
    except (OSError, UnicodeError, ValueError):
        return False
    return bool(addresses) and all(address.is_loopback for address in addresses)


def listen(host: str, port: int, backlog: int, *, host_flag: str = "host", port_flag: str = "port") -> socket.socket:
    """A socket that listens at `host` and `port`; for port 0 the system chooses one.

    AddressInUse if another process has the port, ConfigError if no socket can listen there for another reason. The
    message names `host_flag` or `port_flag`."""
    try:
        if not host:
            raise OSError("it is empty")
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{host_flag}: got {host[:80]!r}, expected an address of this machine ({error})", param="host"
        ) from error

    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error, host_flag, port_flag) from error
    return listener


def _cannot_listen(host: str, port: int, error: OSError, host_flag: str, port_flag: str) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        advice = "choose another port (0 lets the system choose)"
        return AddressInUse(f"{port_flag}: {port} on {host} is in use by another process; {advice}", param="port")
    if error.errno == errno.EACCES:
        return ConfigError(f"{port_flag}: {port} needs privileges; choose one above 1023", param="port")
    return ConfigError(f"{host_flag}: cannot listen on {host}:{port}: {error.strerror or error}", param="host")
