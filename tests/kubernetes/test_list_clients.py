"""Any object with the list methods of a CoreV1Api, passed as `override_client=`: a wrapper, or a mock."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from aioresolve import KubernetesClusterResolver, Progress, Want, doctor, errors
from aioresolve.kubernetes.api.client import ObjectAPI
from aioresolve.kubernetes.api.queries import PodQuery
from aioresolve.kubernetes.api.transport import client_transport


def pod(name: str, ip: str | None, phase: str = "Running", **metadata: Any) -> Any:
    return SimpleNamespace(
        metadata=SimpleNamespace(name=name, namespace="ml", **metadata),
        status=SimpleNamespace(phase=phase, pod_ip=ip),
    )


def lister(*pods: Any, **options: Any) -> Any:
    """Return a blocking client that lists the pods of all namespaces."""
    client = mock.MagicMock(spec=["list_pod_for_all_namespaces"])
    listed = SimpleNamespace(items=list(pods))
    client.list_pod_for_all_namespaces.configure_mock(**{"return_value": listed, **options})
    return client


def resolver(client: Any, **arguments: Any) -> KubernetesClusterResolver:
    return KubernetesClusterResolver({"worker": "app=train"}, override_client=client, **arguments)


async def test_pods_of_a_blocking_client_are_ordered_by_name() -> None:
    client = lister(pod("train-10", "10.0.0.2"), pod("train-2", "10.0.0.1"))
    spec = await resolver(client).cluster_spec()
    assert spec.as_dict() == {"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]}
    client.list_pod_for_all_namespaces.assert_called_once_with(label_selector="app=train")


async def test_field_selector_is_passed_on() -> None:
    client = lister(pod("train-0", "10.0.0.1"))
    api = ObjectAPI(client_transport(client), max_concurrency=1)
    await api.objects(PodQuery("app=train", name="train-0"), Progress())
    client.list_pod_for_all_namespaces.assert_called_once_with(
        label_selector="app=train", field_selector="metadata.name=train-0"
    )


async def test_attributes_of_a_pod_and_of_its_list_are_read() -> None:
    one = pod("train-0", "10.0.0.1", annotations={"batch.kubernetes.io/job-completion-index": "0"}, uid="u-1")
    one.spec = SimpleNamespace(node_name="node-a", hostname="zero", subdomain="train")
    listed = SimpleNamespace(items=[one], metadata=SimpleNamespace(resource_version="42"))
    client = lister(return_value=listed)
    state = await resolver(client, address="hostname", order_by="index").cluster_state()
    [endpoint] = state.endpoints["worker"]
    assert endpoint.address == "zero.train.ml.svc:8470"
    assert (endpoint.uid, endpoint.node, endpoint.index, state.version) == ("u-1", "node-a", 0, "42")


async def test_pods_that_end_or_have_not_started_are_no_members() -> None:
    leaving = pod("train-0", "10.0.0.1", deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    spec = await resolver(lister(leaving, pod("train-1", "10.0.0.2"))).cluster_spec()
    assert spec.as_dict() == {"worker": ["10.0.0.2:8470"]}
    with pytest.raises(errors.PodNotRunningError, match="ml/train-0: Pending"):
        await resolver(lister(pod("train-0", None, "Pending"))).cluster_spec()


async def test_attributes_that_a_mock_did_not_set_are_ignored() -> None:
    mocked = mock.MagicMock()
    mocked.metadata.name, mocked.status.phase, mocked.status.pod_ip = "train-0", "Running", "10.0.0.1"
    assert (await resolver(lister(mocked)).cluster_spec()).as_dict() == {"worker": ["10.0.0.1:8470"]}


def model(**fields: Any) -> Any:
    """Return an object like those of the package `kubernetes`, with these fields of the API."""
    attributes = {f"{name.lower()}_": name for name in fields}
    return SimpleNamespace(attribute_map=attributes, **dict(zip(attributes, fields.values(), strict=True)))


async def test_namespace_is_the_first_argument_and_controllers_in_models_are_not_read() -> None:
    owner = model(apiVersion="batch/v1", kind="Job", name="train", uid="u-1", controller=True)
    created = datetime(2026, 1, 1, tzinfo=UTC)
    metadata = model(name="train-0", labels=None, ownerReferences=[owner], creationTimestamp=created)
    one = model(metadata=metadata, status=model(phase="Running", podIP="10.0.0.1"))
    client = mock.MagicMock(spec=["list_namespaced_pod"])
    client.list_namespaced_pod.return_value = SimpleNamespace(items=[one])
    found = await resolver(client, namespace="ml").observe(Want(sizes=True), Progress())
    assert found.state is not None
    assert (found.state.spec.as_dict(), found.expected) == ({"worker": ["10.0.0.1:8470"]}, {})
    client.list_namespaced_pod.assert_called_once_with("ml", label_selector="app=train")


async def test_doctor_checks_only_the_tasks_and_does_not_say_what_exists_instead() -> None:
    checks = await doctor(resolver(lister()))
    assert [check.name for check in checks] == ["tasks", "addresses", "this task"]
    assert checks[0].found == "job 'worker': 0 tasks"


async def test_error_of_the_client_is_reported_and_not_retried() -> None:
    client = lister(side_effect=KeyError("broken"))
    with pytest.raises(errors.ConnectionFailedError, match=r"list_pod_for_all_namespaces\(\) .* KeyError"):
        await resolver(client).cluster_spec()
    assert client.list_pod_for_all_namespaces.call_count == 1
    denied = '{"message": "User \\"a\\" cannot list resource \\"pods\\""}'
    for status, body, message in (
        (403, denied, "user 'a' may not list pods"),
        (403, denied.encode(), "user 'a' may not list pods"),
        (401, None, "rejects the credentials from override_client"),
        (300, b"", "redirects selector 'app=train' in all namespaces to nowhere"),
        (0, None, "it raised RefusedError"),  # no response
    ):
        refused = type("RefusedError", (Exception,), {"status": status, "body": body, "headers": None})
        with pytest.raises(errors.ResolveError, match=message):
            await resolver(lister(side_effect=refused)).cluster_spec()


async def test_result_that_is_not_a_pod_list_is_refused_and_a_missing_method_named() -> None:
    returned: Any
    for returned in (None, [], {"items": []}, SimpleNamespace(items=None)):
        with pytest.raises(errors.ConfigurationError, match="not a list of pods"):
            await resolver(lister(return_value=returned)).cluster_spec()
    with pytest.raises(errors.ConfigurationError, match="has no method list_namespaced_pod"):
        await resolver(lister(), namespace="ml").cluster_spec()


def test_object_that_is_no_client_or_only_lists_pods_is_refused() -> None:
    for client in (object(), "client", type("ApiClient", (), {})()):
        with pytest.raises(errors.ConfigurationError, match="Pass a kubernetes_asyncio ApiClient or CoreV1"):
            resolver(client)
    with pytest.raises(errors.ConfigurationError, match="that list pods, not Services") as caught:
        KubernetesClusterResolver(service="trainer", override_client=lister())
    assert caught.value.argument == "override_client"


async def test_nothing_but_pods_is_requested_to_wait_and_to_diagnose() -> None:
    job = SimpleNamespace(api_version="batch/v1", kind="Job", name="train", uid="u-1", controller=True)
    client = lister(pod("train-0", "127.0.0.1", owner_references=[job]))
    assert len((await resolver(client).wait(ready=False)).members) == 1
    tasks, *_ = await doctor(resolver(client))
    assert (tasks.name, tasks.found) == ("tasks", "job 'worker': 0 tasks; ml/train-0: no Ready condition yet")
    with pytest.raises(errors.IncompleteClusterError, match=r"0 of 1 tasks in total\. Check"):
        await resolver(lister()).wait(1, timeout=0.2)
