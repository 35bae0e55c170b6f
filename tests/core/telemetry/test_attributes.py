"""OpenTelemetry attributes that describe servers, paths and errors."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from aioresolve._core.telemetry.calls import error_text, error_type, path_template, server_attributes
from aioresolve.errors import APIError, ConnectionFailedError, ProbeError

NAMES = st.text(st.characters(codec="ascii", exclude_characters="/:", categories=["L", "N", "P"]), min_size=1)


def test_server_is_described_by_address_and_port() -> None:
    for url, address, port in (
        ("https://10.0.0.1:6443", "10.0.0.1", 6443),
        ("https://tpu.googleapis.com", "tpu.googleapis.com", 443),
        ("http://metadata.google.internal", "metadata.google.internal", 80),
        ("https://[fd00::7]:6443", "fd00::7", 6443),
        ("//[fd00::7]:8470", "fd00::7", 8470),
        ("//trainer-0", "trainer-0", None),
    ):
        attributes = server_attributes(url)
        assert (attributes["server.address"], attributes.get("server.port")) == (address, port)


@given(st.text())
def test_any_text_after_the_scheme_gives_a_server_address(text: str) -> None:
    assert isinstance(server_attributes(f"http://{text}")["server.address"], str)


@given(NAMES)
def test_path_template_contains_no_names(name: str) -> None:
    for path, template in {
        f"/api/v1/namespaces/{name}/pods": "/api/v1/namespaces/{namespace}/pods",
        f"/v2/projects/{name}/locations/{name}/queuedResources/{name}": (
            "/v2/projects/{project}/locations/{location}/queuedResources/{queuedResource}"
        ),
        f"/v1/projects/-/serviceAccounts/{name}@p.iam.gserviceaccount.com:generateAccessToken": (
            "/v1/projects/{project}/serviceAccounts/{serviceAccount}:generateAccessToken"
        ),
    }.items():
        assert path_template(path) == template
    for path in ("/api/v1/pods", "/computeMetadata/v1/instance/attributes/tpu-env"):
        assert path_template(path) == path


def test_error_has_a_type_and_a_text() -> None:
    for error, expected_type, text in (
        (APIError("busy", status=503), "503", "busy"),
        (ProbeError("refused", code="refused", status="UNAVAILABLE"), "UNAVAILABLE", "refused"),
        (ProbeError("too many", code="malformed"), "malformed", "too many"),
        (ConnectionFailedError("no route"), "aioresolve.errors.ConnectionFailedError", "no route"),
        (ValueError(), "builtins.ValueError", "ValueError"),
        (asyncio.CancelledError(), "cancelled", "cancelled"),
        (GeneratorExit(), "cancelled", "cancelled"),
    ):
        assert (error_type(error), error_text(error)) == (expected_type, text)
