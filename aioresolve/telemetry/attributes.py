"""What is told of servers, paths and errors, in the words of OpenTelemetry's conventions. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

__all__ = ["Attributes", "error_type", "path_template", "server_attributes", "words"]

Attributes = dict[str, str | int]

NAMED = re.compile(
    r"(?<=/)(namespace|project|location|zone|node|queuedResource|instanceGroup|serviceAccount)s/[^/:]+"
)
"""What makes a path one of many: the name of something in a collection."""

PORTS = {"http": 80, "https": 443}


def server_attributes(url: str) -> Attributes:
    """Return what names a server, `scheme://host:port` or `//host:port`: its address and its port."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:  # no URL, which is for whoever asks there to say
        return {"server.address": ""}
    address: Attributes = {"server.address": parts.hostname or ""}
    return address if port is None else {**address, "server.port": port}


def path_template(path: str) -> str:
    """Return a path with `{namespace}` and the like in the place of names: there are few of these."""
    return NAMED.sub(r"\1s/{\1}", path)


def error_type(error: BaseException) -> str:
    """Return the `error.type` of what was raised: a status, a probe's code, a class, or `cancelled`."""
    if not isinstance(error, Exception):
        return "cancelled"
    told = getattr(error, "status", None) or getattr(error, "code", None)
    kind = type(error)
    return str(told) if isinstance(told, str | int) else f"{kind.__module__}.{kind.__qualname__}"


def words(error: BaseException) -> str:
    """Return what was raised, in words."""
    if not isinstance(error, Exception):
        return "it was given up"
    return str(error) or type(error).__name__
