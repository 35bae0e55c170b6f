"""The metadata attributes of a TPU VM are parsed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ProtocolError
from aioresolve.gcp.tpu_env import TPUEnvironment, parse_tpu_env, parse_worker_hosts

TEXT = """\
ACCELERATOR_TYPE: 'v4-256'
ALT: 'false'
CHIPS_PER_HOST_BOUNDS: '2,2,1'
HOST_BOUNDS: '2,2,8'
NODE_ID: 'my-tpu'
TOPOLOGY: '4x4x8'
TPU_RUNTIME_METRICS_PORTS: '8431,8432,8433,8434,'
WORKER_ID: '3'
ZONE: 'us-central2-b'
"""


def test_every_field_is_parsed() -> None:
    environment = parse_tpu_env(TEXT)
    assert environment == TPUEnvironment(
        accelerator_type="v4-256",
        topology="4x4x8",
        chips_per_host_bounds=(2, 2, 1),
        host_bounds=(2, 2, 8),
        worker_id=3,
        runtime_metrics_ports=(8431, 8432, 8433, 8434),
        zone="us-central2-b",
        node_id="my-tpu",
        values=environment.values,
    )
    assert environment.values["ALT"] == "false"
    assert hash(environment) == hash(parse_tpu_env(TEXT))


def test_missing_values_are_none() -> None:
    assert parse_tpu_env("") == TPUEnvironment()
    for empty in ("''", '""', ""):
        environment = parse_tpu_env(f"ZONE: {empty}\nNODE_ID: {empty}\nWORKER_ID: {empty}\nTOPOLOGY:\n")
        assert environment == TPUEnvironment(values=environment.values)
        assert dict.fromkeys(environment.values, "") == environment.values


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('ZONE: "a"', "a"),
        ("ZONE: a", "a"),
        ("ZONE:   'a'  ", "a"),
        ("ZONE: 'a: b'", "a: b"),
        ("# a comment\n\nZONE: a", "a"),
        ("ZONE: a\r\nTOPOLOGY: b\r\n", "a"),
    ],
)
def test_quotes_and_comments_are_removed(line: str, value: str) -> None:
    assert parse_tpu_env(line).zone == value
    environment = parse_tpu_env(f"{line}\nNODE_ID: 'n'\n")
    assert (environment.zone, environment.node_id) == (value, "n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not a line\n  continued", "line 1 'not a line'"),
        ("WORKER_ID: 'x'", "WORKER_ID: 'x' is not a number"),
        ("WORKER_ID: '-1'", "WORKER_ID: '-1' is not a number"),
        ("HOST_BOUNDS: '2,,2'", "HOST_BOUNDS: '2,,2' is not a comma-separated list"),
        ("MEGASCALE_NUM_SLICES: '-1'", "MEGASCALE_NUM_SLICES: '-1' is not a number"),
    ],
)
def test_a_malformed_line_is_reported(text: str, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_tpu_env(text)
    assert message in str(caught.value)
    assert "curl -H 'Metadata-Flavor: Google'" in str(caught.value)
    assert caught.value.scope == "instance/attributes/tpu-env"


@pytest.mark.parametrize("line", ["not a line", "two words: 'a'", "- item\n  continued"])
def test_an_unknown_line_is_skipped(line: str) -> None:
    environment = parse_tpu_env(f"{line}\nZONE: 'a'\n")
    assert (environment.zone, dict(environment.values)) == ("a", {"ZONE": "a"})
    assert parse_tpu_env(f"ZONE: 'a'\n---\n{line}\nNODE_ID: 'b'\n").node_id == "b"


@pytest.mark.parametrize("line", ["  not a line", "\tTWO WORDS: 'a'"])
def test_an_unknown_line_does_not_continue_a_value_in_quotes(line: str) -> None:
    environment = parse_tpu_env(f"HOST_BOUNDS: '1,1,2'\n{line}\nNODE_ID: \"b\"\n{line}\n")
    assert (environment.host_bounds, environment.node_id) == ((1, 1, 2), "b")


def test_spaces_are_optional_as_in_jax() -> None:
    for text in ("WORKER_ID:'1'", "ZONE: 'a'\n  WORKER_ID: '1'", "  WORKER_ID : '1'"):
        assert parse_tpu_env(text).worker_id == 1


def test_a_slice_of_a_multislice_has_its_index() -> None:
    environment = parse_tpu_env("MEGASCALE_NUM_SLICES: '4'\nMEGASCALE_SLICE_ID: '2'\n")
    assert (environment.slice_index, environment.num_slices) == (2, 4)
    assert parse_tpu_env("MEGASCALE_NUM_SLICES: '1'\nMEGASCALE_SLICE_ID: '0'\n").num_slices == 1
    assert parse_tpu_env("MEGASCALE_SLICE_ID: '0'\n").slice_index == 0


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_raises_a_protocol_error(text: str) -> None:
    for parse in (parse_tpu_env, parse_worker_hosts):
        with suppress(ProtocolError):
            parse(text)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("t1v-n-1-w-0", ("t1v-n-1-w-0",)),
        ("10.0.0.2, 10.0.0.3", ("10.0.0.2", "10.0.0.3")),
        ("unknown:unknown:10.130.0.3,unknown:unknown:10.130.0.7", ("10.130.0.3", "10.130.0.7")),
        ("worker-0:123:host.example.internal", ("host.example.internal",)),
        ("unknown:unknown:fd20::1,unknown:unknown:fd20::2", ("fd20::1", "fd20::2")),
        ("worker-0:123:[2001:db8::1]", ("2001:db8::1",)),
        ("fd00:1:2::5", ("fd00:1:2::5",)),
    ],
)
def test_worker_endpoints_are_hosts_or_triples(text: str, hosts: tuple[str, ...]) -> None:
    assert parse_worker_hosts(text) == hosts


def test_an_entry_in_another_form_is_reported() -> None:
    no_triples = ("", "a,,b", "a:b", "10.0.0.2:8470", "a/b", "::::", "[10.0.0.22", "10.0.0.22]", "[host]")
    for text in (*no_triples, "name:id:", "name:id:bad host", "name::10.0.0.2", ":id:10.0.0.2"):
        with pytest.raises(ProtocolError, match="worker-network-endpoints: entry"):
            parse_worker_hosts(text)


HOSTS = st.ip_addresses().map(str) | st.from_regex(r"\A[a-z]([a-z0-9-]{0,8}[a-z0-9])?\Z")


@given(st.lists(HOSTS, min_size=1, max_size=8))
def test_both_forms_result_in_the_same_hosts(hosts: list[str]) -> None:
    assert parse_worker_hosts(",".join(hosts)) == tuple(hosts)
    assert parse_worker_hosts(",".join(f"unknown:unknown:{host}" for host in hosts)) == tuple(hosts)
