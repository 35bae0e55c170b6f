"""Where TPU workers listen, as people and environment variables write it: text -> `host:port`. Pure.

`grpc://10.0.0.1:8470,grpc://10.0.0.2` is how TensorFlow's Cloud TPU client writes it; 8470 is the port where
none is given.
"""

from __future__ import annotations

import ipaddress
import re

from aioresolve.errors import ConfigurationError
from aioresolve.spec import host_port

__all__ = ["SCHEME", "TPU_PORT", "is_address", "worker_address", "worker_addresses", "worker_host"]

TPU_PORT = 8470
"""The port of a TPU worker's TensorFlow server where nothing else is said."""

SCHEME = "grpc://"
"""What TensorFlow puts before a worker's address."""

_ADDRESS = re.compile(r"(?P<host>\[[^\]\s]+\]|[^\s:/\[\],]+)(?::(?P<port>[0-9]{1,5}))?")


def is_address(text: str) -> bool:
    """Whether `text` is to be read as an address rather than a TPU's name, which has no `:` and no `.`."""
    return text.startswith(SCHEME) or ("/" not in text and not {":", "."}.isdisjoint(text))


def worker_addresses(text: str, where: str) -> tuple[str, ...]:
    """Return the addresses in a comma-separated list, each `host:port`.

    Args:
        text: the list.
        where: what it is, for the error message.

    Raises:
        ConfigurationError: an entry is no address; it names the entry.
    """
    return tuple(worker_address(entry.strip(), where) for entry in text.split(","))


def worker_address(text: str, where: str, port: int = TPU_PORT) -> str:
    """Return `host:port` of one address, `port` where it has none.

    Raises:
        ConfigurationError: it is no address.
    """
    host, own_port = _host_and_port(text, where)
    return host_port(host, port if own_port is None else own_port)


def worker_host(text: str, where: str) -> str:
    """Return the host of one address alone, whatever port it has.

    Raises:
        ConfigurationError: it is no address.
    """
    return _host_and_port(text, where)[0]


def _host_and_port(text: str, where: str) -> tuple[str, int | None]:
    bare = text.removeprefix(SCHEME)
    if _is_ipv6(bare):
        return bare, None
    found = _ADDRESS.fullmatch(bare)
    port = int(found["port"]) if found is not None and found["port"] is not None else None
    if found is None or port == 0 or (port or 1) > 65535:
        raise ConfigurationError(
            f"{where}: {text!r} is no worker's address; give host:port such as '10.0.0.7:8470', an IPv6"
            " address in brackets"
        )
    return found["host"], port


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
