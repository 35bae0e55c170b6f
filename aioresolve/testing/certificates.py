"""TLS certificates for the loopback servers, issued by an authority that trustme creates."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from aioresolve.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class CertificateAuthority:
    """A new certificate authority, with a server certificate for the loopback addresses and `hostnames`."""

    def __init__(self, hostnames: Sequence[str] = ()) -> None:
        try:
            import trustme
        except ImportError as error:
            raise MissingDependencyError(
                "a loopback server with TLS needs trustme", hint="Run: pip install 'aioresolve[testing]'"
            ) from error
        self._ca = trustme.CA()
        self._server = self._ca.issue_cert(*_LOOPBACK, *hostnames)

    def __repr__(self) -> str:
        return "CertificateAuthority()"

    @property
    def pem(self) -> str:
        """The certificate of the authority itself, which a client has to trust."""
        return str(self._ca.cert_pem.bytes().decode())

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS settings of a server that accepts, but does not require, client certificates."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._server.configure_cert(context)
        context.load_verify_locations(cadata=self.pem)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def server_certificate(self) -> tuple[bytes, bytes]:
        """Return the private key and the certificate chain of the server, both PEM, as gRPC expects them."""
        chain = b"".join(blob.bytes() for blob in self._server.cert_chain_pems)
        return self._server.private_key_pem.bytes(), chain

    def client_certificate(self, user: str) -> tuple[str, str]:
        """Return a certificate chain and its private key, both PEM, with the common name `user`."""
        issued = self._ca.issue_cert(common_name=user)
        chain = "".join(blob.bytes().decode() for blob in issued.cert_chain_pems)
        return chain, issued.private_key_pem.bytes().decode()
