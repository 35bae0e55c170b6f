"""Each failure response of an API results in one typed error with a hint."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aioresolve._core.http import Response
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ForbiddenError,
    ProtocolError,
    ResolveError,
    UnauthorizedError,
)
from aioresolve.gcp.api_request import APIRequest
from aioresolve.gcp.google_errors import Principal, error_from_response

HOST = "https://tpu.googleapis.com"
SCOPE = "TPU node projects/p/locations/z/nodes/n"
REQUEST = APIRequest(
    service="tpu",
    path="/v2/projects/p/locations/z/nodes/n",
    scope=SCOPE,
    permission="tpu.nodes.get",
    role="roles/tpu.viewer",
    project="p",
)
ROBOT = Principal("key.json", "serviceAccount:robot@p.iam.gserviceaccount.com", ("scope-a", "scope-b"))
UNKNOWN = Principal("credentials=")
NOT_FROM_A_PROXY = (400, 403, 404)
"""The statuses that mean something about a project or TPU only if the API itself returns them."""


def info(reason: str, **metadata: str) -> dict[str, Any]:
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    return {"@type": kind, "reason": reason, "domain": "googleapis.com", "metadata": metadata}


def error_of(
    code: int,
    *details: dict[str, Any],
    principal: Principal = ROBOT,
    retry_after: float | None = None,
    body: bytes | None = None,
    **fields: Any,
) -> ResolveError:
    """The error for a response whose google.rpc.Status has these fields and details."""
    document = {"error": {"code": code, "message": "the server's message", "details": details, **fields}}
    response = Response(code, json.dumps(document).encode() if body is None else body, {}, retry_after)
    found = error_from_response(response, REQUEST, host=HOST, principal=principal)
    assert SCOPE in str(found)
    return found


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, ConfigurationError, False),
        (401, UnauthorizedError, False),
        (403, ForbiddenError, False),
        (404, APIError, False),
        (408, APIError, True),
        (409, APIError, False),
        (429, APIError, True),
        (500, APIError, True),
        (501, APIError, False),
        (503, APIError, True),
    ],
)
def test_each_status_has_its_error_type(status: int, kind: type[ResolveError], retryable: bool) -> None:
    for body in (None, b"", b"<html>a proxy's page</html>"):
        error = error_of(status, body=body)
        assert type(error) is (ProtocolError if body is not None and status in NOT_FROM_A_PROXY else kind)
        assert error.retryable is retryable
        if isinstance(error, APIError):
            assert (error.host, error.scope, error.status) == (HOST, SCOPE, status)


def test_a_failed_precondition_is_not_an_invalid_argument() -> None:
    error = error_of(400, status="FAILED_PRECONDITION")
    assert type(error) is APIError
    assert error.reason == "FAILED_PRECONDITION"
    assert "unexpected status" in str(error)


def test_an_invalid_argument_is_corrected_by_the_user() -> None:
    for status in ("INVALID_ARGUMENT", "OUT_OF_RANGE"):
        error = error_of(400, status=status)
        assert isinstance(error, ConfigurationError)
        assert "Correct the name, `project=` or `zone=`" in str(error)


@pytest.mark.parametrize(
    ("location", "named"), [("https://elsewhere.example", "https://elsewhere"), (None, "nowhere;")]
)
def test_a_redirect_is_not_followed(location: str | None, named: str) -> None:
    response = Response(302, b"", {}, None, location)
    error = error_from_response(response, REQUEST, host=HOST, principal=ROBOT)
    assert isinstance(error, ProtocolError)
    assert f"redirects TPU node projects/p/locations/z/nodes/n to {named}" in str(error)
    assert (error.host, error.scope) == (HOST, SCOPE)


def test_the_error_of_an_overloaded_server_contains_its_message() -> None:
    text = f"{HOST} returned status 503 for {SCOPE} ({{}}): the server is overloaded or unavailable"
    assert text.format("'too many'") in str(error_of(503, message="too many"))
    assert text.format("no reason given") in str(error_of(503, body=b""))


def test_a_missing_permission_is_named_with_its_role_and_the_command() -> None:
    details = info("IAM_PERMISSION_DENIED", permission="tpu.nodes.get", resource="projects/p")
    error = error_of(403, details, status="PERMISSION_DENIED")
    assert isinstance(error, ForbiddenError)
    assert error.reason == "IAM_PERMISSION_DENIED"
    assert "key.json lacks the permission tpu.nodes.get (part of roles/tpu.viewer), or" in str(error)
    assert (
        "`gcloud projects add-iam-policy-binding p --member=serviceAccount:robot@p.iam.gserviceaccount.com"
        " --role=roles/tpu.viewer`" in str(error)
    )


def test_a_403_without_a_reason_names_the_required_permission() -> None:
    text = str(error_of(403, principal=UNKNOWN))
    assert "credentials= lacks the permission tpu.nodes.get" in text
    assert "--member=user:YOUR-ADDRESS --role=roles/tpu.viewer" in text


def test_a_403_for_a_request_without_a_known_permission_names_the_credentials() -> None:
    response = Response(403, b'{"error": {"message": "no"}}', {}, None)
    request = APIRequest(service="tpu", path="/v2/operations/o", scope=SCOPE)
    error = error_from_response(response, request, host=HOST, principal=ROBOT)
    assert isinstance(error, ForbiddenError)
    assert "key.json lacks a permission. Assign a role that contains it." in str(error)


@pytest.mark.parametrize(
    ("details", "text"),
    [
        (
            info("SERVICE_DISABLED", service="tpu.googleapis.com", consumer="projects/123"),
            "`gcloud services enable tpu.googleapis.com --project=123`, then wait some minutes",
        ),
        (info("SERVICE_DISABLED"), "`gcloud services enable tpu.googleapis.com --project=p`, then wait"),
        (info("ACCESS_TOKEN_SCOPE_INSUFFICIENT"), "lacks a required scope (scope-a scope-b)"),
        (info("USER_PROJECT_DENIED"), "the reason is USER_PROJECT_DENIED. Correct what the message names"),
    ],
    ids=lambda value: value["reason"] if isinstance(value, dict) else None,
)
def test_each_reason_for_a_403_has_its_hint(details: dict[str, Any], text: str) -> None:
    error = error_of(403, details)
    assert isinstance(error, ForbiddenError)
    assert text in str(error)


@pytest.mark.parametrize("status", [403, 429])
def test_an_exhausted_quota_is_retryable_and_named(status: int) -> None:
    details = info("RATE_LIMIT_EXCEEDED", quota_metric="tpu.googleapis.com/read_requests")
    error = error_of(status, details, {"retryDelay": "7s"})
    assert type(error) is APIError
    assert (error.retryable, error.reason, error.retry_after) == (True, "RATE_LIMIT_EXCEEDED", 7.0)
    assert "the quota tpu.googleapis.com/read_requests is exhausted" in str(error)


def test_a_rate_limit_does_not_make_rejected_credentials_retryable() -> None:
    error = error_of(401, info("RATE_LIMIT_EXCEEDED"))
    assert isinstance(error, UnauthorizedError)
    assert not error.retryable


def test_the_header_retry_after_takes_precedence() -> None:
    error = error_of(503, {"retryDelay": "7s"}, retry_after=2.0)
    assert isinstance(error, APIError)
    assert error.retry_after == 2.0


def test_rejected_credentials_result_in_a_hint_to_log_in_or_check_the_key() -> None:
    assert "Log in again with `gcloud auth application-default login`" in str(
        error_of(401, principal=UNKNOWN)
    )
    assert "Check that the service account and its key still exist" in str(error_of(401))
