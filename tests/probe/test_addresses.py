"""Worker addresses, `host:port`."""

from __future__ import annotations

from typing import Any

import pytest

from aioresolve.errors import ConfigurationError
from aioresolve.probe.channels import validate_address
from aioresolve.spec import split_host_port


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("10.0.0.7:8470", ("10.0.0.7", 8470)),
        ("grpc://10.0.0.7:8470", ("10.0.0.7", 8470)),
        ("trainer-0.trainer.ml.svc:1", ("trainer-0.trainer.ml.svc", 1)),
        ("[fd00::7]:8470", ("fd00::7", 8470)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
    ],
)
def test_valid_address_is_split_into_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert split_host_port(validate_address(address)) == parts


INVALID = ["", "a", "a:", ":1", "a:0", "a:65536", "fd00::7:8470", "http://a:1", "a:1/x", "unix:/x", None, 7]


@pytest.mark.parametrize("address", INVALID)
def test_invalid_address_is_named_in_the_error(address: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        validate_address(address)
    assert repr(address) in str(caught.value)
