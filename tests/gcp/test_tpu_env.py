"""What the attributes of a TPU VM say."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ProtocolError
from aioresolve.gcp.tpu_env import TpuEnvironment, tpu_environment, worker_hosts, worker_number

TEXT = """\
ACCELERATOR_TYPE: 'v4-256'
ALT: 'false'
CHIPS_PER_HOST_BOUNDS: '2,2,1'
HOST_BOUNDS: '2,2,8'
NODE_ID: 'my-tpu'
TOPOLOGY: '4x4x8'
TPU_RUNTIME_METRICS_PORTS: '8431,8432,8433,8434'
WORKER_ID: '3'
ZONE: 'us-central2-b'
"""


def test_every_field_is_read() -> None:
    environment = tpu_environment(TEXT)
    assert environment == TpuEnvironment(
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
    assert hash(environment) == hash(tpu_environment(TEXT))


def test_what_it_does_not_say_is_none() -> None:
    assert tpu_environment("") == TpuEnvironment()
    assert tpu_environment("WORKER_ID: ''\nTOPOLOGY:\n").worker_id is None


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("ZONE: 'a'", "a"),
        ('ZONE: "a"', "a"),
        ("ZONE: a", "a"),
        ("ZONE:   'a'  ", "a"),
        ("ZONE: 'it''s'", "it's"),
        ('ZONE: "say \\"a\\""', 'say "a"'),
        ("ZONE: 'a: b'", "a: b"),
        ("# a comment\n\nZONE: a", "a"),
        ("ZONE: 'a\n  b'", "a b"),
        ("ZONE: a\r\nTOPOLOGY: b\r\n", "a"),
    ],
)
def test_quotes_comments_and_long_values_are_yaml_s(line: str, value: str) -> None:
    assert tpu_environment(line).zone == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ZONE: a\nno line at all", "the line 2 'no line at all'"),
        ("WORKER_ID: 'x'", "WORKER_ID: 'x', which is no number"),
        ("WORKER_ID: '-1'", "WORKER_ID: '-1', which is no number"),
        ("HOST_BOUNDS: '2,,2'", "HOST_BOUNDS: '2,,2', which are no numbers"),
        ("<!DOCTYPE html>", "the line 1 '<!DOCTYPE html>'"),
    ],
)
def test_a_malformed_line_is_told(text: str, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        tpu_environment(text)
    assert message in str(caught.value)
    assert "curl -H 'Metadata-Flavor: Google'" in str(caught.value)
    assert caught.value.scope == "instance/attributes/tpu-env"


@given(st.text(max_size=200))
def test_any_text_is_understood_or_refused_as_ours(text: str) -> None:
    for reader in (tpu_environment, worker_hosts, worker_number):
        with suppress(ProtocolError):
            reader(text)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("t1v-n-1-w-0", ("t1v-n-1-w-0",)),
        ("t1v-n-1-w-0,t1v-n-1-w-1", ("t1v-n-1-w-0", "t1v-n-1-w-1")),
        ("10.0.0.2, 10.0.0.3", ("10.0.0.2", "10.0.0.3")),
        ("unknown:unknown:10.130.0.3,unknown:unknown:10.130.0.7", ("10.130.0.3", "10.130.0.7")),
        ("worker-0:123:10.0.0.2", ("10.0.0.2",)),
        ("worker-0:123:host.example.internal", ("host.example.internal",)),
        ("unknown:unknown:fd20::1,unknown:unknown:fd20::2", ("fd20::1", "fd20::2")),
        ("worker-0:123:[2001:db8::1]", ("2001:db8::1",)),
        ("[2001:db8::1],2001:db8::2", ("2001:db8::1", "2001:db8::2")),
        ("fd00:1:2::5", ("fd00:1:2::5",)),
    ],
)
def test_workers_are_hosts_or_triples(text: str, hosts: tuple[str, ...]) -> None:
    assert worker_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["", "a,,b", "a:b", "name:id:", "name:id:bad host", "10.0.0.2:8470", "a/b", "::::"]
)
def test_an_entry_of_neither_form_is_told(text: str) -> None:
    with pytest.raises(ProtocolError, match="worker-network-endpoints has the entry"):
        worker_hosts(text)


HOSTS = st.ip_addresses().map(str) | st.from_regex(r"\A[a-z]([a-z0-9-]{0,8}[a-z0-9])?\Z")


@given(st.lists(HOSTS, min_size=1, max_size=8))
def test_both_forms_name_the_same_hosts(hosts: list[str]) -> None:
    assert worker_hosts(",".join(hosts)) == tuple(hosts)
    assert worker_hosts(",".join(f"unknown:unknown:{host}" for host in hosts)) == tuple(hosts)


def test_a_worker_number_is_one() -> None:
    assert worker_number("12") == 12
    with pytest.raises(ProtocolError, match="agent-worker-number is 'x'"):
        worker_number("x")
