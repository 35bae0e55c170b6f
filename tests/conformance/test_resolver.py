"""KubernetesClusterResolver with both API servers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from aioresolve.errors import (
    ForbiddenError,
    PodNotRunningError,
)
from aioresolve.kubernetes import KubernetesClusterResolver

from .servers import ApiServer, RealServer
from .states import GRACE, STATES, State, pod

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

MEMBERS = [state for state in STATES if state.is_member]
FAULTS = [state for state in STATES if not state.is_member and not state.deleted]


async def create_states(server: ApiServer) -> None:
    """Create a pod in each state."""
    async with server.client() as admin:
        await admin.create_pods((state.manifest(server.namespace), state.status) for state in STATES)
        for state in STATES:
            if state.deleted:
                await admin.delete_pod({"namespace": server.namespace, "name": state.name}, grace=GRACE)


def resolver(
    server: ApiServer, folder: Path, *selectors: str, user: str = "admin", **options: Any
) -> KubernetesClusterResolver:
    """Return a resolver for the pods of the test's namespace; `options` override its arguments."""
    arguments = {"namespace": server.namespace, "kubeconfig": server.kubeconfig(folder, user), **options}
    return KubernetesClusterResolver({"worker": list(selectors)}, **arguments)


def address(ip: str) -> str:
    return f"[{ip}]:8470" if ":" in ip else f"{ip}:8470"


def addresses(states: list[State]) -> list[str]:
    """Return the addresses of members, ordered by name; no name has more than one number."""
    return [address(state.status["podIP"]) for state in sorted(states, key=lambda state: state.name)]


# -- every state -------------------------------------------------------------------------------------------


async def test_pods_that_are_not_running_are_listed_with_phase_and_reason(
    server: ApiServer, tmp_path: Path
) -> None:
    await create_states(server)
    one = resolver(server, tmp_path, "state")
    with pytest.raises(PodNotRunningError) as from_rows:
        await one.cluster_spec()
    with pytest.raises(PodNotRunningError) as from_pods:
        await one.cluster_state()
    seen = from_rows.value.pods
    assert seen == from_pods.value.pods
    assert from_rows.value.retryable
    assert set(seen) == {f"{server.namespace}/{state.name}" for state in FAULTS}
    assert {name: text for name, text in seen.items() if not text.startswith(phase_of(name))} == {}
    reasons = {
        "creating": "ContainerCreating",
        "init-crash": "CrashLoopBackOff",
        "pending": "Unschedulable",
        "evicted": "Evicted",
        "lost": "NodeLost",
    }
    for name, reason in reasons.items():
        assert reason in seen[f"{server.namespace}/{name}"]


async def test_every_running_pod_with_an_address_is_a_member(server: ApiServer, tmp_path: Path) -> None:
    await create_states(server)
    one = resolver(server, tmp_path, "state", not_running="skip")
    spec, found = await one.cluster_spec(), await one.cluster_state()
    assert spec.job_tasks("worker") == addresses(MEMBERS)
    assert found.spec == spec
    assert [each.name for each in found.endpoints["worker"]] == sorted(state.name for state in MEMBERS)
    members = resolver(server, tmp_path, "member=true")
    assert (await members.cluster_spec()).job_tasks("worker") == addresses(MEMBERS)


# -- permissions -------------------------------------------------------------------------------------------


async def test_forbidden_error_has_verb_scope_and_manifest(server: ApiServer, tmp_path: Path) -> None:
    user = "limited"
    for namespace, scope, kinds in (
        (None, "all namespaces", ["ClusterRole", "ClusterRoleBinding"]),
        ("default", "namespace 'default'", ["Role", "RoleBinding"]),
    ):
        with pytest.raises(ForbiddenError, match="may not list pods") as caught:
            await resolver(server, tmp_path, "app=trainer", user=user, namespace=namespace).cluster_spec()
        error = caught.value
        assert (error.status, error.host, error.reason) == (403, server.url, "Forbidden")
        assert scope in str(error)
        assert repr(user) in str(error)
        assert error.manifest in str(error)
        assert ("namespace=" in str(error)) == (namespace is None)
        documents = list(yaml.safe_load_all(error.manifest))
        assert [document["kind"] for document in documents] == kinds
        assert {document["metadata"].get("namespace") for document in documents} == {namespace}
        assert server.tokens[user] not in str(error) + repr(error.__cause__)


@pytest.mark.parametrize(("user", "scope"), [("applicant", "namespace"), ("cluster-applicant", "cluster")])
async def test_manifest_of_a_forbidden_error_is_sufficient(
    server: ApiServer, tmp_path: Path, user: str, scope: str
) -> None:
    if not isinstance(server, RealServer):
        pytest.skip("the embedded server has no RBAC objects to apply")
    namespace = server.namespace if scope == "namespace" else None
    one = resolver(server, tmp_path, f"test={server.namespace}", user=user, namespace=namespace)
    async with server.client() as admin:
        await admin.create_pod(*pod("one", server.namespace, "10.8.0.1", labels={"test": server.namespace}))
        with pytest.raises(ForbiddenError) as caught:
            await one.cluster_spec()
        for document in yaml.safe_load_all(caught.value.manifest):
            await admin.write("POST", rbac_path(document), document)
        await server.wait_until_allowed(user, namespace)
    assert list((await one.cluster_spec()).job_tasks("worker")) == ["10.8.0.1:8470"]
    assert [endpoint.name for endpoint in (await one.cluster_state()).endpoints["worker"]] == ["one"]


# -- helpers -----------------------------------------------------------------------------------------------


def phase_of(full_name: str) -> str:
    """Return the phase of the pod `namespace/name`."""
    (phase,) = [state.phase for state in STATES if state.name == full_name.partition("/")[2]]
    return phase


def rbac_path(document: Mapping[str, Any]) -> str:
    """Return the path to which an RBAC object is posted."""
    namespace = document["metadata"].get("namespace")
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{document['apiVersion']}{scope}/{document['kind'].lower()}s"
