"""TLS contexts for API servers, and what certificates say about themselves."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from aioresolve._core.network import close_one_sidedly
from aioresolve._core.redaction import Confidential
from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")

MAX_NAMES = 8
"""How many names the description of a certificate lists."""


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


# What a certificate says about itself, without verifying it. Python's ssl module shows the content of a
# certificate only after it was verified, and not at all for a client's own. Format: RFC 5280 section 4.1, in
# DER (ITU-T X.690).

_VERSION, _EXTENSIONS, _GENERALIZED_TIME, _DNS_NAME, _IP_ADDRESS = 0xA0, 0xA3, 0x18, 0x82, 0x87
_ALTERNATIVE_NAMES = bytes([0x55, 0x1D, 0x11])
"""The object identifier of the extension with the host names, 2.5.29.17."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The end of the validity of a certificate, and the host names and addresses that it is for."""

    not_after: datetime
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the names and the end of the validity as text."""
        shown = ", ".join(self.names[:MAX_NAMES]) or "no name"
        more = len(self.names) - MAX_NAMES
        return f"for {shown}{f' and {more} more' if more > 0 else ''}, valid until {self.not_after:%Y-%m-%d}"


def read_certificate(der: bytes) -> Certificate:
    """Return what a certificate says.

    Raises:
        ValueError: it is not a certificate.
    """
    try:
        fields = _elements(_elements(_elements(der)[0].content)[0].content)
        if fields[0].tag == _VERSION:
            fields = fields[1:]
        # serialNumber, signature, issuer, validity, ...
        not_after = _time(_elements(fields[3].content)[1])
        extensions = [field.content for field in fields if field.tag == _EXTENSIONS]
        names = [name for content in extensions for name in _alternative_names(content)]
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError("not a certificate") from error
    return Certificate(not_after, tuple(names))


class _Element(NamedTuple):
    tag: int
    content: bytes


def _elements(der: bytes) -> list[_Element]:
    """Return the elements that follow one another in `der`."""
    found, position = list[_Element](), 0
    while position < len(der):
        tag, length = der[position], der[position + 1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(der[position : position + size])
            position += size
        if length > len(der) - position:
            raise ValueError("not a certificate: it is too short")
        found.append(_Element(tag, der[position : position + length]))
        position += length
    return found


def _time(element: _Element) -> datetime:
    text = element.content.decode("ascii")
    if element.tag != _GENERALIZED_TIME:
        # Two digits: RFC 5280 section 4.1.2.5.1, which is not the rule of %y.
        text = ("20" if int(text[:2]) < 50 else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _alternative_names(extensions: bytes) -> list[str]:
    names = []
    for extension in _elements(_elements(extensions)[0].content):
        identifier, *_, value = _elements(extension.content)
        if identifier.content != _ALTERNATIVE_NAMES:
            continue
        for name in _elements(_elements(value.content)[0].content):
            if name.tag == _DNS_NAME:
                names.append(name.content.decode("ascii"))
            elif name.tag == _IP_ADDRESS:
                names.append(str(ipaddress.ip_address(name.content)))
    return names


def first_end(pem: bytes) -> float | None:
    """Return when the first certificate of a chain expires, in seconds of Unix time; None if not known."""
    found = _CERTIFICATE.search(pem.decode("ascii", "replace"))
    with suppress(ValueError):
        if found is not None:
            return read_certificate(ssl.PEM_cert_to_DER_cert(found[0])).not_after.timestamp()
    return None
