"""TLS contexts for API servers."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from aioresolve._core.network import close_one_sidedly
from aioresolve._core.redaction import Confidential
from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")
_TIME = rb"(?:\x17\x0d\d{12}|\x18\x0f\d{14})Z"
_VALIDITY = re.compile(_TIME + rb"(?:\x17\x0d(\d{12}Z)|\x18\x0f(\d{14}Z))")


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate chain and its key, as PEM; `where` says where they come from, for errors."""

    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)
    where: str = field(compare=False)


class Trust(Confidential, frozen=True):
    """How the certificate of the server is verified.

    Attributes:
        authorities: CA certificates as PEM; None for those of the system.
        where: where they come from, for errors.
        verify: False accepts any server (`insecure-skip-tls-verify`).
    """

    authorities: bytes | None = None
    where: str = "the system's roots"
    verify: bool = True


def new_ssl_context(trust: Trust, certificate: ClientCertificate | None) -> ssl.SSLContext:
    """Return a TLS context for a client that verifies the server by `trust` and presents `certificate`.

    As in client-go, the CA of a cluster replaces the roots of the system, and any certificate in the bundle
    is an anchor, even if it is not a self-signed root; and the common name of a certificate is not a host
    name, for which it must have a subject alternative name. Strict RFC 5280 checks are off: the CAs of many
    clusters lack the extensions that they require. Blocking: for worker threads.

    Raises:
        ConfigurationError: a certificate or key is not PEM, the two do not match, or the key is encrypted.
    """
    context = close_one_sidedly(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.set_alpn_protocols(["http/1.1"])
    context.hostname_checks_common_name = False
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    if not trust.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif trust.authorities is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, trust.authorities, trust.where)
    if certificate is not None:
        _load_certificate(context, certificate)
    return context


def _load_authorities(context: ssl.SSLContext, authorities: bytes, where: str) -> None:
    # Comments between the certificates may have any encoding; the certificates are ASCII. As in Go, an
    # invalid certificate in a bundle is skipped.
    num_loaded, reason = 0, "no certificate"
    for certificate in _CERTIFICATE.findall(authorities.decode("ascii", "ignore")):
        try:
            context.load_verify_locations(cadata=certificate)
            num_loaded += 1
        except (ssl.SSLError, ValueError) as error:
            reason = _reason(error)
    if not num_loaded:
        raise ConfigurationError(
            f"{where} contains no valid CA certificate ({reason})",
            hint="It must be PEM: -----BEGIN CERTIFICATE-----",
        )


def _load_certificate(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    encrypted = False

    def no_password() -> str:
        # Without a callback OpenSSL would read the password from the terminal.
        nonlocal encrypted
        encrypted = True
        return ""

    try:
        with _file_of(certificate.chain.rstrip() + b"\n" + certificate.key) as path:
            context.load_cert_chain(path, password=no_password)
    except (OSError, ValueError) as error:
        if encrypted:
            raise ConfigurationError(
                f"{certificate.where}: the key is encrypted, which is not supported",
                hint="Decrypt it with `openssl pkey -in KEY -out DECRYPTED` and name that file.",
            ) from error
        raise ConfigurationError(
            f"{certificate.where}: certificate and key cannot be used ({_reason(error)})",
            hint="Both must be PEM, and the key must belong to the certificate.",
        ) from error


def _reason(error: Exception) -> str:
    """Return OpenSSL's name for an error, such as KEY_VALUES_MISMATCH."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    return str(reason).partition(" (_ssl")[0]


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """Yield the path of a private file with this content, which exists only inside the block.

    `load_cert_chain` reads only files. The file is in memory if the system supports that, so that a process
    that is killed leaves no key on a disk.
    """
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("client-certificate")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.TemporaryDirectory(prefix="aioresolve-") as folder:  # only its owner can read it
        path = os.path.join(folder, "client.pem")
        with open(path, "xb") as file:
            file.write(content)
        yield path


def end_of_certificate(pem: bytes) -> float | None:
    """Return when the first certificate of a chain expires, in seconds of Unix time; None if not known.

    Python's ssl module shows only certificates that were verified. The two times of the validity (RFC 5280
    section 4.1.2.5) follow each other in the DER form: UTCTime before 2050, GeneralizedTime after it.
    """
    found = _CERTIFICATE.search(pem.decode("ascii", "replace"))
    with suppress(ValueError):
        der = ssl.PEM_cert_to_DER_cert(found[0]) if found is not None else b""
        if (validity := _VALIDITY.search(der)) is not None:
            short, long = validity.groups(default=b"")
            text = (long or b"20" + short).decode("ascii")
            return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    return None
