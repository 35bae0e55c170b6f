"""TPUClusterResolver against a loopback Google Cloud: names, states, slices, places."""

import socket
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from aioresolve import ClusterResolver, ClusterSpec, GCEClusterResolver, Progress, TPUClusterResolver, Want
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    CredentialsError,
    ProtocolError,
    TPUNotFoundError,
    TPUNotReadyError,
)
from aioresolve.testing import Answer, GoogleServer, Hang, queued_resource, tpu_node, tpu_vm

ZONE = "us-central2-b"
PROJECT = "demo-project"


def requested(google: GoogleServer, service: str) -> list[str]:
    return [request.path for request in google.requests if request.service == service]


async def test_a_name_is_looked_up_in_the_project_and_zone_of_the_vm(google: GoogleServer) -> None:
    google.add(tpu_node("my-tpu", ips=["10.0.0.1", "10.0.0.2"]))
    for zone, project in ((None, None), (ZONE, None), (None, PROJECT)):
        spec = await TPUClusterResolver("my-tpu", zone, project).cluster_spec()
        assert spec == ClusterSpec({"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]})
    assert requested(google, "tpu") == [f"/v2/projects/{PROJECT}/locations/{ZONE}/nodes/my-tpu"] * 3
    assert len(requested(google, "metadata")) == 2 + 1 + 1
    progress = Progress()
    await TPUClusterResolver("my-tpu").observe(Want(), progress)
    node = f"TPU node projects/{PROJECT}/locations/{ZONE}/nodes/my-tpu"
    assert progress.reached.keys() == {"metadata project/project-id", "metadata instance/zone", node}
    assert not progress.missing


async def test_given_project_and_zone_need_no_metadata_server(google: GoogleServer) -> None:
    google.add(tpu_node("projects/other/locations/europe-west4-a/nodes/my-tpu", ips=["10.0.0.1"]))
    resolver = TPUClusterResolver("my-tpu", "europe-west4-a", "other")
    assert await resolver.master() == "grpc://10.0.0.1:8470"
    full = TPUClusterResolver("projects/other/locations/europe-west4-a/nodes/my-tpu")
    assert await full.master() == "grpc://10.0.0.1:8470"
    assert requested(google, "metadata") == []


async def test_workers_are_identified_by_slice_and_index_and_node_id(google: GoogleServer) -> None:
    google.add(tpu_node("my-tpu", workers=2))
    state = await TPUClusterResolver("my-tpu", ZONE, PROJECT).cluster_state()
    first, second = state.endpoints["worker"]
    assert (first.name, second.name) == ("my-tpu/worker-0", "my-tpu/worker-1")
    assert (first.index, second.index) == (0, 1)
    assert first.ready
    assert first.uid
    assert first.uid != second.uid
    assert state.observed_at is not None


# Several slices


async def test_a_tpu_with_several_names_is_one_slice(google: GoogleServer) -> None:
    google.add(queued_resource("my-request", nodes=2, node_id="part"))
    google.add(tpu_node("part-0", ips=["10.0.0.1"]), tpu_node("part-1", ips=["10.0.0.2"]))
    full = f"projects/{PROJECT}/locations/{ZONE}/nodes/part-0"
    resolver = TPUClusterResolver(["part-1", full, "part-0", "part-0", "my-request"])
    spec = await resolver.cluster_spec()
    assert spec.job_tasks("worker") == ["10.0.0.2:8470", "10.0.0.1:8470"]
    assert len(await resolver.nodes()) == 2


async def test_an_absent_tpu_with_several_names_is_missing_once(google: GoogleServer) -> None:
    google.add(queued_resource("waiting", state="ACCEPTED"))
    names = [f"{place}/{name}" for place, name in [("nodes", "gone"), ("queuedResources", "waiting")]]
    full = [f"projects/{PROJECT}/locations/{ZONE}/{name}" for name in names]
    async with aclosing(TPUClusterResolver(["gone", "waiting", *full]).observations()) as observations:
        seen = await anext(observations)
    assert [missing.name for missing in seen.absent] == ["gone", "waiting"]


async def test_the_error_for_unknown_tpus_is_a_value_error_that_names_each_once(google: GoogleServer) -> None:
    google.denied.add("tpu.queuedResources.get")
    with pytest.raises(TPUNotFoundError) as raised:
        await TPUClusterResolver(["gone", "lost"], ZONE, PROJECT).cluster_spec()
    assert isinstance(raised.value, ValueError)
    names = [f"projects/{PROJECT}/locations/{ZONE}/nodes/{name}" for name in ("gone", "lost")]
    assert raised.value.names == tuple(names)
    assert [str(raised.value).count(name) for name in ("gone", "lost")] == [1, 1]
    assert raised.value.summary.endswith(f"{google.url} returned status 404; TPUs in {ZONE}: none")
    assert isinstance(raised.value.__cause__, APIError)


async def test_the_error_for_an_unknown_tpu_says_which_there_are(google: GoogleServer) -> None:
    google.add(tpu_node("other"), tpu_node(f"projects/{PROJECT}/locations/europe-west4-a/nodes/my-tpu"))
    there = rf"TPUs in {ZONE}: other; in other zones: my-tpu \(europe-west4-a\)\. "
    for name in ("my-tpu", f"projects/{PROJECT}/locations/{ZONE}/nodes/my-tpu"):
        with pytest.raises(TPUNotFoundError, match=there):
            await TPUClusterResolver(name).cluster_spec()
    google.denied.add("tpu.nodes.list")
    with pytest.raises(TPUNotFoundError, match=f"`gcloud compute tpus tpu-vm list --project={PROJECT} "):
        await TPUClusterResolver("my-tpu").nodes()


async def test_several_names_are_slices_in_order_fetched_at_once(google: GoogleServer) -> None:
    names = ["slice-b", "slice-a", "slice-c"]
    google.add(*(tpu_node(name, workers=2) for name in names))
    resolver = TPUClusterResolver(names)
    slices = await resolver.slices()
    assert [one.name for one in slices] == names
    assert [one.tasks for one in slices] == [range(2), range(2, 4), range(4, 6)]
    assert [(one.index, one.num_slices) for one in slices] == [(0, 3), (1, 3), (2, 3)]
    state = await resolver.cluster_state()
    assert [endpoint.name for endpoint in state.endpoints["worker"]] == [
        f"{name}/worker-{number}" for name in names for number in range(2)
    ]
    assert state.spec.num_tasks("worker") == 6


async def test_slices_are_requested_concurrently(google: GoogleServer) -> None:
    google.inject(Hang(), match=lambda request: request.service == "tpu", times=None)
    resolver = TPUClusterResolver([f"slice-{number}" for number in range(16)], ZONE, PROJECT)
    async with anyio.create_task_group() as group:
        group.start_soon(_resolve, resolver)
        await google.until(lambda: len(requested(google, "tpu")) == 16)
        group.cancel_scope.cancel()


async def _resolve(resolver: TPUClusterResolver) -> None:
    await resolver.cluster_spec()


async def test_a_queued_resource_stands_for_its_nodes(google: GoogleServer) -> None:
    google.add(queued_resource("my-request", nodes=2, node_id="part"))
    google.add(tpu_node("part-0", ips=["10.0.0.1"]), tpu_node("part-1", ips=["10.0.0.2"]))
    for name in ("my-request", f"projects/{PROJECT}/locations/{ZONE}/queuedResources/my-request"):
        resolver = TPUClusterResolver(name)
        assert await resolver.cluster_spec() == ClusterSpec({"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]})
        slices = [(one.name, one.index, one.num_slices) for one in await resolver.slices()]
        assert slices == [("part-0", 0, 2), ("part-1", 1, 2)]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"multisliceParams": {"nodeCount": 10_001}}, "node_count is 10001"),
        ({"parent": "projects/p", "nodeId": "a"}, "'projects/p' is not the name of a location"),
        ({"nodeId": "../my-tpu"}, "'../my-tpu' is not a valid name of a TPU node"),
    ],
)
async def test_a_queued_resource_with_invalid_nodes_is_a_protocol_error(
    google: GoogleServer, spec: dict[str, Any], reason: str
) -> None:
    google.add(queued_resource("my-request"))
    google.patch("my-request", tpu={"nodeSpec": [spec]})
    with pytest.raises(ProtocolError, match=f"queuedResources/my-request has invalid nodes: {reason}"):
        await TPUClusterResolver("my-request", ZONE, PROJECT).cluster_spec()
    assert not any(request.path.endswith("/my-tpu") for request in google.requests)


