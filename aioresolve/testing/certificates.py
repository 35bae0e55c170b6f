"""Certificates for the loopback servers: an authority of their own, made by trustme."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from aioresolve.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CertificateAuthority"]

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class CertificateAuthority:
    """A certificate authority that nobody else trusts, with a certificate for the loopback addresses.

    Raises:
        MissingDependencyError: trustme is not installed.
    """

    def __init__(self, hostnames: Sequence[str] = ()) -> None:
        self._ca = _trustme().CA()
        self._server = self._ca.issue_cert(*_LOOPBACK, *hostnames)

    def __repr__(self) -> str:
        return "CertificateAuthority()"

    @property
    def pem(self) -> str:
        """The authority's own certificate: what a client has to trust."""
        return str(self._ca.cert_pem.bytes().decode())

    def server_context(self) -> ssl.SSLContext:
        """TLS for the server; a client may show a certificate of this authority and need not."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._server.configure_cert(context)
        context.load_verify_locations(cadata=self.pem)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def server_certificate(self) -> tuple[bytes, bytes]:
        """Private key and certificate chain, both PEM, of the server, as gRPC takes them."""
        chain = b"".join(blob.bytes() for blob in self._server.cert_chain_pems)
        return self._server.private_key_pem.bytes(), chain

    def client_certificate(self, user: str) -> tuple[str, str]:
        """Certificate chain and private key, both PEM, of the client whose common name is `user`."""
        issued = self._ca.issue_cert(common_name=user)
        chain = "".join(blob.bytes().decode() for blob in issued.cert_chain_pems)
        return chain, issued.private_key_pem.bytes().decode()


def _trustme() -> Any:
    try:
        import trustme
    except ImportError as error:
        raise MissingDependencyError(
            "a loopback server with TLS needs trustme: pip install 'aioresolve[testing]'"
        ) from error
    return trustme
