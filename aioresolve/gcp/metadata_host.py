"""Where the metadata server is. Pure but for the environment it is given."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from yarl import URL

__all__ = ["is_metadata_host", "metadata_host"]

DEFAULT_HOST = "metadata.google.internal"

LINK_LOCAL = frozenset({DEFAULT_HOST, "169.254.169.254", "fd20:ce::254", "fd00:ec2::254"})
"""Where the metadata servers of Google, Azure and AWS are: they speak plain http, to this machine alone."""

_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


def metadata_host(environ: Mapping[str, str], given: str | None = None) -> str:
    """Return the metadata server, `host` or `host:port`, as google-auth finds it.

    It is the one given, else $GCE_METADATA_HOST, else $GCE_METADATA_IP, else `metadata.google.internal`.

    Raises:
        ConfigurationError: the one named is none, or NO_GCE_CHECK=true forbids looking for one.
    """
    if given is None and environ.get("NO_GCE_CHECK", "").lower() == "true":
        raise ConfigurationError(
            "the metadata server is not asked, for NO_GCE_CHECK=true says that this is no machine of Google"
            " Cloud; unset it, or give project, zone and credentials yourself"
        )
    for where, host in (
        ("host", given),
        ("the environment variable GCE_METADATA_HOST", environ.get("GCE_METADATA_HOST")),
        ("the environment variable GCE_METADATA_IP", environ.get("GCE_METADATA_IP")),
    ):
        if host and _HOST.fullmatch(host) is None:
            raise ConfigurationError(f"{where} is {host!r}; write the metadata server as HOST or HOST:PORT")
        if host:
            return host
    return DEFAULT_HOST


def is_metadata_host(url: URL) -> bool:
    """Whether `url` is a metadata server's, to which no request leaves the machine that hosts this one."""
    environment = {os.environ.get("GCE_METADATA_HOST"), os.environ.get("GCE_METADATA_IP")}
    return url.host in LINK_LOCAL or url.authority in environment