@pytest.mark.parametrize("kind", ["nodes", "queuedResources"])
async def test_another_failure_than_404_does_not_mean_that_the_tpu_does_not_exist(
    google: GoogleServer, kind: str
) -> None:
    google.inject(Answer(409), match=lambda request: f"/{kind}/" in request.path)
    with pytest.raises(APIError) as raised:
        await TPUClusterResolver("my-tpu", ZONE, PROJECT).cluster_spec()
    assert raised.value.status == 409


async def test_an_unhealthy_tpu_is_reported_with_its_symptoms(google: GoogleServer) -> None:
    symptoms = [{"symptomType": "MESH_BUILD_FAIL", "workerId": "2", "createTime": "2026-11-20T11:00:00Z"}]
    google.add(tpu_node("my-tpu", health="TIMEOUT", health_description="down", symptoms=symptoms))
    resolver = TPUClusterResolver("my-tpu", ZONE, PROJECT)
    with pytest.raises(TPUNotReadyError, match="TIMEOUT") as raised:
        await resolver.cluster_spec()
    assert raised.value.health == "TIMEOUT"
    assert raised.value.symptoms == ("MESH_BUILD_FAIL on worker 2 at 2026-11-20T11:00:00Z",)
    (node,) = await resolver.nodes()
    assert node.health == "TIMEOUT"
    assert [symptom.symptom_type for symptom in node.symptoms] == ["MESH_BUILD_FAIL"]


