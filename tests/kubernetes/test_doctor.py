"""`aioresolve.doctor` of pods: each defect has a row with a remedy, and the other rows remain."""

from __future__ import annotations

import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest
import trustme

import aioresolve
from aioresolve import CONTEXT_NAMESPACE
from aioresolve._core import network
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.testing import Answer, TPUWorker, pod, resource_claim, service

from .kubeconfigs import base64_of, exec_user, id_token, isolate, kubeconfig, write_file
from .loopback import TOKEN, TRAIN, Loopback, point_kubeconfig_to
from .peers import connect_proxy, peer, responder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.resolver import Check

CONNECTION = ["configuration", "credentials", "TCP", "TLS"]
SERVER = ["API server", "clock", "authentication", "list pods", "watch pods"]
PODS = ["pods with app=train", "indices of worker", "tasks", "size", "ResourceClaims", "headless Service"]
TASKS = ["addresses", "this task"]
ALL = [*CONNECTION, *SERVER, *PODS, *TASKS]
FAILURE = b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def diagnose(loopback: Loopback, *, check_timeout: float = 30.0, **arguments: Any) -> dict[str, Check]:
    """Return the checks by name."""
    resolver = loopback.resolver(**{"namespace": "ml", **arguments})
    checks = await aioresolve.doctor(resolver, timeout=120.0, check_timeout=check_timeout)
    return {check.name: check for check in checks}


def names(checks: dict[str, Check], result: str) -> list[str]:
    return [name for name, check in checks.items() if check.result == result]


def remedy(check: Check) -> str:
    assert check.remedy is not None
    return check.remedy.render()


def train(loopback: Loopback, *indices: int, **more: Any) -> None:
    for index in indices:
        loopback.add_trainers(f"train-{index}", **{"index": index, "ip": "127.0.0.1", **more})


async def test_healthy_cluster_has_only_ok_rows(loopback: Loopback) -> None:
    loopback.server.add(service("train", "ml"))
    async with TPUWorker(devices=4) as worker:
        train(loopback, 0, 1, hostname="train-0", subdomain="train")
        checks = await diagnose(loopback, tf_server_port=int(worker.address.rpartition(":")[2]))
    assert list(checks) == ALL
    assert names(checks, "ok") == [name for name in ALL if name != "size"]
    source = f"kubeconfig {loopback.kubeconfig}, context 'loopback'"
    for name, found in (
        ("configuration", f"{loopback.server.url} from {source}, namespace 'default'"),
        ("credentials", "user 'loopback': token"),
        ("TCP", "connected to the API server at 127.0.0.1:"),
        ("TLS", "certificate for localhost, 127.0.0.1, "),
        ("API server", "Kubernetes v1.36.2"),
        ("pods with app=train", "2 pods in namespace 'ml': 2 running"),
        ("indices of worker", "0 to 1, without gaps"),
        ("tasks", "worker: 2"),
        ("headless Service", "ml/train exists, and is headless"),
    ):
        assert checks[name].found.startswith(found)


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


async def test_kind_and_expiry_of_credentials_are_shown(tmp_path: Path, port: int) -> None:
    for user, result, found in (
        ({"token": id_token(exp=4102444800)}, "ok", "user 'dev': token, valid until 2100-01-01T00:00:00Z"),
        ({"token": id_token(exp=0)}, "failed", "user 'dev': token, expired at 1970-01-01T00:00:00Z"),
        ({}, "warning", "user 'dev': no credentials: requests are anonymous"),
        (exec_user(tmp_path / "no-plugin"), "failed", "the plugin 'no-plugin' (kubeconfig "),
    ):
        path = write_file(tmp_path / "config", kubeconfig(user, server=f"https://127.0.0.1:{port}"))
        resolver = KubernetesClusterResolver({"worker": "app=train"}, kubeconfig=path)
        checks = {check.name: check for check in await aioresolve.doctor(resolver)}
        assert checks["credentials"].result == result
        assert checks["credentials"].found.startswith(found)
        refused = f"no TCP connection to 127.0.0.1:{port}: Connection refused"
        assert checks["TCP"].found == refused
        assert "the server runs" in remedy(checks["TCP"])
        assert checks["TLS"].found == "not checked, because 'TCP' failed"


