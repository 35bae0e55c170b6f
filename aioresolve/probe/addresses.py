"""`host:port` of a worker, taken apart."""

from __future__ import annotations

import re

from aioresolve.errors import ConfigurationError

__all__ = ["bare_address", "split_address"]

ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")


def bare_address(address: object) -> str:
    """Return `host:port` of a worker's address, which may have TensorFlow's `grpc://` before it.

    Raises:
        ConfigurationError: it is no such address.
    """
    bare = address.removeprefix("grpc://") if isinstance(address, str) else ""
    found = ADDRESS.fullmatch(bare)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise ConfigurationError(
            f"{address!r} is no worker's address; give host:port such as '10.0.0.7:8470', an IPv6 address in"
            " brackets"
        )
    return bare


def split_address(address: str) -> tuple[str, int]:
    """Return the host, an IPv6 address without its brackets, and the port of `host:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
