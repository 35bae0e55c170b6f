"""Clients of other Kubernetes libraries for a loopback server, to pass as `override_client=`."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from .loopback import TOKEN, client_sockets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .loopback import Loopback

__all__ = ["async_client", "sync_client"]


@asynccontextmanager
async def async_client(loopback: Loopback, *, token: str = TOKEN, **fields: Any) -> AsyncIterator[Any]:
    """Yield a kubernetes_asyncio ApiClient; `fields` are set on its Configuration."""
    from kubernetes_asyncio import client

    try:
        async with client.ApiClient(
            _configure(client.Configuration(), loopback, token, fields)
        ) as api_client:
            yield api_client
    finally:
        # aiohttp does not wait for the connections of cancelled requests, and TLS takes a round trip to close
        # each. An event loop that ends before leaves a socket open.
        with anyio.fail_after(30, shield=True):
            while client_sockets(loopback):  # noqa: ASYNC110 - aiohttp reports no event
                await anyio.sleep(0.01)


def sync_client(loopback: Loopback, *, token: str = TOKEN, **fields: Any) -> Any:
    """Return a kubernetes ApiClient that does not retry; `fields` are set on its Configuration."""
    from kubernetes import client

    settings = {"retries": False, **fields}
    return client.ApiClient(_configure(client.Configuration(), loopback, token, settings))


def _configure(configuration: Any, loopback: Loopback, token: str, fields: dict[str, Any]) -> Any:
    authority = loopback.kubeconfig.with_name("ca.crt")
    authority.write_text(loopback.server.ca_pem)
    configuration.host = loopback.server.url
    configuration.ssl_ca_cert = str(authority)
    # kubernetes before 36 calls it "authorization".
    configuration.api_key = dict.fromkeys(("BearerToken", "authorization"), token)
    configuration.api_key_prefix = dict.fromkeys(configuration.api_key, "Bearer")
    for name, value in fields.items():
        setattr(configuration, name, value)
    return configuration