async def test_expiry_of_a_certificate_and_the_service_account_of_a_pod_are_shown(
    loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = loopback.server.write_kubeconfig(tmp_path / "certificate", certificate_of="alice")
    checks = await diagnose(loopback, kubeconfig=path)
    assert checks["credentials"].found.startswith("user 'loopback': client certificate, valid until 3")
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


# The way to the API server


async def test_name_of_the_first_hop_is_looked_up(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(host: str, *_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(network, "_addresses", look_up)
    loopback.edit_kubeconfig(server="https://api.example:6443")
    checks = await diagnose(loopback)
    assert names(checks, "failed") == ["TCP"]
    assert checks["TCP"].found == "no TCP connection to api.example:6443: Name or service not known"
    assert remedy(checks["TCP"]).startswith("Check that the address is correct, that the server runs")
    assert checks["credentials"].result == "ok"


async def test_certificate_of_another_authority_and_a_port_without_tls(loopback: Loopback) -> None:
    trusted = loopback.kubeconfig.read_text()
    loopback.edit_kubeconfig(certificate_authority_data=base64_of(trustme.CA().cert_pem.bytes()))
    checks = await diagnose(loopback)
    assert names(checks, "failed") == ["TLS"]
    found = checks["TLS"].found
    assert found.startswith(f"the certificate of {loopback.server.url} was not accepted: ")
    assert "Correct certificate-authority" in remedy(checks["TLS"])
    loopback.kubeconfig.write_text(trusted)

    def respond(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with peer(respond) as plain:
        loopback.edit_kubeconfig(server=f"https://127.0.0.1:{plain}")
        checks = await diagnose(loopback)
    assert names(checks, "failed") == ["TLS"]
    assert checks["TLS"].found.startswith(f"TLS with https://127.0.0.1:{plain} failed: ")
    assert remedy(checks["TLS"]).startswith("Check that the port speaks https")


async def test_dates_and_names_of_a_certificate(loopback: Loopback) -> None:
    for host, begins, ends, result, found, hint in (
        ("127.0.0.1", -60, -30, "failed", "certificate has expired", "Renew the"),
        ("127.0.0.1", 30, 60, "failed", "is not yet valid", "Renew the"),
        ("127.0.0.1", -1, 6.5, "warning", "certificate for 127.0.0.1", "Renew the"),
        ("127.0.0.1", -1, 7.5, "ok", "certificate for 127.0.0.1", ""),
        ("api.example", -1, 30, "failed", "certificate is not valid for '127.0.0.1'", "tls-server-name"),
    ):
        authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        dates = [datetime.now(UTC) + timedelta(days=days) for days in (begins, ends)]
        authority.issue_cert(host, not_before=dates[0], not_after=dates[1]).configure_cert(context)
        with peer(responder(FAILURE), context) as port:
            point_kubeconfig_to(loopback, authority.cert_pem.bytes(), port)
            checks = await diagnose(loopback)
        assert checks["TLS"].result == result
        assert found in checks["TLS"].found
        assert not hint or hint in remedy(checks["TLS"])
        if result != "failed":
            assert checks["API server"].found.endswith("returned status 500 ('no reason given')")


async def test_connection_without_verification_or_tls_is_a_warning(loopback: Loopback) -> None:
    document = json.loads(loopback.kubeconfig.read_text())
    cluster = document["clusters"][0]["cluster"]
    del cluster["certificate-authority-data"]
    cluster["insecure-skip-tls-verify"] = True
    loopback.kubeconfig.write_text(json.dumps(document))
    check = (await diagnose(loopback))["TLS"]
    assert (check.result, check.found) == ("warning", "the certificate is not verified")
    with peer(responder(FAILURE)) as plain:
        loopback.edit_kubeconfig(server=f"http://127.0.0.1:{plain}")
        checks = await diagnose(loopback)
    assert checks["credentials"].found == "none are sent over plain http"
    assert (checks["TLS"].result, checks["TLS"].found) == ("warning", "not used by http")


async def test_proxy_is_the_first_hop(loopback: Loopback, port: int) -> None:
    seen: list[bytes] = []
    with peer(connect_proxy(seen)) as proxy:
        loopback.edit_kubeconfig(proxy_url=f"http://ada:hunter22@127.0.0.1:{proxy}")
        checks = await diagnose(loopback)
    assert seen
    assert f"through the proxy http://127.0.0.1:{proxy} from" in checks["configuration"].found
    assert checks["TLS"].found == "the certificate is checked by the next request, through the proxy"
    assert checks["authentication"].result == "ok"
    assert "hunter22" not in str(checks)
    loopback.edit_kubeconfig(proxy_url=f"http://127.0.0.1:{port}")
    checks = await diagnose(loopback)
    assert names(checks, "failed") == ["TCP"]
    assert remedy(checks["TCP"]).startswith("Correct proxy-url in the kubeconfig")


async def test_server_may_hide_its_version_but_must_be_an_api_server(loopback: Loopback) -> None:
    for response, result, found in (
        (Answer(403), "ok", f"{loopback.server.url} responded; its version is unknown (status 403)"),
        (Answer(200, b"<html>Log in"), "failed", "is not a Kubernetes API server"),
        (Answer(302, headers={"Location": "/login"}), "failed", "is not a Kubernetes API server"),
    ):
        loopback.server.clear_faults()
        loopback.server.inject(response, match=lambda request: request.path == "/version", times=None)
        check = (await diagnose(loopback))["API server"]
        assert check.result == result
        assert found in check.found


async def test_clocks_may_differ_by_a_minute(loopback: Loopback) -> None:
    for seconds, result, found in (
        (-30, "ok", "differs from that of the server by "),
        (90, "failed", "s behind that of the server"),
        (-90, "failed", "s ahead of that of the server"),
        (None, "skipped", "the server does not report its time"),
    ):
        date = "today"
        if seconds is not None:
            date = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
        version = Answer(200, b'{"gitVersion": "v1.36.2"}', {"Date": date})
        loopback.server.inject(version, match=lambda request: request.path == "/version")
        check = (await diagnose(loopback))["clock"]
        assert check.result == result
        assert found in check.found
        assert result != "failed" or "NTP" in remedy(check)


# Authentication and permissions


async def test_rejected_credentials(loopback: Loopback) -> None:
    loopback.server.tokens = {"another": "alice"}
    checks = await diagnose(loopback)
    assert names(checks, "failed") == ["authentication"]
    assert names(checks, "ok") == [*CONNECTION, "API server", "clock"]
    assert checks["authentication"].found == (
        f"{loopback.server.url} rejects the credentials (user 'loopback': token; from kubeconfig"
        f" {loopback.kubeconfig}, context 'loopback')"
    )
    assert "Log in again" in remedy(checks["authentication"])


async def test_denied_verb(loopback: Loopback) -> None:
    train(loopback, 0)
    for denied, wanted, tasks in (("watch", "[list, watch]", "ok"), ("list", "[list]", "skipped")):
        loopback.server.verbs["alice"] = {"list", "watch", "get"} - {denied}
        checks = await diagnose(loopback)
        failed = checks[f"{denied} pods"]
        assert failed.result == "failed"
        assert failed.found.startswith(f"user 'alice' may not {denied} pods in namespace 'ml'")
        assert f"verbs: {wanted}" in remedy(failed)
        assert checks["tasks"].result == tasks


async def test_denied_namespace_leaves_the_others_checked(loopback: Loopback) -> None:
    train(loopback, 0)
    loopback.server.allow = {"alice": {"ml"}}
    checks = await diagnose(loopback, namespace=["ml", "web"])
    denied = ["list pods (web)", "watch pods (web)"]
    assert [name for name in names(checks, "failed") if "pods" in name] == denied
    assert checks["list pods (ml)"].found == "allowed in namespace 'ml'"
    assert checks["pods with app=train (ml)"].found == "1 pod in namespace 'ml': 1 running"
    assert checks["pods with app=train (web)"].result == "skipped"
    assert 'namespace: "web"' in remedy(checks["list pods (web)"])
    checks = await diagnose(loopback, namespace=None)
    assert "kind: ClusterRole\n" in remedy(checks["list pods"])


async def test_namespace_of_the_context_is_used(loopback: Loopback) -> None:
    loopback.server.write_kubeconfig(loopback.kubeconfig, namespace="ml")
    checks = await diagnose(loopback, namespace=CONTEXT_NAMESPACE)
    assert checks["list pods"].found == "allowed in namespace 'ml'"
    loopback.server.write_kubeconfig(loopback.kubeconfig, namespace="..")
    checks = await diagnose(loopback, namespace=CONTEXT_NAMESPACE)
    assert (checks["configuration"].result, checks["list pods"].result) == ("ok", "failed")
    assert "'..' is not a valid namespace name" in checks["list pods"].found


# Pods


async def test_selector_that_matches_nothing(loopback: Loopback) -> None:
    checks = await diagnose(loopback)
    found = checks["pods with app=train"]
    assert (found.result, found.found.partition(" (")[0]) == (
        "failed",
        "no pod matches app=train in namespace 'ml'; there are no pods",
    )
    assert [checks[name].result for name in TASKS] == ["skipped"] * 2
    checks = await diagnose(loopback, jobs={"worker": "a b"})
    assert checks["pods with a b"].result == "failed"
    assert "Correct the selector 'a b'" in remedy(checks["pods with a b"])


async def test_pods_that_are_not_running_are_counted_by_reason(loopback: Loopback, port: int) -> None:
    train(loopback, 0)
    train(loopback, 1, 2, phase="Pending", node=None, ip=None, reason="Unschedulable")
    train(loopback, 3, deleting=True)
    train(loopback, 4, ready=False, waiting="CrashLoopBackOff", restarts=3)
    checks = await diagnose(loopback, tf_server_port=port)
    found = checks["pods with app=train"]
    assert found.result == "failed"
    assert found.found.startswith("5 pods in namespace 'ml': 2 running, 1 of them not ready; 2 Pending")
    assert "1 being deleted: ml/train-3" in found.found
    assert "CrashLoopBackOff" in found.found
    assert "`kubectl describe pod -n ml train-1`, or wait until they run" in remedy(found)
    assert "`not_running='skip'`" in remedy(found)
    assert checks["tasks"].found == "worker: 2"
    assert checks["addresses"].result == "failed"
    skipping = await diagnose(loopback, not_running="skip")
    assert skipping["pods with app=train"].result == "warning"
    loopback.replace_pods([])
    train(loopback, 0, deleting=True)
    assert (await diagnose(loopback))["pods with app=train"].result == "ok"
    train(loopback, 1, phase="Failed")
    found = (await diagnose(loopback))["pods with app=train"]
    assert "train-1`. Pods that have ended do not run again" in remedy(found)


async def test_pods_are_judged_by_the_address_that_the_resolver_returns(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    check = (await diagnose(loopback, address=lambda pod: None))["pods with app=train"]
    assert check.result == "failed"
    assert "0 running; 1 Running, but without an address yet: ml/train-0" in check.found


async def test_indices(loopback: Loopback) -> None:
    loopback.add_trainers("a", "b", ip="127.0.0.1")
    check = (await diagnose(loopback))["indices of worker"]
    assert check.found == "the pods have no index; their tasks are in the order of their names"
    assert (await diagnose(loopback, order_by="index"))["indices of worker"].result == "failed"
    loopback.replace_pods([])
    train(loopback, 0, 1, 3)
    loopback.add_trainers("other-1", index=1, ip="127.0.0.1")
    for order_by, result in (("index", "failed"), ("name", "warning")):
        checks = await diagnose(loopback, order_by=order_by)
        found = checks["indices of worker"]
        assert found.result == result
        assert "no pod has index 2; index 1 is claimed by ml/other-1 and ml/train-1" in found.found
        assert checks["tasks"].found == "worker: 4"
    checks = await diagnose(loopback, address="hostname")
    assert "spec.hostname or spec.subdomain is not set" in checks["pods with app=train"].found
    assert checks["tasks"].result == "skipped"


async def test_number_of_pods_that_the_controller_wants_is_compared(loopback: Loopback) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "ml"}}
    loopback.server.add_controllers(job | {"spec": {"completions": 2, "parallelism": 2}})

    def add(index: int) -> None:
        labels = {**TRAIN, "batch.kubernetes.io/job-name": "train"}
        one = pod(f"train-{index}", "ml", labels=labels, index=index, ip="127.0.0.1")
        one["metadata"]["ownerReferences"] = [owner]
        loopback.server.add(one)

    add(0)
    check = (await diagnose(loopback))["size"]
    assert check.result == "warning"
    assert check.found.startswith("worker: 1 of 2 (")
    add(1)
    checks = await diagnose(loopback)
    check = checks["size"]
    assert (check.result, check.found.partition(" (")[0]) == ("ok", "worker: 2 of 2")
    assert checks["indices of worker"].found == "0 to 1, without gaps (Job 'train')"


async def test_order_by_labels_of_nodes_needs_a_permission(loopback: Loopback) -> None:
    train(loopback, 0)
    order_by = ["node-label:topology.kubernetes.io/rack"]
    assert (await diagnose(loopback, order_by=order_by))["list nodes"].result == "ok"
    loopback.server.resources = {"alice": {"pods", "services"}}
    check = (await diagnose(loopback, order_by=order_by))["list nodes"]
    assert check.result == "failed"
    assert check.found.startswith("user 'alice' may not list nodes in the cluster")
    assert "kind: ClusterRole" in remedy(check)


async def test_devices_of_claims_are_reported_and_their_permission_is_optional(loopback: Loopback) -> None:
    train(loopback, 0)
    for number in (1, 2):
        loopback.server.add(resource_claim(f"gpus-{number}", "ml", devices=8))
        loopback.add_trainers(f"train-{number}", ip="127.0.0.1", resource_claims=[f"gpus-{number}"])
    assert (await diagnose(loopback))["ResourceClaims"].found == "2 pods with 8 gpu.nvidia.com"
    loopback.server.delete("gpus-1", "ml", kind="ResourceClaim")
    check = (await diagnose(loopback))["ResourceClaims"]
    assert (check.result, check.found) == ("warning", "ResourceClaim ml/gpus-1 does not exist")
    loopback.server.resources = {"alice": {"pods", "services"}}
    check = (await diagnose(loopback))["ResourceClaims"]
    assert check.result == "warning"
    assert check.found.startswith("user 'alice' may not list resourceclaims in namespace 'ml'")
    assert 'apiGroups: ["resource.k8s.io"]\n  resources: [resourceclaims]\n  verbs: [list]' in remedy(check)


# EndpointSlices


async def test_service_needs_permission_for_its_endpoint_slices_and_ready_endpoints(
    loopback: Loopback,
) -> None:
    loopback.server.add(service("train", "ml", selector=TRAIN, ports={"": 8470}))
    train(loopback, 0)
    train(loopback, 1, ready=False)
    resolver = KubernetesClusterResolver(service="train", namespace="ml", kubeconfig=loopback.kubeconfig)
    loopback.server.resources = {"alice": {"endpointslices"}}
    checks = {check.name: check for check in await aioresolve.doctor(resolver)}
    assert [name for name in checks if name not in CONNECTION + SERVER + TASKS] == [
        *("list endpointslices", "watch endpointslices", "tasks")
    ]
    assert checks["watch endpointslices"].found == "allowed in namespace 'ml'"
    assert checks["tasks"].result == "failed"
    assert checks["tasks"].found.startswith("worker: 1; 1 missing or not ready: ml/train-1: ")
    assert checks["addresses"].found.startswith("1 of 1 tasks")
    loopback.server.resources = {"alice": {"pods"}}
    checks = {check.name: check for check in await aioresolve.doctor(resolver)}
    denied = checks["list endpointslices"]
    assert denied.found.startswith("user 'alice' may not list endpointslices in namespace 'ml'")
    assert checks["tasks"].result == "skipped"


# Names of pods


async def test_missing_service(loopback: Loopback) -> None:
    train(loopback, 0, hostname="train-0", subdomain="train")
    check = (await diagnose(loopback))["headless Service"]
    assert check.result == "failed"
    assert check.found == "there is no Service ml/train, which pods name in spec.subdomain"
    assert "`clusterIP: None`" in remedy(check)
    not_headless = service("train", "ml")
    not_headless["spec"]["clusterIP"] = "10.96.0.10"
    loopback.server.add(not_headless)
    check = (await diagnose(loopback))["headless Service"]
    assert (check.result, "is not headless" in check.found) == ("failed", True)
    loopback.server.verbs["alice"] = {"list", "watch"}
    check = (await diagnose(loopback))["headless Service"]
    assert (check.result, check.found.partition(":")[0]) == ("warning", "unknown")
