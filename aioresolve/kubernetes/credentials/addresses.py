"""Addresses of API servers and of the proxies before them, checked. Pure: strings in, strings out.

Which proxy the environment names follows Go's `golang.org/x/net/http/httpproxy`, which client-go uses,
so that NO_PROXY means here what it means to kubectl. User and password in an address are kept out of
every message.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["checked_proxy", "checked_server", "proxy_from_environment", "without_credentials"]

DEFAULT_PORTS = {"http": 80, "https": 443}


def checked_server(url: str, where: str) -> str:
    """Return an API server's URL: scheme, host, port and path prefix, without a slash at the end.

    Args:
        url: the URL as it was given.
        where: the place it was given in, for messages.

    Raises:
        ConfigurationError: it has no scheme or host, another scheme than http and https, a user, or a query.
    """
    parts = _split(url, where, example="https://10.0.0.1:6443")
    if parts.scheme not in DEFAULT_PORTS:
        raise ConfigurationError(
            f"{where} is {_shown(url)}, which starts with neither https:// nor http://; "
            "write https://HOST:PORT"
        )
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError(
            f"{where} holds a user before the host; move it to username and password of the user"
        )
    if "?" in url or "#" in url:
        raise ConfigurationError(f"{where} holds a '?' or '#'; write https://HOST:PORT and at most a path")
    return url.rstrip("/")


def checked_proxy(url: str, where: str) -> str:
    """Return a proxy's URL, which may hold user and password.

    Raises:
        ConfigurationError: it is no URL, or its scheme is another than http and https.
    """
    parts = _split(url, where, example="http://proxy:3128")
    if parts.scheme.startswith("socks"):
        raise ConfigurationError(
            f"{where} is a SOCKS proxy ({parts.scheme}), which is not supported; "
            "name an http:// or https:// proxy"
        )
    if parts.scheme not in DEFAULT_PORTS:
        raise ConfigurationError(f"{where} starts with neither http:// nor https://; write http://HOST:PORT")
    return url


def proxy_from_environment(server: str, environ: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy that HTTPS_PROXY or HTTP_PROXY names for `server`; None for none.

    NO_PROXY exempts hosts; localhost and loopback addresses never go through a proxy.

    Raises:
        ConfigurationError: the variable holds no http or https URL.
    """
    parts = urlsplit(server)
    names = (f"{parts.scheme.upper()}_PROXY", f"{parts.scheme}_proxy")
    name = next((name for name in names if environ.get(name)), None)
    if name is None or _is_exempt(parts, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
        return None
    proxy = environ[name]
    return checked_proxy(proxy if "://" in proxy else f"http://{proxy}", f"the environment variable {name}")


def without_credentials(url: str) -> str:
    """Return `url` without the user and password it may hold: for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _split(url: str, where: str, *, example: str) -> SplitResult:
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.hostname and parts.port != 0 and url.isprintable() and " " not in url:
            return parts
    raise ConfigurationError(f"{where} is {_shown(url)}, which is no URL; write it as {example}")


def _shown(url: str) -> str:
    """The URL as far as it cannot hold a secret."""
    return repr(url) if "@" not in url and "?" not in url else "not shown (it may hold a password)"


def _is_exempt(server: SplitResult, no_proxy: str) -> bool:
    host = (server.hostname or "").rstrip(".")
    port = server.port or DEFAULT_PORTS[server.scheme]
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(entry.strip().lower(), host, address, port) for entry in no_proxy.split(","))


def _matches(
    entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int
) -> bool:
    """Whether one entry of NO_PROXY exempts the host.

    It is `*`, a CIDR block, an address or a name, the last two with or without a port. A name exempts itself
    and its subdomains; one that starts with `.` or `*.` its subdomains only.
    """
    if entry == "*":
        return True
    if "/" in entry:
        return address is not None and _is_within(address, entry)
    name, port_given = _host_and_port(entry)
    if not name or port_given not in ("", str(port)):
        return False
    if (exempt := _address(name)) is not None:
        return exempt == address
    if address is not None:
        return False
    name = name.removeprefix("*")
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _host_and_port(entry: str) -> tuple[str, str]:
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    if entry.count(":") == 1:
        name, _, port = entry.partition(":")
        return name, port
    return entry, ""


def _is_within(address: ipaddress.IPv4Address | ipaddress.IPv6Address, block: str) -> bool:
    try:
        return address in ipaddress.ip_network(block, strict=False)
    except ValueError:
        return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
