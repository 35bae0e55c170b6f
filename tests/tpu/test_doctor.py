"""`aioresolve.doctor` of TPUs: each defect has a row with a remedy, and the other rows remain."""

import re
from pathlib import Path
from typing import Any

import pytest

import aioresolve
from aioresolve import TPUClusterResolver
from aioresolve.resolver.checks import Check
from aioresolve.testing import GoogleServer, TPUWorker, queued_resource, tpu_node, tpu_vm

ZONE, PROJECT = "us-central2-b", "demo-project"
FULL = f"projects/{PROJECT}/locations/{ZONE}/nodes/my-tpu"
NAMED = ["source", "credentials", "TPU my-tpu"]
TASKS = ["tasks", "addresses", "this task"]


async def diagnose(*arguments: Any, **options: Any) -> dict[str, Check]:
    """Return the checks by name."""
    resolver = TPUClusterResolver(*arguments, **options)
    checks = await aioresolve.doctor(resolver, timeout=120.0, check_timeout=60.0)
    return {check.name: check for check in checks}


def names(checks: dict[str, Check], result: str) -> list[str]:
    return [name for name, check in checks.items() if check.result == result]


def remedy(check: Check) -> str:
    assert check.remedy is not None
    return check.remedy.render()


def node(worker: TPUWorker | None = None, **more: Any) -> dict[str, Any]:
    """Return the node `my-tpu` with one worker on this machine."""
    port = 1 if worker is None else int(worker.address.rpartition(":")[2])
    found = tpu_node("my-tpu", ips=["127.0.0.1"], **more)
    return found | {"networkEndpoints": [{"ipAddress": "127.0.0.1", "port": port}]}


async def test_healthy_tpu_has_only_ok_rows(google: GoogleServer) -> None:
    async with TPUWorker(devices=4) as worker:
        google.add(node(worker))
        checks = await diagnose("my-tpu")
    assert names(checks, "ok") == list(checks) == [*NAMED, *TASKS]
    assert {name: checks[name].found for name in NAMED[:2]} == {
        "source": "my-tpu, from the argument",
        "credentials": f"anonymous (no credentials are sent to a plain http endpoint), for {google.url}",
    }
    assert checks["TPU my-tpu"].found.endswith("READY HEALTHY, 1 worker")


