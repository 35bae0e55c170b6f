"""OpenTelemetry attributes that describe servers, paths and errors."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve._core.telemetry.calls import error_text, error_type, path_template, server_attributes
from aioresolve.errors import APIError, ConnectionFailedError, ProbeError

NAMES = st.text(st.characters(codec="ascii", exclude_characters="/:", categories=["L", "N", "P"]), min_size=1)


@pytest.mark.parametrize(
    ("url", "address", "port"),
    [
        ("https://10.0.0.1:6443", "10.0.0.1", 6443),
        ("https://tpu.googleapis.com", "tpu.googleapis.com", 443),
        ("http://metadata.google.internal", "metadata.google.internal", 80),
        ("https://[fd00::7]:6443", "fd00::7", 6443),
        ("//[fd00::7]:8470", "fd00::7", 8470),
        ("//trainer-0", "trainer-0", None),
    ],
)
def test_server_is_described_by_address_and_port(url: str, address: str, port: int | None) -> None:
    attributes = server_attributes(url)
    assert (attributes["server.address"], attributes.get("server.port")) == (address, port)


@given(st.text())
def test_any_text_after_the_scheme_gives_a_server_address(text: str) -> None:
    assert isinstance(server_attributes(f"http://{text}")["server.address"], str)


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/api/v1/pods", "/api/v1/pods"),
        ("/api/v1/namespaces/ml/pods", "/api/v1/namespaces/{namespace}/pods"),
        (
            "/v2/projects/p/locations/z/queuedResources/q",
            "/v2/projects/{project}/locations/{location}/queuedResources/{queuedResource}",
        ),
        (
            "/v1/projects/-/serviceAccounts/robot@p.iam.gserviceaccount.com:generateAccessToken",
            "/v1/projects/{project}/serviceAccounts/{serviceAccount}:generateAccessToken",
        ),
        (
            "/computeMetadata/v1/instance/attributes/tpu-env",
            "/computeMetadata/v1/instance/attributes/tpu-env",
        ),
    ],
)
def test_path_template_contains_no_names(path: str, template: str) -> None:
    assert path_template(path) == template


@given(NAMES, NAMES)
def test_paths_that_differ_only_in_names_have_the_same_template(one: str, other: str) -> None:
    templates = {path_template(f"/v2/projects/{each}/locations/{each}/nodes") for each in (one, other)}
    assert templates == {"/v2/projects/{project}/locations/{location}/nodes"}


@pytest.mark.parametrize(
    ("error", "expected_type", "text"),
    [
        (APIError("busy", status=503), "503", "busy"),
        (ProbeError("refused", code="refused", status="UNAVAILABLE"), "UNAVAILABLE", "refused"),
        (ProbeError("too many", code="malformed"), "malformed", "too many"),
        (ConnectionFailedError("no route"), "aioresolve.errors.ConnectionFailedError", "no route"),
        (ValueError(), "builtins.ValueError", "ValueError"),
        (asyncio.CancelledError(), "cancelled", "cancelled"),
        (GeneratorExit(), "cancelled", "cancelled"),
    ],
)
def test_error_has_a_type_and_a_text(error: BaseException, expected_type: str, text: str) -> None:
    assert (error_type(error), error_text(error)) == (expected_type, text)
