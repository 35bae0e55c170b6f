"""The URLs of API servers and proxies, and which servers the proxy of the environment is for.

A user name and password in a URL never appear in a message.
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import SplitResult, urlsplit

from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

DEFAULT_PORTS = {"http": 80, "https": 443}

_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_HOST_PORT = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:]*)):([^\[\]:]*)")


def validate_server_url(url: str, where: str | None, scheme: str = "http") -> str:
    """Return the URL of an API server: scheme, host, port and path prefix, without a trailing slash.

    `where` says where it comes from; None for the argument `server` of a resolver. `scheme` is that of a
    HOST:PORT.
    """
    has_scheme = "://" in url
    parts = _split(url if has_scheme else f"{scheme}://{url}")
    problem = "is not the URL of a server"
    if parts is not None and (has_scheme or parts.path in ("", "/")):
        if parts.username is None:
            # As in client-go, a query and a fragment are ignored. The scheme of `parts` is in lower case.
            return parts._replace(query="", fragment="").geturl().rstrip("/")
        problem = "contains a user name or password, which belong to the user of the kubeconfig"
    shown = "the URL" if "@" in url or "?" in url else repr(url)  # both may have a password
    raise ConfigurationError(
        f"{'' if where is None else f'{where}: '}{shown} {problem}",
        argument="server" if where is None else None,
        hint="Write https://HOST:PORT.",
    )


def validate_proxy_url(url: str, where: str) -> str:
    """Return `url`, the URL of a proxy, which may contain user name and password."""
    if _split(url) is None:
        # The error does not quote it: without a scheme it is not known which part may be a password.
        raise ConfigurationError(
            f"{where}: not the URL of an HTTP proxy; SOCKS proxies are not supported",
            hint="Write http://HOST:PORT.",
        )
    return url


def proxy_from_environment(server: str, environ: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy for `server` from HTTPS_PROXY or HTTP_PROXY; None for a direct connection.

    The rules are those of Go's `golang.org/x/net/http/httpproxy`, which client-go uses, so that NO_PROXY
    means the same as for kubectl. Requests to localhost and loopback addresses never use a proxy.
    """
    parts = urlsplit(server)
    names = (f"{parts.scheme.upper()}_PROXY", f"{parts.scheme}_proxy")
    name = next((name for name in names if environ.get(name)), None)
    if name is None or _is_exempt(parts, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
        return None
    proxy = environ[name] if "://" in environ[name] else f"http://{environ[name]}"
    return validate_proxy_url(proxy, f"environment variable {name}")


def is_host(host: str) -> bool:
    """Whether it is an address, or a name that TLS and the resolver accept."""
    if _ip_address(host) is not None:
        return True
    with suppress(UnicodeError):
        return _DNS_NAME.fullmatch(host if host.isascii() else host.encode("idna").decode()) is not None
    return False


def _split(url: str) -> SplitResult | None:
    """Return the parts of an http or https URL; None if it is not valid."""
    with suppress(ValueError):
        parts = urlsplit(url)
        is_valid = parts.scheme in DEFAULT_PORTS and parts.port != 0 and url.isprintable()
        return parts if is_valid and " " not in url and is_host(parts.hostname or "") else None
    return None


def _is_exempt(server: SplitResult, no_proxy: str) -> bool:
    host, port = server.hostname or "", str(server.port or DEFAULT_PORTS[server.scheme])
    address = _ip_address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    entries = [entry.strip().lower() for entry in no_proxy.split(",")]
    return "*" in entries or any(_matches(entry, host, address, port) for entry in entries)


def _matches(entry: str, host: str, address: IPAddress | None, port: str) -> bool:
    """Whether one entry of NO_PROXY exempts the host.

    An entry is a CIDR block, an address or a name, the last two with or without a port. A name exempts
    itself and its subdomains; one that starts with `.` or `*.` exempts its subdomains only.
    """
    if "/" in entry:
        with suppress(ValueError):
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        return False
    # Only an entry with a port may have brackets.
    found = _HOST_PORT.fullmatch(entry)
    name, entry_port = (found[1] or found[2], found[3]) if found else (entry, "")
    if not name or entry_port not in ("", port):
        return False
    if (exempt := _ip_address(name)) is not None:
        return exempt == address
    domain = name.removeprefix("*") if name.startswith("*.") else name
    return host.endswith(domain) if domain.startswith(".") else f".{host}".endswith(f".{domain}")


def _ip_address(host: str) -> IPAddress | None:
    """Return an address; None for a name."""
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None
