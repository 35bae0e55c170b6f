"""A request to a token server, made for google-auth: only where it may go, and with a failure of ours."""

from __future__ import annotations

import logging
import ssl
import urllib.parse
from typing import TYPE_CHECKING

import anyio.to_thread
from yarl import URL

from aioresolve.errors import APIError, ConfigurationError
from aioresolve.http.tls import closing_one_sidedly
from aioresolve.retry import PASSING
from aioresolve.telemetry import HTTPRequest

from .metadata_host import is_metadata_host
from .transport import is_loopback, origin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .transport import Answer, HTTPClient

__all__ = ["ask_token_server"]

logger = logging.getLogger("aioresolve.gcp")

SECRET_FIELDS = frozenset(
    {"assertion", "refresh_token", "client_secret", "subject_token", "actor_token", "access_token"}
)
"""Fields of a token request that nobody may see."""


async def ask_token_server(
    client: HTTPClient,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    certificate: tuple[str, str] | None = None,
) -> Answer:
    """Return a token server's answer, unless its status is one that passes.

    Args:
        client: what it is asked with.
        method: such as `POST`.
        url: the whole URL.
        headers: what is sent.
        body: what is sent.
        certificate: the files of a client certificate and its key, as X.509 federation wants them shown.

    Raises:
        ConfigurationError: what is sent could be read on the way.
        APIError: the server is overloaded or not well.
        ResolveError: it was not reached.
    """
    host, path = checked_host(url), URL(url).path
    scope, context = f"{method} {path}", await _showing(certificate)
    with HTTPRequest(logger, method, host, path, scope=scope) as request:
        answer = await client.send(
            method,
            url,
            scope=scope,
            mend="see that the credentials name the right token server and that the network lets it through",
            headers=headers,
            body=body,
            secrets=_secrets(headers, body),
            ssl_context=context,
        )
        request.answered(answer.status, len(answer.body))
    if answer.status in PASSING:
        raise APIError(
            f"the token server {host} answered {answer.status} for {scope}; try again later",
            host=host,
            scope=scope,
            status=answer.status,
            retry_after=answer.retry_after,
            retryable=True,
        )
    return answer


def checked_host(url: str) -> str:
    """Return the origin of a token server's URL.

    Raises:
        ConfigurationError: what is sent there could be read on the way: it speaks plain http, and is neither
            this machine nor a metadata server.
    """
    host, parts = origin(url), URL(url)
    if parts.scheme != "https" and not is_loopback(parts.host or "") and not is_metadata_host(parts):
        raise ConfigurationError(
            f"the credentials name the token server {host}, to which nothing secret may go: it has no TLS;"
            " correct its URL to https:// in the credentials file"
        )
    return host


def _secrets(headers: Mapping[str, str], body: bytes | None) -> set[str]:
    """Return the texts of a token request that nobody may see, though the server echoes them."""
    values = [value for name, value in headers.items() if name.lower() == "authorization"]
    secrets = {secret for value in values for secret in (value, value.partition(" ")[2])}
    fields = urllib.parse.parse_qsl((body or b"").decode("utf-8", "replace"))
    return (secrets | {value for name, value in fields if name in SECRET_FIELDS}) - {""}


async def _showing(certificate: tuple[str, str] | None) -> ssl.SSLContext | None:
    """Return TLS that shows a client certificate."""
    if certificate is None:
        return None

    def load() -> ssl.SSLContext:
        context = closing_one_sidedly(ssl.create_default_context())
        context.load_cert_chain(*certificate)
        return context

    return await anyio.to_thread.run_sync(load)
