"""Addresses of workers, as users and environment variables write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError
from aioresolve.tpu.discovery import is_address, worker_address, worker_addresses, worker_host

if TYPE_CHECKING:
    import ipaddress

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
PORTS = st.integers(1, 65535)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("grpc://10.0.0.1", "10.0.0.1:8470"),
        ("worker-0.tpu.svc", "worker-0.tpu.svc:8470"),
        ("[fd00::7]", "[fd00::7]:8470"),
        ("grpc://fd00::7", "[fd00::7]:8470"),
        ("fe80::1%eth0", "[fe80::1%eth0]:8470"),
    ],
)
def test_the_default_port_is_8470(text: str, address: str) -> None:
    assert worker_address(text, "tpu") == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://a:1",
        "a:0",
        "a:65536",
        "a:1:",
        "[fd00::7",
        "a/b",
        "[]:1",
    ],
)
def test_an_invalid_address_is_reported_with_its_source(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\$VARIABLE: .*host:port") as raised:
        worker_address(text, "$VARIABLE")
    assert repr(text) in str(raised.value)


def test_a_list_may_contain_spaces_and_the_scheme_in_any_entry() -> None:
    assert worker_addresses("grpc://a:1, b:2 ,grpc://c", "tpu") == ("a:1", "b:2", "c:8470")


def test_an_empty_entry_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="''"):
        worker_addresses("a:1,,b:1", "tpu")


@given(NAMES)
def test_the_name_of_a_tpu_is_not_an_address(name: str) -> None:
    assert not is_address(name)
    assert not is_address(f"projects/example.com:p/locations/us-central2-b/nodes/{name}")


@given(NAMES, PORTS)
def test_a_host_with_a_port_is_an_address_and_is_kept(host: str, port: int) -> None:
    assert is_address(f"{host}:{port}")
    assert worker_address(f"{host}:{port}", "tpu") == f"{host}:{port}"
    assert worker_host(f"grpc://{host}:{port}", "tpu") == host


@given(st.ip_addresses(v=6), PORTS)
def test_an_ipv6_address_is_returned_in_brackets(address: ipaddress.IPv6Address, port: int) -> None:
    assert is_address(str(address))
    assert worker_address(str(address), "tpu", port) == f"[{address}]:{port}"
    assert worker_address(f"[{address}]:{port}", "tpu") == f"[{address}]:{port}"


@given(st.text())
def test_any_text_is_an_address_or_raises_a_configuration_error(text: str) -> None:
    try:
        address = worker_address(text, "tpu")
    except ConfigurationError:
        return
    assert worker_address(address, "tpu") == address
