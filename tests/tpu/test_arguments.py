"""Arguments of TPUClusterResolver are validated before any request is sent."""

from __future__ import annotations

from typing import Any

import pytest

from aioresolve.errors import ConfigurationError
from aioresolve.tpu.resolver import api_base_url, validate_api_version, validate_coordinator, validate_text


@pytest.mark.parametrize(
    ("template", "base"),
    [
        ("https://tpu.googleapis.com/$discovery/rest?version={apiVersion}", "https://tpu.googleapis.com"),
        ("https://{api}.example.com/$discovery/rest?version={apiVersion}", "https://tpu.example.com"),
        (
            "https://autopush-{api}.sandbox.example.com:8443/x",
            "https://autopush-tpu.sandbox.example.com:8443",
        ),
        ("http://127.0.0.1:8080/discovery/v1/apis/{api}/{apiVersion}/rest", "http://127.0.0.1:8080"),
        ("https://www.googleapis.com/discovery/v1/apis/{api}/{apiVersion}/rest", None),
        ("", None),
        (None, None),
    ],
)
def test_the_api_is_on_the_host_of_its_discovery_url(template: Any, base: str | None) -> None:
    assert api_base_url(template, {}, "v2") == base


def test_the_variable_takes_precedence_over_the_argument() -> None:
    environ = {"TPU_API_DISCOVERY_URL": "https://b.example.com/{api}/{apiVersion}"}
    assert api_base_url("https://a.example.com/", environ, "v2") == "https://b.example.com"


@pytest.mark.parametrize(
    "template",
    [
        "tpu.googleapis.com",
        "ftp://a/",
        "https://",
        "https://a/{project}",
        7,
        "https://a:x/",
        "https://a:0/",
        "https://[a/",
    ],
)
def test_an_invalid_discovery_url_is_rejected(template: Any) -> None:
    with pytest.raises(ConfigurationError, match="discovery_url"):
        api_base_url(template, {}, "v2")


def test_an_invalid_variable_is_reported_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match=r"\$TPU_API_DISCOVERY_URL"):
        api_base_url(None, {"TPU_API_DISCOVERY_URL": "x"}, "v2")


def test_an_address_without_a_name_means_no_coordinator() -> None:
    assert validate_coordinator(None, "10.0.0.9:2222", "worker") is None


def test_the_address_of_a_coordinator_has_a_port() -> None:
    assert validate_coordinator("chief", "grpc://10.0.0.9:2222", "worker") == ("chief", "10.0.0.9:2222")
    assert validate_coordinator("chief", None, "worker") == ("chief", None)


def test_the_job_of_the_workers_cannot_be_the_coordinator() -> None:
    with pytest.raises(ConfigurationError, match="`coordinator_name=`: 'worker' is the job"):
        validate_coordinator("worker", None, "worker")


@pytest.mark.parametrize("address", ["nowhere:x", 7])
def test_an_invalid_coordinator_address_is_rejected(address: Any) -> None:
    with pytest.raises(ConfigurationError, match="coordinator_address"):
        validate_coordinator("chief", address, "worker")


def test_empty_text_means_not_given_and_other_types_are_rejected() -> None:
    assert validate_text("zone", "") is None
    with pytest.raises(ConfigurationError, match="`zone=`: 7 is not text"):
        validate_text("zone", 7)


def test_an_unknown_version_is_rejected() -> None:
    assert validate_api_version("v1") == "v1"
    with pytest.raises(ConfigurationError, match="`api_version=`: 'v3'"):
        validate_api_version("v3")
