"""What an X.509 certificate says about itself, read without verifying it.

Python's ssl module shows the content of a certificate only after it was verified, and not at all for a
client's own. Format: RFC 5280 section 4.1, in DER (ITU-T X.690).
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

VERSION, EXTENSIONS = 0xA0, 0xA3
GENERALIZED_TIME = 0x18
DNS_NAME, IP_ADDRESS = 0x82, 0x87
ALTERNATIVE_NAMES = bytes([0x55, 0x1D, 0x11])
"""The object identifier of the extension with the host names, 2.5.29.17."""

MAX_NAMES = 8
"""How many names a description lists."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The validity of a certificate, and the host names and addresses that it is for."""

    not_before: datetime
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
        if fields[0].tag == VERSION:
            fields = fields[1:]
        # serialNumber, signature, issuer, validity, ...
        not_before, not_after = map(_time, _elements(fields[3].content)[:2])
        extensions = [field.content for field in fields if field.tag == EXTENSIONS]
        names = [name for content in extensions for name in _alternative_names(content)]
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError("not a certificate") from error
    return Certificate(not_before, not_after, tuple(names))


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
    if element.tag == GENERALIZED_TIME:
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    # Two digits: RFC 5280 section 4.1.2.5.1, which is not the rule of %y.
    century = "20" if int(text[:2]) < 50 else "19"
    return datetime.strptime(century + text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _alternative_names(extensions: bytes) -> list[str]:
    names = []
    for extension in _elements(_elements(extensions)[0].content):
        identifier, *_, value = _elements(extension.content)
        if identifier.content == ALTERNATIVE_NAMES:
            for name in _elements(_elements(value.content)[0].content):
                if name.tag == DNS_NAME:
                    names.append(name.content.decode("ascii"))
                elif name.tag == IP_ADDRESS:
                    names.append(str(ipaddress.ip_address(name.content)))
    return names
