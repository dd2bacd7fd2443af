"""Addresses that a server listens on."""

from __future__ import annotations

import errno
import socket

from longturn.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    """Take an address, so that it is known to be free before a model is loaded. Nobody can connect yet.

    Port 0 is any free one. Raises ConfigError when the address cannot be had.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"port {port} does not exist: choose one from 0 to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # Of a name with several addresses take IPv4: that is what clients try who write 127.0.0.1.
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        # Only where the protocol is named does asyncio turn Nagle's algorithm off, which adds 40 ms to a chunk.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise no_address(host, port, error) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """Where a client finds the server on `sock`."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def no_address(host: str, port: int, error: OSError) -> ConfigError:
    """Why it cannot be had, for people."""
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"{host}:{port} is in use by another program: stop it, or choose another --port")
    return ConfigError(f"cannot listen on {host}:{port} ({error.strerror}): choose another --host or --port")
