"""`aioresolve rendezvous` and `aioresolve doctor torchrun`: what an operator learns about a rendezvous."""

import asyncio
import json
from typing import Any

import pytest
import yaml

from aioresolve.cli import main
from aioresolve.testing import Answer, pod

from .conftest import USER, Cluster, join, trainer, until


async def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of a command, which has an event loop of its own."""
    code = await asyncio.to_thread(main, [*arguments, "--timeout", "60s"])
    out, err = capsys.readouterr()
    return code, out, err


async def test_a_table_has_ranks_waiting_nodes_and_the_reason_for_each_missing_pod(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.server.add(*map(trainer, range(4)), trainer(4, phase="Failed"))
    first, second, spare = await cluster.agents(0, 1, 2, nodes=(2, 2))
    await join([first, second])
    waiting = asyncio.create_task(spare.join(port=7, timeout=60, last_call=60))
    await until(lambda: len(first.view.waiting) == 1)
    cluster.server.patch("trainer-1", "ml", patch=trainer(1, phase="Failed", reason="Evicted"))
    cluster.server.patch("trainer-3", "ml", patch=trainer(3, phase="Pending", reason="Unschedulable"))
    code, out, err = await run(capsys, "rendezvous", "Train")
    assert (code, [line.split(maxsplit=5) for line in out.splitlines()]) == (
        0,
        [
            ["RANK", "POD", "NODE", "ADDRESS", "STATE", "REASON"],
            ["0", "trainer-0", "node-a", "10.0.0.1:1", "running", "<none>"],
            ["1", "trainer-1", "node-a", "<none>", "lost", "Failed (Evicted)"],
            ["<none>", "trainer-2", "node-a", "10.0.0.3:7", "waiting", "<none>"],
            ["<none>", "trainer-3", "node-a", "<none>", "missing", "Pending (Unschedulable)"],
        ],
    )
    assert err == "round 1 of torchrun-train in namespace ml, the store is at 10.0.0.1:1\n"
    waiting.cancel()


async def test_json_says_how_the_training_ended(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.server.add(*map(trainer, range(2)))
    agents = await cluster.agents(0, None, nodes=(2, 2))
    await join(agents)
    await agents[0].end(failed=True)
    code, out, _ = await run(capsys, "rendezvous", "/torchrun-train", "-n", "ml", "-o", "json")
    found = json.loads(out)
    assert (code, found["round"], found["closed"]) == (0, 1, "failed on trainer-0")
    first, outside, missing = found["nodes"]
    assert (first["rank"], first["pod"], first["state"]) == (0, "trainer-0", "lost")
    assert first["reason"] == "its process has ended"
    assert (outside["rank"], outside["address"], outside["node"]) == (1, "10.9.9.9:1", None)
    assert (missing["pod"], missing["state"]) == ("trainer-1", "missing")


async def test_lost_nodes_have_a_reason(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.server.add(*map(trainer, range(4)))
    agents = await cluster.agents(0, 1, 2, 3, None, nodes=(5, 5))
    await join(agents)
    cluster.server.delete("trainer-1", "ml")
    cluster.server.patch("trainer-2", "ml", patch=trainer(2, deleting=True))
    cluster.server.patch("trainer-3", "ml", patch=trainer(3, phase="Succeeded"))
    cluster.server.delete(agents[4].own.key, "ml", kind="Lease")
    _, out, _ = await run(capsys, "rendezvous", "train", "-n", "ml", "-o", "json")
    found = json.loads(out)
    assert found["closed"] == "ended on trainer-3"
    assert [(each["state"], each["reason"]) for each in found["nodes"]] == [
        ("running", ""),
        ("lost", "the pod does not exist"),
        ("lost", "the pod is being deleted"),
        ("ended", ""),
        ("lost", "its Lease has expired"),
    ]


async def test_a_lease_that_was_never_renewed_shows_a_living_node(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = {"name": "torchrun-train", "namespace": "ml"}
    entry = {"node.train-1": '["1", "workstation", "10.9.9.9", 7, 0, null, "", 0, true]'}
    lease = {**metadata, "name": "train-1", "labels": {"aioresolve/rendezvous": "torchrun-train"}}
    cluster.server.add({"kind": "ConfigMap", "metadata": metadata, "data": entry})
    cluster.server.add({"kind": "Lease", "metadata": lease, "spec": {}}, pod("other", "ml"))
    code, out, _ = await run(capsys, "rendezvous", "train", "--no-headers")
    assert (code, out.split()) == (0, ["<none>", "workstation", "<none>", "10.9.9.9:7", "waiting", "<none>"])


async def test_a_rendezvous_that_does_not_exist_is_an_error(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = await run(capsys, "rendezvous", "other", "--as", "ada", "--as-group", "math")
    assert code == 2
    sent = cluster.server.requests[-1]
    assert (sent.user, sent.impersonated_user, sent.impersonated_groups) == (USER, "ada", ("math",))
    assert "namespace 'ml' has no ConfigMap 'torchrun-other'" in err
    assert "Compare -n and the job with --rdzv-id" in err


async def test_a_config_map_of_another_use_is_an_error(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = {"name": "torchrun-train", "namespace": "ml"}
    cluster.server.add({"kind": "ConfigMap", "metadata": metadata, "data": {"world": "flat"}})
    code, _, err = await run(capsys, "rendezvous", "train")
    assert (code, err.partition(" is not ")[0]) == (1, "error: ConfigMap 'torchrun-train' in namespace 'ml'")


async def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = await run(capsys, "doctor", "torchrun", "train", "-o", "json", *arguments)
    return code, {check["name"]: check for check in json.loads(out)["checks"]}


async def test_doctor_checks_each_permission_and_prints_the_role(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    code, checks = await doctor(capsys, "-n", "ml")
    assert (code, {check["result"] for check in checks.values()}) == (0, {"ok"})
    cluster.server.resources = {USER: ["pods"]}
    code, checks = await doctor(capsys)
    assert code == 1
    assert checks["get, list, watch pods"]["result"] == "ok"
    assert (
        checks["get, list, patch, watch configmaps"]["found"]
        == "may not get, list, patch, watch in namespace 'ml'"
    )
    _, _, manifest = checks["get, list, patch, watch configmaps"]["remedy"].partition("\n")
    assert yaml.safe_load(manifest)["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["torchrun-train"],
            "verbs": ["get", "list", "patch", "watch"],
        },
    ]
    # Only nodes outside of pods need them.
    assert checks["create, delete, list, patch, watch leases"]["result"] == "warning"
    cluster.server.inject(Answer(500), match=lambda request: "accessreviews" in request.path, times=None)
    _, checks = await doctor(capsys)
    found = checks["get, list, watch pods"]
    assert (found["result"], "500" in found["found"]) == ("failed", True)