async def test_the_default_port_of_an_endpoint_is_8470(google: GoogleServer) -> None:
    google.add(tpu_node("my-tpu"))
    google.patch("my-tpu", networkEndpoints=[{"ipAddress": "10.0.0.1"}, {"ipAddress": "fd00::7"}])
    spec = await TPUClusterResolver("my-tpu", ZONE, PROJECT).cluster_spec()
    assert spec.job_tasks("worker") == ["10.0.0.1:8470", "[fd00::7]:8470"]


# The VM's own slice


async def test_a_tpu_vm_finds_its_own_slice(google: GoogleServer) -> None:
    hosts = ["10.0.0.1", "10.0.0.2"]
    google.metadata.update(tpu_vm(hosts=hosts, accelerator_type="v4-16", node="mine"))
    resolver = TPUClusterResolver()
    assert (await resolver.cluster_spec()).job_tasks("worker") == ["10.0.0.1:8470", "10.0.0.2:8470"]
    (one,) = await resolver.slices()
    assert (one.name, one.endpoints[1].name) == ("mine", "mine/worker-1")
    assert (one.accelerator_type, one.node, await resolver.nodes()) == ("v4-16", None, ())
    assert repr(one) == (
        f"TPUSlice(endpoints={one.endpoints}, name='mine', index=0, num_slices=1, tasks=range(0, 2))"
    )
    assert requested(google, "tpu") == []


