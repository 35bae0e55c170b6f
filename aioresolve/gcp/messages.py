"""JSON responses that all of Google's APIs have in common: failures and access tokens.

Formats: `google/rpc/error_details.proto`, RFC 6749.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

__all__ = ["AccessToken", "Failure", "decode_failure", "decode_json", "decode_token"]

T = TypeVar("T")


class AccessToken(msgspec.Struct, frozen=True, kw_only=True):
    """An access token of the metadata server; `expires_in` is in seconds."""

    access_token: str
    expires_in: float = 0.0

    def __repr__(self) -> str:
        return f"AccessToken(expires_in={self.expires_in})"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an API denied a request; what it does not report is empty.

    `status` is the name of the gRPC code (`PERMISSION_DENIED`), `reason` is more specific
    (`SERVICE_DISABLED`), `metadata` belongs to the reason, `retry_delay` is in seconds.
    """

    message: str = ""
    status: str = ""
    reason: str = ""
    metadata: dict[str, str] = {}
    retry_delay: float | None = None


class _Detail(msgspec.Struct, frozen=True, rename="camel"):
    reason: Any = None
    metadata: Any = None
    retry_delay: Any = None


class _LegacyDetail(msgspec.Struct, frozen=True):
    reason: str = ""


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    status: str = ""
    details: tuple[_Detail, ...] = ()
    errors: tuple[_LegacyDetail, ...] = ()


class _FailureBody(msgspec.Struct, frozen=True):
    error: _Error | str
    error_description: str = ""


# protojson writes 64-bit numbers as strings, and older servers also 32-bit ones.
_tokens = msgspec.json.Decoder(AccessToken, strict=False)
_failures = msgspec.json.Decoder(_FailureBody)


def decode_token(body: bytes) -> AccessToken:
    """Return the access token in `body`; raises a ValueError without any part of it if it is malformed."""
    return decode_json(_tokens, body)


def decode_failure(body: bytes) -> Failure:
    """Return why an API denied a request; an empty Failure if `body` is not from the API."""
    try:
        error = decode_json(_failures, body)
    except ValueError:
        return Failure()  # the page of a proxy, for example
    if isinstance(error.error, str):
        return Failure(message=error.error_description or error.error, status=error.error)
    reason, metadata, delay = "", {}, None
    for detail in error.error.details:
        if isinstance(detail.reason, str) and not reason:
            reason = detail.reason
            pairs = detail.metadata.items() if isinstance(detail.metadata, dict) else ()
            metadata = {str(name): str(value) for name, value in pairs}
        delay = _seconds(detail.retry_delay) if delay is None else delay
    reason = reason or next((legacy.reason for legacy in error.error.errors), "")
    return Failure(
        message=error.error.message,
        status=error.error.status,
        reason=reason,
        metadata=metadata,
        retry_delay=delay,
    )


def decode_json(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return what `decoder` decodes from `body`; raises a ValueError if it is malformed."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _seconds(duration: object) -> float | None:
    """Return a google.protobuf.Duration, such as `1.5s`, in seconds."""
    if not isinstance(duration, str) or not duration.endswith("s"):
        return None
    try:
        return max(0.0, float(duration[:-1]))
    except ValueError:
        return None
