"""What authenticates a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from aioresolve._core.redaction import Confidential

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from .response import Response


class Credentials(Confidential, frozen=True):
    """What one request is sent with: headers, and a TLS context, which may have a client certificate.

    Without a TLS context, that of the client is used.
    """

    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    ssl_context: ssl.SSLContext | None = None


class Auth:
    """The credentials of a request. This class sends none."""

    async def credentials(self) -> Credentials:
        """Return what authenticates the request: once for each, so that its parts belong together."""
        return Credentials()

    async def renew(self, rejected: Credentials, response: Response) -> Credentials | None:
        """Renew the credentials after a 401 for `rejected`.

        Returns what to send the request with once more; None if there are no credentials to renew.
        """
        return None

    async def renew_trust(self, rejected: ssl.SSLContext) -> ssl.SSLContext | None:
        """Read the certificate authorities again after the TLS context `rejected` did not accept a server.

        Returns the TLS context to send the request with once more; None if they are the same.
        """
        return None


NO_AUTH = Auth()