def _add_lines(google: GoogleServer, *lines: str) -> None:
    google.metadata["instance/attributes/tpu-env"] += "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("lines", "environ"),
    [
        (["MEGASCALE_NUM_SLICES: '2'", "MEGASCALE_SLICE_ID: '1'"], {}),
        ([], {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}),
        (["MEGASCALE_NUM_SLICES: '2'"], {"MEGASCALE_SLICE_ID": "1"}),
        (["MEGASCALE_NUM_SLICES: '1'"], {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}),
        (["MEGASCALE_SLICE_ID: '0'"], {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}),
    ],
)
async def test_variables_of_the_process_and_tpu_env_describe_the_multislice_of_a_vm(
    lines: list[str], environ: dict[str, str], google: GoogleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    google.metadata.update(tpu_vm(hosts=["10.0.0.1"], node=""))
    _add_lines(google, *lines)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (one,) = await TPUClusterResolver().slices()
    assert (one.name, one.index, one.num_slices, one.tasks) == ("slice-1", 1, 2, range(1))


async def test_the_accelerator_type_may_be_an_attribute_of_its_own(google: GoogleServer) -> None:
    google.metadata.update(tpu_vm(hosts=["10.0.0.1"], accelerator_type="v4-8"))
    attribute = "instance/attributes/tpu-env"
    lines = google.metadata[attribute].splitlines()
    google.metadata[attribute] = "\n".join(line for line in lines if "ACCELERATOR_TYPE" not in line)
    (one,) = await TPUClusterResolver().slices()
    assert one.accelerator_type == "v4-8"


async def test_a_malformed_or_contradictory_number_of_a_worker_is_an_error(google: GoogleServer) -> None:
    google.metadata.update(tpu_vm(hosts=["10.0.0.1", "10.0.0.2"], worker=1))
    for number, problem in (("0", "0 contradicts tpu-env: 1"), ("x", "'x' is not a number from 0")):
        google.metadata["instance/attributes/agent-worker-number"] = number
        with pytest.raises(ProtocolError, match=f"agent-worker-number: {problem}"):
            await TPUClusterResolver().slices()


async def test_the_number_of_a_worker_that_its_vm_does_not_list_is_an_error(google: GoogleServer) -> None:
    google.metadata.update(tpu_vm(hosts=["10.0.0.1", "10.0.0.2"], worker=1))
    google.metadata["instance/attributes/worker-network-endpoints"] = "10.0.0.1"
    message = "WORKER_ID=1 is out of range: worker-network-endpoints of the metadata server has 1 process"
    with pytest.raises(ConfigurationError, match=message):
        await TPUClusterResolver().cluster_spec()


def _compute_engine_vm(google: GoogleServer, *lines: str) -> None:
    """Make this VM one that was created through Compute Engine: it has no list of workers."""
    google.metadata["instance/network-interfaces/0/ip"] = "10.0.0.7"
    google.metadata["instance/attributes/tpu-env"] = ""
    _add_lines(google, *lines)


async def test_the_names_of_compute_engine_are_read(google: GoogleServer) -> None:
    lines = ["TPU_ACCELERATOR_TYPE: 'v5litepod-4'", "TPU_WORKER_ID: '0'", "NODE_ID: '0'"]
    _compute_engine_vm(google, *lines, "TOPOLOGY: '2x2'", "CHIPS_PER_HOST_BOUNDS: '2,2,1'")
    (one,) = await TPUClusterResolver().slices()
    assert [endpoint.address for endpoint in one.endpoints] == ["10.0.0.7:8470"]
    assert (one.name, one.accelerator_type, one.environment.worker_id) == (None, "v5litepod-4", 0)


@pytest.mark.parametrize(
    "lines",
    [
        ["TOPOLOGY: '2x2x2'", "CHIPS_PER_HOST_BOUNDS: '2,2,1'"],
        ["HOST_BOUNDS: '2,2,1'", "TOPOLOGY: '2x2'", "CHIPS_PER_HOST_BOUNDS: '2,2,1'"],
        ["TOPOLOGY: '2x2x2'"],
        ["CHIPS_PER_HOST_BOUNDS: '1,1,1'"],
        ["TOPOLOGY: 'x'", "CHIPS_PER_HOST_BOUNDS: '1,1,1'"],
    ],
)
async def test_a_vm_without_a_list_of_workers_reports_the_missing_attribute(
    google: GoogleServer, lines: list[str]
) -> None:
    _compute_engine_vm(google, *lines)
    with pytest.raises(TPUNotFoundError, match="no worker-network-endpoints, and no slice of one host"):
        await TPUClusterResolver().cluster_spec()


async def test_a_vm_that_does_not_report_its_address_is_not_a_source_of_workers(google: GoogleServer) -> None:
    with pytest.raises(TPUNotFoundError, match="this VM's metadata server reports that it is not a TPU VM"):
        await TPUClusterResolver().cluster_spec()
    _compute_engine_vm(google, "HOST_BOUNDS: '1,1,1'")
    del google.metadata["instance/network-interfaces/0/ip"]
    with pytest.raises(TPUNotFoundError) as raised:
        await TPUClusterResolver().cluster_spec()
    assert raised.value.tried[2] == (
        "this VM's metadata server did not report one: the metadata server has no value for"
        " instance/network-interfaces/0/ip"
    )
    cause = raised.value.__cause__
    assert isinstance(cause, APIError)
    assert (cause.status, cause.scope) == (404, "metadata instance/network-interfaces/0/ip")
    assert raised.value.hint is not None
    assert "as `tpu=`, or set TPU_NAME." in raised.value.hint.render()


@pytest.mark.parametrize(
    "resolver",
    [
        TPUClusterResolver(),
        TPUClusterResolver("my-tpu"),
        TPUClusterResolver("grpc://a", coordinator_name="chief"),
        GCEClusterResolver(),
    ],
)
async def test_an_overloaded_metadata_server_does_not_mean_that_its_cluster_or_location_is_unknown(
    resolver: ClusterResolver, google: GoogleServer
) -> None:
    headers = {"Metadata-Flavor": "Google", "Retry-After": "3600"}
    google.inject(
        Answer(503, headers=headers), match=lambda request: request.service == "metadata", times=None
    )
    with pytest.raises(APIError) as raised:
        await resolver.cluster_spec()
    assert (raised.value.status, raised.value.retryable) == (503, True)


async def test_off_google_cloud_calls_fail_soon_and_say_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(TPUNotFoundError, match=r"Pass .* as `tpu=`"):
        await TPUClusterResolver().cluster_spec()
    with pytest.raises(ConfigurationError, match="coordinator_address"):
        await TPUClusterResolver("grpc://a:1", coordinator_name="chief").cluster_spec()
    with pytest.raises(CredentialsError, match="Log in with"):
        await TPUClusterResolver("my-tpu", ZONE, PROJECT).cluster_spec()


async def test_the_constructor_sends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{silent.getsockname()[1]}")
        TPUClusterResolver()
        TPUClusterResolver("my-tpu", coordinator_name="chief")
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()


async def test_a_node_is_returned_as_the_api_describes_it(google: GoogleServer) -> None:
    google.add(tpu_node("a", state="REPAIRING"), tpu_node("b", health=None))
    nodes = await TPUClusterResolver(["a", "b"], ZONE, PROJECT).nodes()
    place = f"projects/{PROJECT}/locations/{ZONE}/nodes"
    assert [(node.name, node.state, node.health) for node in nodes] == [
        (f"{place}/a", "REPAIRING", "HEALTHY"),
        (f"{place}/b", "READY", ""),
    ]
    assert nodes[0].runtime_version == "tpu-vm-tf-2.16.1-pjrt"


async def test_the_caller_decides_about_a_tpu_that_is_not_healthy(google: GoogleServer) -> None:
    google.add(
        tpu_node("a", ips=["10.0.0.1"]), tpu_node("b", ips=["10.0.0.2"], health="UNHEALTHY_MAINTENANCE")
    )
    with pytest.raises(TPUNotReadyError, match="`not_healthy='allow'`"):
        await TPUClusterResolver(["a", "b"], not_healthy="raise").cluster_spec()
    allowed = await TPUClusterResolver(["a", "b"], not_healthy="allow").cluster_spec()
    assert allowed.as_dict() == {"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]}
    google.add(tpu_node("c", health="TIMEOUT", ips=[]))
    with pytest.raises(TPUNotReadyError):
        await TPUClusterResolver("c", not_healthy="allow").cluster_spec()


async def test_external_addresses_are_used_if_requested(google: GoogleServer) -> None:
    google.add(tpu_node("my-tpu", workers=2, external_ips=["203.0.113.1", "203.0.113.2"]))
    google.add(tpu_node("inner", workers=1))
    spec = await TPUClusterResolver("my-tpu", address="external_ip").cluster_spec()
    assert spec.as_dict() == {"worker": ["203.0.113.1:8470", "203.0.113.2:8470"]}
    google.add(tpu_node("half", workers=2, external_ips=["203.0.113.1"]))
    for tpu, reason in [
        ("inner", "worker 0 of TPU inner has no external address"),
        ("half", "worker 1 of TPU half has no external address"),
        ("grpc://10.0.0.1", "only known of TPUs that are named"),
        (None, "only known of TPUs that are named"),
    ]:
        with pytest.raises(ConfigurationError, match=reason) as raised:
            await TPUClusterResolver(tpu, address="external_ip").cluster_spec()
        assert raised.value.argument == "address"


async def test_an_accelerator_type_may_be_a_full_name(google: GoogleServer) -> None:
    full = f"projects/{PROJECT}/locations/{ZONE}/acceleratorTypes/v4-16"
    google.add(tpu_node("my-tpu", accelerator_type=full))
    (one,) = await TPUClusterResolver("my-tpu", ZONE, PROJECT).slices()
    assert one.accelerator_type == "v4-16"


@pytest.mark.parametrize(
    ("zone", "project", "unknown", "arguments"),
    [
        (None, None, "project and zone", "`project=` and `zone=`"),
        (ZONE, None, "project", "`project=`"),
        (None, PROJECT, "zone", "`zone=`"),
    ],
)
async def test_an_unknown_location_is_an_error_that_names_the_arguments(
    zone: str | None, project: str | None, unknown: str, arguments: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        await TPUClusterResolver(["a", "b"], zone, project).cluster_spec()
    assert raised.value.summary.startswith(
        f"unknown {unknown} of TPU a, b: this VM's metadata server did not report it: "
    )
    assert raised.value.hint is not None
    assert raised.value.hint.render() == (
        f"Pass {arguments}, or the full name projects/PROJECT/locations/ZONE/nodes/NAME."
    )


async def test_an_error_names_the_variable_that_names_the_tpu(
    google: GoogleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_NAME", "workergroup-0")  # which KubeRay sets
    hint = r"Correct \$TPU_NAME \(or unset it\), `project=` or `zone=`"
    with pytest.raises(TPUNotFoundError, match=rf"workergroup-0 \(from \$TPU_NAME\): .*{hint}"):
        await TPUClusterResolver().cluster_spec()
    monkeypatch.setenv("GCE_METADATA_HOST", "metadata.invalid")
    hint = r"or unset \$TPU_NAME"
    with pytest.raises(ConfigurationError, match=rf"workergroup-0 \(from \$TPU_NAME\): .*{hint}"):
        await TPUClusterResolver().cluster_spec()
    with pytest.raises(ConfigurationError) as raised:
        await TPUClusterResolver("workergroup-0").cluster_spec()
    assert "$TPU_NAME" not in str(raised.value)
