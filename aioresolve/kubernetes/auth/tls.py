"""SSL contexts for API servers: whose certificates we believe, and which one we show. For worker threads.

As client-go's: a cluster's CA is believed instead of the system's roots, and a certificate in that bundle
is an anchor even where it is no self-signed root. Strict RFC 5280 checks stay off: the CAs of many clusters
lack the extensions they ask for.
"""

from __future__ import annotations

import os
import ssl
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aioresolve._core.http.tls import closing_one_sidedly
from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .identity import ClientCertificate

__all__ = ["Trust", "ssl_context"]


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose certificates are believed.

    Attributes:
        authorities: CA certificates as PEM; None for the system's roots.
        where: the place they came from, for messages.
        verify: False believes anybody (`insecure-skip-tls-verify`).
    """

    authorities: bytes | None = field(default=None, repr=False)
    where: str = "the system's roots"
    verify: bool = True


def ssl_context(trust: Trust, certificate: ClientCertificate | None) -> ssl.SSLContext:
    """Return a client's context that believes `trust` and shows `certificate`.

    Raises:
        ConfigurationError: a certificate or key is no PEM, the two do not match, or the key is encrypted.
    """
    context = closing_one_sidedly(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.set_alpn_protocols(["http/1.1"])
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    if not trust.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif trust.authorities is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _believe(context, trust.authorities, trust.where)
    if certificate is not None:
        _show(context, certificate)
    return context


def _believe(context: ssl.SSLContext, authorities: bytes, where: str) -> None:
    try:
        # Comments between the certificates may be in any encoding; the certificates are ASCII.
        context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"{where} holds no CA certificate that can be read ({_reason(error)}); "
            "it must be PEM: -----BEGIN CERTIFICATE-----"
        ) from error


def _show(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    encrypted = False

    def no_password() -> str:
        # Without a callback OpenSSL would ask for the password at the terminal.
        nonlocal encrypted
        encrypted = True
        return ""

    try:
        with _path_of(certificate.chain.rstrip() + b"\n" + certificate.key) as path:
            context.load_cert_chain(path, password=no_password)
    except (OSError, ValueError) as error:
        cause, reason = error, _reason(error)
    else:
        return
    if encrypted:
        raise ConfigurationError(
            f"{certificate.where}: the key is encrypted, and its password is never asked for; "
            "decrypt it with `openssl pkey -in KEY -out DECRYPTED` and name that file"
        ) from cause
    raise ConfigurationError(
        f"{certificate.where}: certificate and key cannot be used ({reason}); "
        "both must be PEM, and the key the certificate's own"
    ) from cause


def _reason(error: Exception) -> str:
    """OpenSSL's word for what is wrong, such as KEY_VALUES_MISMATCH."""
    word = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    return str(word).partition(" (_ssl")[0]


@contextmanager
def _path_of(content: bytes) -> Iterator[str]:
    """Yield the path of a private file with that content, for as long as the block runs.

    `load_cert_chain` reads files only. Where the system can, the file is in memory, so that a process
    killed meanwhile leaves no key on a disk.
    """
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("client-certificate")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="aioresolve-") as folder:
        path = os.path.join(folder, "client.pem")
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
        yield path
