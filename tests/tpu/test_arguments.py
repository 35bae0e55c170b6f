"""Arguments of TPUClusterResolver are validated before any request is sent."""

from __future__ import annotations

from typing import Any

import pytest

from aioresolve import TPUClusterResolver
from aioresolve.errors import ConfigurationError


@pytest.mark.parametrize(
    "template",
    [
        "tpu.googleapis.com",
        "ftp://a/",
        "https://",
        "https://a/{project}",
        7,
        "https://[a/",
    ],
)
def test_an_invalid_discovery_url_is_rejected(template: Any) -> None:
    with pytest.raises(ConfigurationError, match="discovery_url"):
        TPUClusterResolver("my-tpu", discovery_url=template)


def test_an_invalid_variable_is_reported_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_API_DISCOVERY_URL", "x")
    with pytest.raises(ConfigurationError, match=r"\$TPU_API_DISCOVERY_URL"):
        TPUClusterResolver("my-tpu")


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