async def test_absent_metadata_server_matters_only_if_it_is_needed(
    google: GoogleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    google.add(node())
    monkeypatch.delenv("GCE_METADATA_HOST")
    monkeypatch.delenv("GCE_METADATA_IP", raising=False)
    checks = await diagnose("my-tpu")
    assert names(checks, "failed") == ["TPU my-tpu"]
    assert "Pass `project=` and `zone=`" in remedy(checks["TPU my-tpu"])
    assert names(checks, "ok") == ["source", "credentials"]
    checks = await diagnose("my-tpu", ZONE, PROJECT)
    assert checks["tasks"].found == "worker: 1"
    checks = await diagnose(FULL)
    assert checks["source"].found == f"{FULL}, from the argument"
    assert checks[f"TPU {FULL}"].result == "ok"


async def test_credentials_are_shown_with_their_validity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with GoogleServer([node()], tls=True, tokens={}) as server:
        for name, value in server.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        checks = await diagnose("my-tpu")
    assert names(checks, "failed") == []
    assert re.fullmatch(
        rf"{re.escape(str(tmp_path))}/key\.json \(from \$GOOGLE_APPLICATION_CREDENTIALS\)"
        r", valid until 2[-0-9]+T[:0-9]+Z, for https://[^ ]+",
        checks["credentials"].found,
    )


async def test_missing_credentials_are_named(
    google: GoogleServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GCE_METADATA_HOST")
    monkeypatch.delenv("GCE_METADATA_IP", raising=False)
    monkeypatch.delenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    checks = await diagnose("my-tpu", ZONE, PROJECT)
    assert names(checks, "failed") == ["credentials"]
    assert "no credentials for Google Cloud were found. Tried $GOOGLE_APPLICATION_CREDENTIALS" in (
        checks["credentials"].found
    )
    assert "gcloud auth application-default login" in remedy(checks["credentials"])
    assert checks["TPU my-tpu"].result == "skipped"


async def test_each_tpu_that_cannot_be_used_has_a_row(google: GoogleServer) -> None:
    google.add(node(), tpu_node("lost", state="PREEMPTED"), tpu_node("new", state="CREATING"))
    google.add(queued_resource("queued", state="WAITING_FOR_RESOURCES"))
    checks = await diagnose(["lost", "my-tpu", "new", "queued", "gone"])
    assert names(checks, "failed") == ["TPU lost", "TPU new", "TPU queued", "TPU gone"]
    assert "state PREEMPTED; delete it and create it again" in checks["TPU lost"].found
    assert checks["TPU new"].found == "1 TPU is not ready; try again later. new: state CREATING"
    assert "queued resource in state WAITING_FOR_RESOURCES" in checks["TPU queued"].found
    assert "there is no TPU" in checks["TPU gone"].found
    assert "lost, my-tpu, new" in checks["TPU gone"].found
    assert checks["tasks"].found == "worker: 1"
    google.denied.add("tpu.nodes.get")
    checks = await diagnose(["lost", "my-tpu"])
    assert names(checks, "failed") == ["TPU lost", "TPU my-tpu"]
    assert "tpu.nodes.get" in checks["TPU my-tpu"].found
    assert "roles/tpu.viewer" in remedy(checks["TPU my-tpu"])
    assert (checks["tasks"].result, checks["tasks"].found) == ("skipped", "no TPU is ready")


@pytest.mark.parametrize(("not_healthy", "result"), [("raise", "failed"), ("allow", "ok")])
async def test_tpu_that_is_not_healthy(google: GoogleServer, not_healthy: str, result: str) -> None:
    google.add(node(health="UNHEALTHY_MAINTENANCE"))
    checks = await diagnose("my-tpu", not_healthy=not_healthy)
    found = checks["TPU my-tpu"]
    assert (found.result, checks["tasks"].found) == (result, "worker: 1")
    if result == "ok":
        assert found.found == "v4-8, READY UNHEALTHY_MAINTENANCE, 1 worker"
    else:
        assert "state READY, health UNHEALTHY_MAINTENANCE; wait until the maintenance is over" in found.found
        assert "Pass `not_healthy='allow'`" in remedy(found)


async def test_worker_without_a_server_is_a_warning(google: GoogleServer) -> None:
    google.add(node())
    checks = await diagnose("my-tpu")
    assert checks["addresses"].result == "warning"
    assert "Nothing listens on 8470 unless a program starts a server" in remedy(checks["addresses"])


async def test_given_addresses_need_neither_credentials_nor_the_api(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with TPUWorker(devices=4) as worker:
        checks = await diagnose(f"grpc://{worker.address}")
        assert names(checks, "ok") == list(checks) == ["source", *TASKS]
        assert checks["source"].found == "the workers, from the argument"
    monkeypatch.setenv("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "grpc://127.0.0.1:1,grpc://127.0.0.1:2")
    assert (await diagnose())["source"].found == "the workers, from $KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"


async def test_tpu_of_this_vm(google: GoogleServer) -> None:
    google.metadata.update(tpu_vm(hosts=["127.0.0.1"]))
    checks = await diagnose()
    assert list(checks) == ["source", *TASKS]
    assert checks["source"].found == "the TPU of this VM, because no other is named"
    assert checks["tasks"].found == "worker: 1"


async def test_machine_without_a_tpu() -> None:
    checks = await diagnose()
    assert names(checks, "failed") == ["tasks"]
    assert "`tpu=`" in remedy(checks["tasks"])


async def test_invalid_variable_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_CONFIG", "{")
    checks = await diagnose()
    assert names(checks, "failed") == ["source"]
    assert "$TPU_CONFIG" in checks["source"].found


async def test_client_of_the_user_has_its_own_credentials() -> None:
    class Service:
        def projects(self) -> Any:
            raise OSError("no connection")

    checks = await diagnose("my-tpu", ZONE, PROJECT, service=Service())
    assert "service=" in checks["credentials"].found
    assert checks["TPU my-tpu"].result == "failed"
