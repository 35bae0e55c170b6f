"""Clients of other Kubernetes libraries for a loopback server, to pass as `override_client=`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .loopback import TOKEN

if TYPE_CHECKING:
    from .loopback import Loopback

__all__ = ["async_client", "sync_client"]


def async_client(loopback: Loopback, *, token: str = TOKEN, **fields: Any) -> Any:
    """Return a kubernetes_asyncio ApiClient; `fields` are set on its Configuration."""
    from kubernetes_asyncio import client

    return client.ApiClient(_configure(client.Configuration(), loopback, token, fields))


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
