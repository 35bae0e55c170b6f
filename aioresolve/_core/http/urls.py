"""URLs of servers and proxies."""

from __future__ import annotations

import ipaddress
import urllib.request

from yarl import URL

from aioresolve.errors import ConfigurationError


def origin(url: str) -> str:
    """Return `scheme://host:port` of a URL, without user, password and path."""
    try:
        return f"{URL(url).origin()}"
    except ValueError as error:
        raise ConfigurationError("invalid URL of a server", hint="Write it as https://HOST/PATH.") from error


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine: `localhost`, `127.0.0.1`, `::1`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def environment_proxy(url: URL) -> str | None:
    """Return the URL of the proxy that the environment configures for `url`; None for this machine.

    The variables and their precedence are those of urllib, and so of requests.
    """
    host = url.host or ""
    proxy = urllib.request.getproxies().get(url.scheme)
    if not proxy or is_loopback(host) or urllib.request.proxy_bypass(f"{host}:{url.port}"):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"the environment variable {url.scheme.upper()}_PROXY is not the URL of an HTTP proxy",
            hint="Set an http:// or https:// proxy, or exempt the host in NO_PROXY.",
        )
    return proxy
