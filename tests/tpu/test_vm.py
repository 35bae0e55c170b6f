"""The metadata attributes of a TPU VM are parsed."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ProtocolError
from aioresolve.tpu.discovery import TPUEnvironment
from aioresolve.tpu.vm import parse_tpu_env, parse_worker_hosts

TEXT = """\
ACCELERATOR_TYPE: 'v4-256'
ALT: 'false'
CHIPS_PER_HOST_BOUNDS: '2,2,1'
HOST_BOUNDS: '2,2,8'
MEGASCALE_NUM_SLICES: '4'
MEGASCALE_SLICE_ID: '2'
NODE_ID: 'my-tpu'
TOPOLOGY: '4x4x8'
TPU_RUNTIME_METRICS_PORTS: '8431,8432,8433,8434,'
WORKER_ID: '3'
ZONE: 'us-central2-b'
"""


def test_every_field_is_parsed() -> None:
    assert parse_tpu_env(TEXT) == TPUEnvironment(
        accelerator_type="v4-256",
        topology="4x4x8",
        chips_per_host_bounds=(2, 2, 1),
        host_bounds=(2, 2, 8),
        worker_id=3,
        runtime_metrics_ports=(8431, 8432, 8433, 8434),
        node_id="my-tpu",
        slice_index=2,
        num_slices=4,
    )


def test_missing_values_are_none() -> None:
    assert parse_tpu_env("") == parse_tpu_env("# a comment\n\n") == TPUEnvironment()
    for empty in ("''", '""', ""):
        assert parse_tpu_env(f"NODE_ID: {empty}\nWORKER_ID: {empty}\nTOPOLOGY:\n") == TPUEnvironment()


@pytest.mark.parametrize(
    "line",
    [
        '  TOPOLOGY :   "a"  ',
        "# a comment\n\nTOPOLOGY: a",
        "TOPOLOGY: a\n---\nnot a line\n  two words: 'b'",
        "\tTWO WORDS: 'b'\nTOPOLOGY: 'a'",
    ],
)
def test_quotes_are_removed_and_unknown_lines_are_skipped(line: str) -> None:
    assert parse_tpu_env(f"{line}\nNODE_ID: 'n'\n") == TPUEnvironment(topology="a", node_id="n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not a line\n  continued", "line 1 'not a line'"),
        ("WORKER_ID: 'x'", "WORKER_ID: 'x' is not a number"),
        ("WORKER_ID: '-1'", "WORKER_ID: '-1' is not a number"),
        ("HOST_BOUNDS: '2,,2'", "HOST_BOUNDS: '2,,2' is not a comma-separated list"),
    ],
)
def test_a_malformed_line_is_reported(text: str, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_tpu_env(text)
    assert message in str(caught.value)
    assert "curl -H 'Metadata-Flavor: Google'" in str(caught.value)
    assert caught.value.scope == "instance/attributes/tpu-env"


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_raises_a_protocol_error(text: str) -> None:
    for parse in (parse_tpu_env, parse_worker_hosts):
        with suppress(ProtocolError):
            parse(text)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("10.0.0.2, 10.0.0.3", ("10.0.0.2", "10.0.0.3")),
        ("worker-0:123:host.example.internal", ("host.example.internal",)),
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
