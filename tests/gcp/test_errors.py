"""Each failure of an API is one typed error with a hint, and only temporary ones are retried."""

import json
from typing import Any

import pytest

from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ForbiddenError,
    ProtocolError,
    ResolveError,
    UnauthorizedError,
)
from aioresolve.testing import Answer, Cut, GoogleServer, Reset

from .loopback import PATH, TOKEN, all_text, error_from, request_my_tpu, sent_to, tls_server, user_credentials

pytestmark = pytest.mark.usefixtures("no_leak")

SCOPE = f"TPU node {PATH}"
LATER = {"Retry-After": "3600"}
"""A wait that exceeds every deadline, so that a call ends after one attempt."""


def info(reason: str, **metadata: str) -> dict[str, Any]:
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    return {"@type": kind, "reason": reason, "domain": "googleapis.com", "metadata": metadata}


def failure(code: int, *details: dict[str, Any], **fields: Any) -> Answer:
    """A failure in the format of Google's APIs."""
    document = {"error": {"code": code, "message": "the server's message", "details": details, **fields}}
    return Answer(code, json.dumps(document).encode(), headers=LATER)


async def error_of(fault: Any) -> ResolveError:
    async with GoogleServer(), tls_server() as server:
        server.inject(fault, match=sent_to("tpu"), times=None)
        error = await error_from(request_my_tpu(user_credentials()))
        assert len([request for request in server.requests if request.service == "tpu"]) == 1
        assert TOKEN not in all_text(error)
        assert server.url in str(error)
    return error


@pytest.mark.parametrize(
    ("fault", "kind", "retryable", "text"),
    [
        (failure(400, status="INVALID_ARGUMENT"), ConfigurationError, False, "`project=` or `zone=`"),
        (failure(400, status="FAILED_PRECONDITION"), APIError, False, "unexpected status"),
        (
            failure(401),
            UnauthorizedError,
            False,
            "application-default login`; for a service account, check that it and its key still exist",
        ),
        (failure(401, info("RATE_LIMIT_EXCEEDED")), UnauthorizedError, False, "rejects the credentials"),
        (failure(409), APIError, False, '("the server\'s message")'),
        (failure(503), APIError, True, "the server is overloaded or unavailable. Try again later"),
        (Answer(500, b"<html>", headers=LATER), APIError, True, "(no reason given)"),
        (Answer(400, b"<html>"), ProtocolError, False, "not in the format of Google's APIs"),
        (Answer(403, b"<html>"), ProtocolError, False, "not in the format of Google's APIs"),
        (Answer(404, b'{"error": "Not Found"}'), ProtocolError, False, "any proxy in front of it"),
        (Answer(404, b"[]"), ProtocolError, False, "not in the format of Google's APIs"),
        (Answer(200, b"<html>log in</html>"), ProtocolError, False, "different from the Cloud TPU API"),
        (Answer(200, b'{"state": "READY"}'), ProtocolError, False, "missing required field `name`"),
        (Answer(307, headers={"Location": "https://a.example/?b"}), APIError, False, "unexpected status"),
    ],
)
async def test_each_status_has_its_error(
    fault: Any, kind: type[ResolveError], retryable: bool, text: str
) -> None:
    error = await error_of(fault)
    assert type(error) is kind
    assert error.retryable is retryable
    assert text in str(error)
    if isinstance(error, APIError):
        assert (error.scope, error.status) == (SCOPE, fault.status)


GRANT = "gcloud projects add-iam-policy-binding demo-project --member="


@pytest.mark.parametrize(
    ("details", "text"),
    [
        (info("SERVICE_DISABLED"), "the reason is SERVICE_DISABLED. Correct what the message names"),
        (
            info("IAM_PERMISSION_DENIED", permission="tpu.nodes.get"),
            "lacks the permission tpu.nodes.get (part of roles/tpu.viewer), or the project or zone does not",
        ),
        ({}, f"Run `{GRANT}user:ADDRESS --role=roles/tpu.viewer`, for a service account with --member="),
        ({}, "--member=serviceAccount:ADDRESS."),
    ],
    ids=lambda value: value.get("reason", "none") if isinstance(value, dict) else "",
)
async def test_each_reason_for_a_403_has_its_hint(details: dict[str, Any], text: str) -> None:
    error = await error_of(failure(403, details))
    assert isinstance(error, ForbiddenError)
    assert not error.retryable
    assert text in str(error)


@pytest.mark.parametrize("status", [403, 429])
async def test_an_exhausted_quota_is_retried(status: int) -> None:
    limit = info("RATE_LIMIT_EXCEEDED", quota_metric="tpu.googleapis.com/read_requests")
    error = await error_of(failure(status, limit))
    assert isinstance(error, APIError)
    assert (error.retryable, error.reason, error.retry_after) == (True, "RATE_LIMIT_EXCEEDED", 3600.0)
    assert "the quota tpu.googleapis.com/read_requests is exhausted" in str(error)


async def test_a_failure_of_the_older_api_has_its_reason_in_another_field() -> None:
    error = await error_of(failure(409, errors=[{"reason": "inUse"}]))
    assert type(error) is APIError
    assert error.reason == "inUse"


@pytest.mark.parametrize("fault", [Answer(503), Reset(), Cut(after=5)], ids=str)
async def test_a_temporary_failure_is_retried(fault: Any) -> None:
    async with tls_server() as server:
        server.inject(fault, match=sent_to("tpu"), times=2)
        assert (await request_my_tpu(user_credentials())).state == "READY"
        assert len(server.requests) == 3
