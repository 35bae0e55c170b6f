"""Whether a server speaks TLS: gRPC, asked to connect in plain, only sees that such a server hangs up."""

from __future__ import annotations

import ssl

import anyio

__all__ = ["speaks_tls"]


async def speaks_tls(host: str, port: int, timeout: float) -> bool:
    """Return whether the server at `host` and `port` begins a TLS handshake within `timeout` seconds.

    Nothing is sent but the handshake, and its certificate is not looked at.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with anyio.move_on_after(timeout):
        try:
            stream = await anyio.connect_tcp(host, port, ssl_context=context, tls_standard_compatible=False)
        except ssl.SSLError as error:
            # An alert is TLS as well: such a server wants our certificate, or another version.
            return "ALERT" in (error.reason or "").upper()
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream):
            return False
        await stream.aclose()
        return True
    return False
