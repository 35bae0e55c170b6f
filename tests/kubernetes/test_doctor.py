"""`aioresolve.doctor` of pods: each defect has a row with a remedy, and the other rows remain."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import aioresolve
from aioresolve import CONTEXT_NAMESPACE
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.resolver.checks import Check
from aioresolve.testing import Answer, pod, service

from .kubeconfigs import base64_of, exec_user, isolate, kubeconfig, write_file
from .loopback import TOKEN, TRAIN, Loopback
from .peers import connect_proxy, peer, responder

SERVER = ["configuration", "credentials", "API server"]
TASKS = ["tasks", "addresses", "this task"]


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def diagnose(loopback: Loopback, **arguments: Any) -> dict[str, Check]:
    """Return the checks of the pods with the label `app=train` in the namespace `ml`, by name."""
    resolver = loopback.resolver({"worker": "app=train"}, **{"namespace": "ml", **arguments})
    return {check.name: check for check in await aioresolve.doctor(resolver)}


def names(checks: dict[str, Check], result: str) -> list[str]:
    return [name for name, check in checks.items() if check.result == result]


def remedy(check: Check) -> str:
    assert check.remedy is not None
    return check.remedy.render()


def train(loopback: Loopback, *indices: int, **more: Any) -> None:
    """Add the pods `train-INDEX` with an address of this machine."""
    for index in indices:
        one = pod(f"train-{index}", "ml", labels=TRAIN, index=index, **{"ip": "127.0.0.1", **more})
        loopback.server.add(one)


async def test_healthy_cluster_has_only_ok_rows(loopback: Loopback) -> None:
    train(loopback, 0, 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        checks = await diagnose(loopback, tf_server_port=listener.getsockname()[1])
    assert list(checks) == names(checks, "ok") == [*SERVER, "list pods", "watch pods", *TASKS]
    source = f"kubeconfig {loopback.kubeconfig}, context 'loopback'"
    for name, found in (
        ("configuration", f"{loopback.server.url} from {source}, namespace 'default'"),
        ("credentials", "user 'loopback': token"),
        ("API server", f"Kubernetes v1.36.2 at {loopback.server.url}"),
        ("list pods", "allowed in namespace 'ml'"),
        ("tasks", "job 'worker': 2 tasks"),
        ("addresses", "2 of 2 tasks accept a TCP connection"),
    ):
        assert checks[name].found == found


# The configuration and the credentials


async def test_missing_kubeconfig_is_named_and_everything_else_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate(tmp_path, monkeypatch)
    first, *others = await aioresolve.doctor(KubernetesClusterResolver({"worker": "app=train"}))
    assert (first.name, first.result) == ("configuration", "failed")
    assert "no credentials for an API server were found. Tried $KUBECONFIG: is not set" in first.found
    assert "KUBECONFIG" in remedy(first)
    assert {(other.result, other.found) for other in others} == {
        ("skipped", "not checked, because 'configuration' failed")
    }


async def test_kind_of_credentials_is_shown_and_a_missing_plugin_reported(tmp_path: Path) -> None:
    for user, result, found in (
        ({"token": "t"}, "ok", "user 'dev': token"),
        ({}, "warning", "user 'dev': no credentials: requests are anonymous"),
        (exec_user(tmp_path / "no-plugin"), "failed", "the plugin 'no-plugin' (kubeconfig "),
    ):
        path = write_file(tmp_path / "config", kubeconfig(user, server="https://127.0.0.1:9"))
        resolver = KubernetesClusterResolver({"worker": "app=train"}, kubeconfig=path)
        checks = {check.name: check for check in await aioresolve.doctor(resolver)}
        assert checks["credentials"].result == result
        assert checks["credentials"].found.startswith(found)


async def test_service_account_of_a_pod_is_checked(
    loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate(tmp_path, monkeypatch)
    variables = loopback.server.in_cluster(tmp_path / "serviceaccount", token=TOKEN, namespace="ml")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    checks = await diagnose(loopback, kubeconfig=None, namespace=CONTEXT_NAMESPACE)
    assert checks["configuration"].found == (
        f"{loopback.server.url} from in-cluster service account, namespace 'ml'"
    )
    assert checks["credentials"].found == f"token file {tmp_path / 'serviceaccount' / 'token'}"
    assert checks["list pods"].found == "allowed in namespace 'ml'"


# The API server


async def test_server_that_cannot_be_used_is_named_with_the_reason(loopback: Loopback, port: int) -> None:
    trusted = loopback.kubeconfig.read_text()
    for changes, reason, hint in (
        ({"server": f"https://127.0.0.1:{port}"}, "connection refused", "that the server runs"),
        (
            {"certificate_authority_data": base64_of(trustme.CA().cert_pem.bytes())},
            "was not accepted: self-signed certificate",
            "Correct certificate-authority",
        ),
        ({"proxy_url": f"http://127.0.0.1:{port}"}, "through the proxy", "that the server runs"),
    ):
        loopback.kubeconfig.write_text(trusted)
        loopback.edit_kubeconfig(**changes)
        checks = await diagnose(loopback)
        assert names(checks, "failed") == ["API server"]
        assert reason in checks["API server"].found
        assert hint in remedy(checks["API server"])
        assert checks["tasks"].found == "not checked, because 'API server' failed"


async def test_proxy_is_named_without_its_password(loopback: Loopback) -> None:
    with peer(connect_proxy([])) as proxy:
        loopback.edit_kubeconfig(proxy_url=f"http://ada:hunter22@127.0.0.1:{proxy}")
        checks = await diagnose(loopback)
    assert f"through the proxy http://127.0.0.1:{proxy} from" in checks["configuration"].found
    assert checks["API server"].result == "ok"
    assert "hunter22" not in str(checks)


async def test_server_may_hide_its_version_but_must_be_an_api_server(loopback: Loopback) -> None:
    url = loopback.server.url
    for response, result, found in (
        (Answer(403), "ok", f"{url} responded; its version is unknown (status 403)"),
        (Answer(500, b'{"message": "no etcd"}'), "failed", f"{url} returned status 500 ('no etcd')"),
        (Answer(429, b""), "failed", f"{url} returned status 429 ('no reason given')"),
        (Answer(200, b"<html>Log in"), "failed", f"{url} is not a Kubernetes API server"),
        (Answer(302, headers={"Location": "/login"}), "failed", f"{url} is not a Kubernetes API server"),
    ):
        loopback.server.clear_faults()
        loopback.server.inject(response, match=lambda request: request.path == "/version", times=None)
        check = (await diagnose(loopback))["API server"]
        assert check.result == result
        assert check.found.startswith(found)


async def test_no_credentials_are_sent_over_plain_http(loopback: Loopback) -> None:
    with peer(responder(b"HTTP/1.1 403 X\r\nContent-Length: 0\r\n\r\n")) as plain:
        loopback.edit_kubeconfig(server=f"http://127.0.0.1:{plain}")
        checks = await diagnose(loopback)
    assert (checks["credentials"].result, checks["credentials"].found) == (
        "warning",
        "none are sent over plain http",
    )


async def test_rejected_credentials(loopback: Loopback) -> None:
    loopback.server.tokens = {"another": "alice"}
    checks = await diagnose(loopback)
    assert names(checks, "failed") == ["API server"]
    assert checks["API server"].found == (
        f"{loopback.server.url} rejects the credentials (user 'loopback': token; from kubeconfig"
        f" {loopback.kubeconfig}, context 'loopback')"
    )
    assert "Log in again" in remedy(checks["API server"])


# Permissions


async def test_denied_verb(loopback: Loopback) -> None:
    train(loopback, 0)
    for denied, wanted, tasks in (("watch", "[list, watch]", "ok"), ("list", "[list]", "skipped")):
        loopback.server.verbs["alice"] = {"list", "watch", "get"} - {denied}
        checks = await diagnose(loopback)
        failed = checks[f"{denied} pods"]
        assert failed.result == "failed"
        refusal = f"{loopback.server.url} returned 403 for namespace 'ml'"  # for any selector
        assert failed.found == f"user 'alice' may not {denied} pods in namespace 'ml': {refusal}"
        assert f"verbs: {wanted}" in remedy(failed)
        assert checks["tasks"].result == tasks


async def test_namespace_of_the_context_is_used(loopback: Loopback) -> None:
    loopback.server.write_kubeconfig(loopback.kubeconfig, namespace="ml")
    checks = await diagnose(loopback, namespace=CONTEXT_NAMESPACE)
    assert checks["list pods"].found == "allowed in namespace 'ml'"
    loopback.server.write_kubeconfig(loopback.kubeconfig, namespace="..")
    checks = await diagnose(loopback, namespace=CONTEXT_NAMESPACE)
    assert (checks["configuration"].result, checks["list pods"].result) == ("ok", "failed")
    assert "'..' is not a valid namespace name" in checks["list pods"].found


async def test_order_by_labels_of_nodes_needs_a_permission(loopback: Loopback) -> None:
    train(loopback, 0)
    order_by = ["node-label:topology.kubernetes.io/rack"]
    assert (await diagnose(loopback, order_by=order_by))["list nodes"].result == "ok"
    loopback.server.resources = {"alice": {"pods"}}
    check = (await diagnose(loopback, order_by=order_by))["list nodes"]
    assert check.result == "failed"
    assert check.found.startswith("user 'alice' may not list nodes in the cluster")
    assert "kind: ClusterRole" in remedy(check)


# The tasks


async def test_selector_that_matches_nothing_is_explained(loopback: Loopback) -> None:
    loopback.server.add(pod("other", "ml", labels={"app": "trainer"}))
    checks = await diagnose(loopback)
    assert checks["tasks"].result == "failed"
    assert checks["tasks"].found.startswith(
        "job 'worker': 0 tasks; no pod matches app=train in namespace 'ml'; values of app there: trainer"
    )
    assert "Correct what selects the tasks" in remedy(checks["tasks"])
    assert names(checks, "skipped") == ["addresses", "this task"]


async def test_pods_that_are_not_running_are_named_and_the_others_connected_to(
    loopback: Loopback, port: int
) -> None:
    train(loopback, 0)
    train(loopback, 1, phase="Pending", node=None, ip=None, reason="Unschedulable")
    train(loopback, 2, deleting=True)
    train(loopback, 3, ready=False, waiting="CrashLoopBackOff", restarts=3)
    checks = await diagnose(loopback, tf_server_port=port)
    found = checks["tasks"]
    assert found.result == "failed"
    assert found.found.startswith("job 'worker': 1 task; ml/train-3: CrashLoopBackOff: ")
    assert "; ml/train-1: Pending (Unschedulable" in found.found
    assert "pass `not_running='skip'` to leave them out" in remedy(found)
    assert checks["addresses"].found.startswith("2 of 2 tasks accept no TCP connection: ml/train-0: ")
    skipping = (await diagnose(loopback, not_running="skip"))["tasks"]
    assert (skipping.result, "ml/train-1: Pending" in skipping.found) == ("warning", True)
    loopback.server.delete("train-1", "ml")
    unready = (await diagnose(loopback))["tasks"]
    assert (unready.result, "aioresolve wait" in remedy(unready)) == ("warning", True)


async def test_missing_and_repeated_indices_are_the_error_of_the_resolver(loopback: Loopback) -> None:
    train(loopback, 0, 1, 3)
    found = (await diagnose(loopback, order_by="index"))["tasks"]
    assert found.result == "failed"
    assert found.found.startswith("job 'worker': 3 tasks; ")
    assert "no pod has index 2" in found.found
    loopback.server.add(pod("other-1", "ml", labels=TRAIN, index=1))
    found = (await diagnose(loopback, order_by="index"))["tasks"]
    assert "index 1 is claimed by ml/other-1 and ml/train-1" in found.found


async def test_number_of_pods_that_the_controller_wants_is_compared(loopback: Loopback) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "ml"}}
    loopback.server.add_controllers(job | {"spec": {"completions": 2, "parallelism": 2}})
    for index, result, found in ((0, "warning", "job 'worker': 1 of 2 tasks ("), (1, "ok", "2 of 2 tasks (")):
        labels = {**TRAIN, "batch.kubernetes.io/job-name": "train"}
        one = pod(f"train-{index}", "ml", labels=labels, index=index, ip="127.0.0.1")
        one["metadata"]["ownerReferences"] = [owner]
        loopback.server.add(one)
        check = (await diagnose(loopback))["tasks"]
        assert check.result == result
        assert found in check.found


async def test_service_needs_permission_for_its_endpoint_slices(loopback: Loopback) -> None:
    loopback.server.add(service("train", "ml", selector=TRAIN, ports={"": 8470}))
    train(loopback, 0)
    train(loopback, 1, ready=False)
    resolver = KubernetesClusterResolver(service="train", namespace="ml", kubeconfig=loopback.kubeconfig)
    loopback.server.resources = {"alice": {"endpointslices"}}
    checks = {check.name: check for check in await aioresolve.doctor(resolver)}
    assert list(checks) == [*SERVER, "list endpointslices", "watch endpointslices", *TASKS]
    assert checks["watch endpointslices"].found == "allowed in namespace 'ml'"
    assert checks["tasks"].result == "failed"
    assert checks["tasks"].found.startswith("job 'worker': 1 task; ml/train-1: ")
    loopback.server.resources = {"alice": {"pods"}}
    checks = {check.name: check for check in await aioresolve.doctor(resolver)}
    denied = checks["list endpointslices"]
    assert denied.found.startswith("user 'alice' may not list endpointslices in namespace 'ml'")
    assert checks["tasks"].result == "skipped"
