"""The sockets of servers."""

from __future__ import annotations

import socket

from ..facts.errors import UserError

LOCAL = ("127.0.0.1", "localhost", "::1")  # addresses that no other machine reaches


def opened_socket(host: str, port: int, *, of: str) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. UserError, which names the flag `of`, where none can be
    had."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise UserError(f"{of} {host}:{port}: {error}; choose another port, or 0 for a free one") from error


def url_of(host: str, listening: socket.socket) -> str:
    """The URL of a socket of `opened_socket`."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
