"""Arguments of TPUClusterResolver are validated before any request is sent."""

from __future__ import annotations

from typing import Any

import pytest

from aioresolve import TPUClusterResolver
from aioresolve.errors import ConfigurationError
from aioresolve.tpu.resolver import api_base_url


@pytest.mark.parametrize(
    ("template", "base"),
    [
        ("https://{api}.example.com/$discovery/rest?version={apiVersion}", "https://tpu.example.com"),
        ("http://127.0.0.1:8080/discovery/v1/apis/{api}/{apiVersion}/rest", "http://127.0.0.1:8080"),
        ("https://www.googleapis.com/discovery/v1/apis/{api}/{apiVersion}/rest", None),
        ("", None),
    ],
)
def test_the_api_is_on_the_host_of_its_discovery_url(template: Any, base: str | None) -> None:
    assert api_base_url(template, {}, "v2") == base


@pytest.mark.parametrize(
    "template",
    [
        "tpu.googleapis.com",
        "ftp://a/",
        "https://",
        "https://a/{project}",
        7,
        "https://a:0/",
        "https://a:x/",
        "https://[a/",
    ],
)
def test_an_invalid_discovery_url_is_rejected(template: Any) -> None:
    with pytest.raises(ConfigurationError, match="discovery_url"):
        api_base_url(template, {}, "v2")


def test_an_invalid_variable_is_reported_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match=r"\$TPU_API_DISCOVERY_URL"):
        api_base_url(None, {"TPU_API_DISCOVERY_URL": "x"}, "v2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"coordinator_name": "worker"}, "`coordinator_name=`: 'worker' is the job"),
        ({"coordinator_name": "chief", "coordinator_address": "nowhere:x"}, "coordinator_address"),
        ({"coordinator_name": "chief", "coordinator_address": 7}, "coordinator_address"),
        ({"zone": 7}, "`zone=`: 7 is not text"),
        ({"api_version": "v3"}, "`api_version=`: 'v3'"),
        ({"not_healthy": "keep"}, "`not_healthy=`: 'keep' is not one of 'raise'"),
        ({"address": "ip"}, "`address=`: 'ip' is not one of"),
    ],
)
def test_an_invalid_argument_is_rejected_by_the_constructor(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TPUClusterResolver("my-tpu", **arguments)
