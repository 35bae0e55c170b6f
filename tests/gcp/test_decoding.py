"""The JSON responses of Google's APIs are decoded."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.gcp.credentials import decode_token
from aioresolve.gcp.google_errors import Failure, decode_failure
from aioresolve.gcp.resource_names import NodeName
from aioresolve.gcp.tpu_api import (
    AcceleratorConfig,
    AccessConfig,
    NetworkEndpoint,
    Symptom,
    decode_node,
    decode_node_page,
    decode_queued_resource,
)

PLACE = "projects/p/locations/z"
CREATED = "2026-11-20T15:39:21Z"
NODE = {
    "name": f"{PLACE}/nodes/n",
    "state": "READY",
    "health": "UNHEALTHY_MAINTENANCE",
    "healthDescription": "soon",
    "acceleratorType": "v4-16",
    "acceleratorConfig": {"type": "V4", "topology": "2x2x2"},
    "runtimeVersion": "tpu-vm-tf-2.16.1-pjrt",
    "networkEndpoints": [
        {"ipAddress": "10.0.0.2", "port": 8470, "accessConfig": {"externalIp": "34.1.2.3"}},
        {"ipAddress": "10.0.0.3", "port": 8470},
    ],
    "symptoms": [
        {
            "createTime": "2026-11-20T15:39:21Z",
            "symptomType": "OUT_OF_MEMORY",
            "details": "d",
            "workerId": "1",
        }
    ],
    "multisliceNode": True,
    "queuedResource": f"{PLACE}/queuedResources/q",
    "apiVersion": "V2",
    "id": "1152921504606846976",
    "somethingNew": {"of": ["the", "future"]},
}


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


def test_every_field_of_a_node_is_decoded() -> None:
    node = decode_node(encoded(NODE))
    assert node.node_name == NodeName("p", "z", "n")
    assert (node.state, node.health, node.health_description) == ("READY", "UNHEALTHY_MAINTENANCE", "soon")
    assert (node.accelerator_type, node.runtime_version) == ("v4-16", "tpu-vm-tf-2.16.1-pjrt")
    assert node.accelerator_config == AcceleratorConfig(type="V4", topology="2x2x2")
    assert node.endpoints == (
        NetworkEndpoint(ip_address="10.0.0.2", port=8470, access_config=AccessConfig(external_ip="34.1.2.3")),
        NetworkEndpoint(ip_address="10.0.0.3", port=8470),
    )
    assert node.symptoms == (
        Symptom(create_time=CREATED, symptom_type="OUT_OF_MEMORY", details="d", worker_id="1"),
    )
    assert (node.multislice_node, node.queued_resource) == (True, f"{PLACE}/queuedResources/q")
    assert (node.api_version, node.id) == ("V2", "1152921504606846976")


def test_missing_fields_are_empty_and_unknown_values_are_kept() -> None:
    node = decode_node(encoded({"name": "n", "state": "MELTED", "health": "HAPPY"}))
    assert (node.state, node.health, node.endpoints, node.symptoms) == ("MELTED", "HAPPY", (), ())
    assert decode_node(encoded({"name": "n"})).health == ""
    with pytest.raises(ValueError, match="'n' is not the name of a node"):
        _ = node.node_name


@pytest.mark.parametrize(("port", "number"), [("8470", 8470), (None, 0)])
def test_the_single_address_of_v1_is_an_endpoint(port: object, number: int) -> None:
    document = {"name": "n", "ipAddress": "10.0.0.2", "tensorflowVersion": "2.16"}
    node = decode_node(encoded(document | ({} if port is None else {"port": port})))
    assert node.endpoints == (NetworkEndpoint(ip_address="10.0.0.2", port=number),)
    assert node.tensorflow_version == "2.16"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"state": "READY"}', b'{"name": 1.5}'])
def test_a_malformed_node_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_node(body)


def queued(spec: dict[str, Any], **more: Any) -> bytes:
    return encoded({"name": f"{PLACE}/queuedResources/q", "tpu": {"nodeSpec": [spec]}, **more})


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        ({"nodeId": "n"}, ["n"]),
        ({"parent": PLACE, "multisliceParams": {"nodeCount": 3, "nodeIdPrefix": "s"}}, ["s-0", "s-1", "s-2"]),
        ({"parent": PLACE, "multisliceParams": {"nodeCount": 2}}, ["q-0", "q-1"]),
    ],
)
def test_a_queued_resource_names_its_nodes(spec: dict[str, Any], nodes: list[str]) -> None:
    found = decode_queued_resource(queued(spec, state={"state": "ACTIVE", "stateInitiator": "USER"}))
    assert found.node_names == tuple(NodeName("p", "z", name) for name in nodes)
    assert found.status == "ACTIVE"
    assert found.state is not None
    assert found.state.state_initiator == "USER"


def test_a_queued_resource_has_at_most_10000_nodes() -> None:
    for count in (10_000, 10_001):
        found = decode_queued_resource(queued({"multisliceParams": {"nodeCount": count}}))
        if count == 10_000:
            assert (len(found.node_names), found.node_names[-1].name) == (10_000, "q-9999")
        else:
            with pytest.raises(ValueError, match="node_count is 10001"):
                _ = found.node_names


@pytest.mark.parametrize(
    "document",
    [
        {"name": "q", "tpu": {"nodeSpec": [{}]}},
        {"name": f"{PLACE}/queuedResources/q", "tpu": {"nodeSpec": [{"parent": "elsewhere"}]}},
    ],
)
def test_an_implausible_list_of_nodes_is_rejected(document: dict[str, Any]) -> None:
    found = decode_queued_resource(encoded(document))
    with pytest.raises(ValueError, match="is not the name"):
        _ = found.node_names


def test_an_access_token_appears_in_no_repr_or_error() -> None:
    token = decode_token(b'{"access_token": "ya29.secret", "expires_in": "3599", "token_type": "Bearer"}')
    assert (token.access_token, token.expires_in) == ("ya29.secret", 3599.0)
    assert "secret" not in repr(token)
    with pytest.raises(ValueError, match="access_token") as caught:
        decode_token(b'{"access_token": ["ya29.secret"]}')
    assert "secret" not in str(caught.value)


def error(**fields: Any) -> bytes:
    return encoded({"error": fields})


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (b"<html>", Failure()),
        (b'{"error": null}', Failure()),
        (
            error(message="m", details=[{"reason": 5, "metadata": []}, {"retryDelay": "1.5s"}]),
            Failure(message="m", retry_delay=1.5),
        ),
        (error(details=[{"retryDelay": "soon"}, {"retryDelay": "xs"}]), Failure()),
        (
            error(
                details=[
                    {"reason": "FIRST", "metadata": {"k": 1}},
                    {"reason": "SECOND", "metadata": {"k": 2}},
                ]
            ),
            Failure(reason="FIRST", metadata={"k": "1"}),
        ),
        (
            error(details=[{"reason": "R"}], errors=[{"reason": "legacy"}]),
            Failure(reason="R"),
        ),
        (error(message="m", errors=[{"reason": "notFound"}]), Failure(message="m", reason="notFound")),
        (b'{"error": "Not Found"}', Failure()),
    ],
)
def test_a_failure_is_decoded_as_far_as_possible(body: bytes, failure: Failure) -> None:
    assert decode_failure(body) == failure


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["error", "details", "reason", "metadata", "retryDelay", "message", "nodes", "name"]
            ),
            inner,
        )
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_response_is_decoded_or_a_value_error(document: object) -> None:
    body = encoded(document)
    assert isinstance(decode_failure(body), Failure)
    for decode in (decode_node, decode_node_page, decode_queued_resource, decode_token):
        with suppress(ValueError):
            decode(body)
