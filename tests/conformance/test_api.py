"""Responses of an API server to the requests of a resolver: lists, selectors and permissions."""

from typing import Any

import pytest

from .client import TABLE, Client
from .servers import ApiServer
from .states import GRACE, NODE, STATES, Row, manifest, pod

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

COLUMNS = [
    "Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates",
]  # fmt: skip


async def create_states(admin: Client, namespace: str) -> None:
    """Create a pod in each state."""
    await admin.create_pods((state.manifest(namespace), state.status) for state in STATES)
    for state in STATES:
        if state.deleted:
            await admin.delete_pod({"namespace": namespace, "name": state.name}, grace=GRACE)


async def create_labelled_pods(admin: Client, namespace: str) -> None:
    """Create four pods with different labels."""
    labels: dict[str, dict[str, str]] = {
        "a": {"app": "trainer", "tier": "gold", "rank": "5"},
        "b": {"app": "trainer", "tier": "silver", "rank": "12"},
        "c": {"app": "server", "example.com/zone": "z1"},
        "d": {},
    }
    await admin.create_pods((manifest(name, namespace, labels=each), None) for name, each in labels.items())


# -- the representation of pods ----------------------------------------------------------------------------


async def test_each_of_the_states_is_served_as_it_is_recorded(server: ApiServer) -> None:
    async with server.client() as admin:
        await create_states(admin, server.namespace)
        table = await admin.list_pods(server.namespace, accept=TABLE, includeObject="None")
        pods = {
            each["metadata"]["name"]: each for each in (await admin.list_pods(server.namespace)).body["items"]
        }
    cells = [dict(zip(COLUMNS, row["cells"], strict=True)) for row in table.body["rows"]]
    rows = {row["Name"]: Row(row["Ready"], row["Status"], row["IP"], row["Node"]) for row in cells}
    conditions = {row["cells"][0]: row.get("conditions") or [] for row in table.body["rows"]}
    assert set(rows) == set(pods) == {state.name for state in STATES}
    for state in STATES:
        assert rows[state.name] == state.row, state.name
        metadata, status = pods[state.name]["metadata"], pods[state.name]["status"]
        assert status["phase"] == state.phase, state.name
        for name in ("podIP", "podIPs", "hostIP"):
            assert status.get(name) == state.status.get(name), state.name
        assert ("deletionTimestamp" in metadata) == state.deleted, state.name
        assert metadata.get("deletionGracePeriodSeconds") == state.grace, state.name
        assert metadata["labels"] == state.manifest(server.namespace)["metadata"]["labels"], state.name
        assert pods[state.name]["spec"].get("nodeName") == state.spec.get("nodeName", NODE), state.name
        reason = state.completed_reason
        expected = [] if reason is None else [("Completed", "True", reason)]
        found = [(each["type"], each["status"], each["reason"]) for each in conditions[state.name]]
        assert found == expected, state.name


# -- negotiation and selectors -----------------------------------------------------------------------------


async def test_label_selector_selects(server: ApiServer) -> None:
    expected = {
        "app=trainer": "ab",
        "app==trainer": "ab",
        "app!=trainer": "cd",
        "app": "abc",
        "!app": "d",
        "app=": "",
        " app = trainer , tier = gold ": "a",
        "tier in (gold, , silver)": "ab",
        "tier in ()": "",
        "app,tier notin (gold,bronze)": "bc",
        "rank>4,rank<12": "a",
        "example.com/zone=z1": "c",
        "app=trainer,app=server": "",
        "in": "",
        "": "abcd",
    }
    async with server.client() as admin:
        await create_labelled_pods(admin, server.namespace)
        found = {
            selector: (await admin.list_pods(server.namespace, labelSelector=selector)).names
            for selector in expected
        }
        both = {"labelSelector": "app=trainer", "fieldSelector": "metadata.name!=a"}
        assert (await admin.list_pods(server.namespace, **both)).names == ["b"]
    assert found == {selector: list(names) for selector, names in expected.items()}


async def test_invalid_label_selector_is_400(server: ApiServer) -> None:
    invalid = ["=", "app=trainer,", "app==trainer==gold", "app in trainer", "app=(trainer)", "!app=trainer"]
    invalid += ["rank>x", "app=-x", f"app={'x' * 64}", "-app=x"]
    async with server.client() as admin:
        for selector in invalid:
            response = await admin.list_pods(server.namespace, labelSelector=selector)
            assert (response.status, response.body["reason"]) == (400, "BadRequest"), selector


async def test_field_selector_selects(server: ApiServer) -> None:
    expected = {
        "metadata.name!=a": "bc",
        "status.phase==Running,metadata.name!=a": "b",
        "status.podIP=10.8.0.1": "a",
        f"spec.nodeName={NODE}": "ab",
        "spec.nodeName=": "c",
        "metadata.name=a,metadata.name=b": "",
    }
    messages = {
        "status.nothing=1": "field label not supported: status.nothing",
        "status.phase": "invalid selector: 'status.phase'; can't understand 'status.phase'",
        "status.phase>1": "invalid selector: 'status.phase>1'; can't understand 'status.phase>1'",
    }
    async with server.client() as admin:
        await admin.create_pod(*pod("a", server.namespace, "10.8.0.1"))
        await admin.create_pod(*pod("b", server.namespace, "10.8.0.2"))
        await admin.create_pod(manifest("c", server.namespace, nodeName=None))
        for selector, names in expected.items():
            here = await admin.list_pods(server.namespace, fieldSelector=selector)
            scoped = f"metadata.namespace={server.namespace},{selector}"
            everywhere = await admin.list_pods(None, fieldSelector=scoped)
            assert here.names == everywhere.names == list(names), selector
        for selector, message in messages.items():
            response = await admin.list_pods(server.namespace, fieldSelector=selector)
            assert (response.status, response.message) == (400, message)


# -- pages -------------------------------------------------------------------------------------------------


async def test_pages_have_one_version(server: ApiServer) -> None:
    pages: list[dict[str, Any]] = []
    parameters: dict[str, str] = {}
    async with server.client() as admin:
        await admin.create_pods((manifest(f"w-{number}", server.namespace), None) for number in range(8))
        while not pages or pages[-1]["metadata"].get("continue"):
            response = await admin.list_pods(server.namespace, limit="3", **parameters)
            assert response.status == 200, response
            pages.append(response.body)
            parameters = {"continue": response.body["metadata"].get("continue", "")}
            await admin.create_pod(manifest(f"w-0-{len(pages)}", server.namespace))
    assert len({page["metadata"]["resourceVersion"] for page in pages}) == 1
    assert [page["metadata"].get("remainingItemCount") for page in pages] == [5, 2, None]
    names = [item["metadata"]["name"] for page in pages for item in page["items"]]
    assert names == [f"w-{number}" for number in range(8)]
