"""The documentation page of `tf.distribute.cluster_resolver.TPUClusterResolver`, entry by entry.

Each program runs on TensorFlow's class and on aioresolve's, off Google Cloud, or as a VM of a loopback Google
Cloud. TensorFlow looks names up through `service=`, because googleapiclient is not installed.
"""

import copy
import inspect
import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from aioresolve.errors import ConfigurationError, TPUNotFoundError
from aioresolve.testing import GoogleServer, ThreadedGoogleServer, tpu_worker_process
from tests.tpu.services import FakeHttpError, FakeService

pytestmark = pytest.mark.slow

GRPC = "grpc://10.240.1.2:8470"
PROJECT, ZONE = "demo-project", "us-central2-b"


@pytest.fixture(autouse=True)
def no_metadata_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the metadata server from TensorFlow's class too."""
    monkeypatch.setenv("GCE_METADATA_HOST", "metadata.invalid")


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedGoogleServer]:
    """Google Cloud as a VM without a TPU, of `PROJECT` in `ZONE`, reaches it."""
    with GoogleServer().in_thread() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def serve(tf: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Return a function that starts workers with these numbers of TPU cores, and returns their addresses.

    In TensorFlow, this process has these devices, as if it were connected to the workers.
    """
    from tensorflow.python.framework import config

    with ExitStack() as stack:

        def start(*cores: int) -> str:
            devices = [
                tf.config.LogicalDevice(f"/job:worker/replica:0/task:{task}/device:TPU:{core}", "TPU")
                for task, number in enumerate(cores)
                for core in range(number)
            ]
            monkeypatch.setattr(config, "list_logical_devices", lambda *_: devices)
            workers = [stack.enter_context(tpu_worker_process(devices=number)) for number in cores]
            return ",".join(f"grpc://{addresses[0]}" for addresses in workers)

        yield start


def named(api: Any, service: FakeService, **arguments: Any) -> Any:
    return api.TPUClusterResolver(
        **{"tpu": "my-tpu", "zone": ZONE, "project": PROJECT, "service": service, **arguments}
    )


def failing(error: Exception) -> FakeService:
    def fail() -> None:
        raise error

    return FakeService(respond=fail)


# Args


def test_arguments_have_the_documented_names_order_and_defaults(api: Any) -> None:
    documented = inspect.signature(
        lambda tpu=None, zone=None, project=None, job_name="worker", coordinator_name=None,
        coordinator_address=None, credentials="default", service=None, discovery_url=None: None
    )  # fmt: skip
    parameters = inspect.signature(api.TPUClusterResolver).parameters.values()
    positional = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert [(each.name, each.default) for each in positional] == [
        (each.name, each.default) for each in documented.parameters.values()
    ]


def test_args_tpu_is_a_name_an_address_or_local(api: Any, tf: Any) -> None:
    service = FakeService(ips=["10.0.0.1", "10.0.0.2"])
    resolver = named(api, service)
    spec = resolver.cluster_spec()
    assert isinstance(spec, tf.train.ClusterSpec)
    assert spec.as_dict() == {"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]}
    assert service.requested == [f"projects/{PROJECT}/locations/{ZONE}/nodes/my-tpu"]
    assert named(api, service, tpu=["my-tpu"]).master() == "grpc://10.0.0.1:8470"
    assert api.TPUClusterResolver(GRPC).master() == GRPC
    local = api.TPUClusterResolver("local")
    assert (local.master(), local.cluster_spec().as_dict(), local._tpu) == ("", {}, "local")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TPU_NAME", "my-tpu"),
        ("TPU_CONFIG", json.dumps({"tpu_node_name": "my-tpu", "project": PROJECT, "zone": ZONE})),
        ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "grpc://10.0.0.1:8470"),
    ],
)
def test_args_tpu_not_set_is_found_in_the_environment(
    variable: str, value: str, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    for omitted in (None, ""):
        resolver = named(api, FakeService(ips=["10.0.0.1"]), tpu=omitted)
        assert resolver.master() == "grpc://10.0.0.1:8470"


@pytest.mark.usefixtures("google")
def test_args_zone_and_project_not_given_are_those_of_the_vm(api: Any) -> None:
    service = FakeService(ips=["10.0.0.1"])
    for omitted in (None, ""):
        assert named(api, service, zone=omitted, project=omitted).master() == "grpc://10.0.0.1:8470"
    assert service.requested == [f"projects/{PROJECT}/locations/{ZONE}/nodes/my-tpu"] * 2


def test_args_job_name_is_the_job_of_the_workers(api: Any) -> None:
    resolver = api.TPUClusterResolver(GRPC, job_name="tpu_worker")
    assert resolver.cluster_spec().as_dict() == {"tpu_worker": ["10.240.1.2:8470"]}
    assert resolver.master() == GRPC
    assert (resolver.task_type, resolver.get_job_name()) == ("tpu_worker", "tpu_worker")


def test_args_coordinator_is_a_job_of_its_own(api: Any) -> None:
    resolver = api.TPUClusterResolver(GRPC, coordinator_name="chief", coordinator_address="10.0.0.9:2222")
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.240.1.2:8470"], "chief": ["10.0.0.9:2222"]}
    assert api.TPUClusterResolver(GRPC).cluster_spec().jobs == ["worker"]


@pytest.mark.usefixtures("google")
def test_args_coordinator_address_none_starts_a_server_of_this_machine(api: Any) -> None:
    resolver = api.TPUClusterResolver(GRPC, coordinator_name="chief")
    [address] = resolver.cluster_spec().job_tasks("chief")
    host, _, port = address.rpartition(":")
    assert host == "10.128.0.2"
    socket.create_connection(("127.0.0.1", int(port)), timeout=30).close()
    assert resolver.cluster_spec().job_tasks("chief") == [address]


# Raises


def test_program_that_detects_a_tpu_by_exception_goes_on_without_one(api: Any) -> None:
    omitted: Any
    for detect in (api.TPUClusterResolver, api.TPUClusterResolver.connect):
        for omitted in (None, "", []):
            with pytest.raises(ValueError, match=r"TPU"):
                detect(omitted)


@pytest.mark.usefixtures("google")
def test_raises_an_error_of_both_types_if_the_name_is_empty_on_google_cloud(api: Any, ours: Any) -> None:
    with pytest.raises(ValueError, match=r"TPU") as raised:
        api.TPUClusterResolver("")
    # The page lists it; TensorFlow 2.21 raises a ValueError only.
    assert isinstance(raised.value, RuntimeError) == (api is ours)


def test_unknown_location_of_a_name_is_an_error_of_the_constructor(api: Any) -> None:
    # URLError in TensorFlow.
    with pytest.raises((ValueError, OSError)):
        api.TPUClusterResolver("my-tpu")


@pytest.mark.parametrize("metadata_server", ["silent", "refused"])
def test_detection_is_bounded(metadata_server: str, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "DETECTION_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if metadata_server == "silent" else 1
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{port}")
        started = time.monotonic()
        with pytest.raises(TPUNotFoundError, match=r"within 0\.5 s|refused"):
            ours.TPUClusterResolver()
        assert time.monotonic() - started < 30
        # Later calls may be more patient about a name.
        assert ours.TPUClusterResolver("my-tpu").task_type == "worker"


# Attributes


def test_attributes(api: Any) -> None:
    resolver = api.TPUClusterResolver(GRPC)
    assert (resolver.environment, resolver.task_type, resolver.task_id) == ("", "worker", 0)
    resolver.task_id = 1
    assert resolver.task_id == 1
    assert resolver._tpu not in ("", "local")
    assert resolver.get_coordination_service_leader() == "/job:worker/task:0"


# Methods


def test_cluster_spec_is_that_of_the_moment_of_the_call(api: Any) -> None:
    service = FakeService(["10.0.0.1"])
    resolver = named(api, service)
    for _ in range(2):
        resolver.cluster_spec()
    assert len(service.requested) == 2


@pytest.mark.parametrize("state", ["CREATING", "PREEMPTED"])
def test_cluster_spec_raises_runtime_error_if_the_tpu_is_not_ready(state: str, api: Any) -> None:
    with pytest.raises(RuntimeError, match=state):
        named(api, FakeService(respond=lambda: {"state": state})).cluster_spec()


@pytest.mark.parametrize(
    "error",
    [KeyError("nodes"), TimeoutError("timed out"), FakeHttpError(404)],
    ids=repr,
)
def test_any_failed_lookup_is_a_value_error(error: Exception, api: Any) -> None:
    resolver = named(api, failing(error))
    for method in (resolver.cluster_spec, resolver.master, resolver.get_tpu_system_metadata):
        with pytest.raises(ValueError, match=r"my-tpu"):
            method()


@pytest.mark.parametrize("module", ["tf.distribute.cluster_resolver", "aioresolve.tensorflow"])
def test_connect_raises_not_found_error_if_there_is_no_tpu(module: str) -> None:
    # In a process of its own, because TensorFlow cannot leave a cluster again.
    script = f"""
import aioresolve.tensorflow, tensorflow as tf
server = tf.distribute.Server({{"worker": ["127.0.0.1:0"]}}, protocol="grpc", start=True)
try:
    {module}.TPUClusterResolver.connect(server.target)
except tf.errors.NotFoundError:
    print("not found")
"""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.stdout.splitlines()[-1:] == ["not found"], run.stderr[-3000:]


def test_master_is_the_first_worker_or_the_task_given(api: Any) -> None:
    resolver = api.TPUClusterResolver("grpc://10.0.0.1:8470,grpc://10.0.0.2:8470")
    assert resolver.master() == resolver.get_master() == "grpc://10.0.0.1:8470"
    assert resolver.master("worker", 1) == "grpc://10.0.0.2:8470"
    resolver.task_id = 1
    assert resolver.master() == "grpc://10.0.0.2:8470"
    resolver.task_id = None
    assert resolver.master() == "grpc://10.0.0.1:8470"
    with pytest.raises(ValueError, match=r"[Nn]o task"):
        resolver.master("worker", 7)


def test_metadata_counts_the_cores(serve: Callable[..., str], api: Any, tf: Any) -> None:
    metadata = api.TPUClusterResolver(serve(4, 4)).get_tpu_system_metadata()
    assert isinstance(metadata, tf.tpu.experimental.TPUSystemMetadata)
    assert (metadata.num_cores, metadata.num_of_cores_per_host, metadata.topology) == (8, 4, None)


@pytest.mark.parametrize(("cores", "expected"), [((4, 4), 4), ((0,), 0)])
def test_num_accelerators_is_the_number_of_cores_per_worker(
    cores: tuple[int, ...], expected: int, serve: Callable[..., str], api: Any
) -> None:
    assert api.TPUClusterResolver(serve(*cores)).num_accelerators() == {"TPU": expected}


def test_num_accelerators_raises_runtime_error_if_workers_differ(serve: Callable[..., str], api: Any) -> None:
    with pytest.raises(RuntimeError, match=r"not the same|different accelerators"):
        api.TPUClusterResolver(serve(4, 8)).num_accelerators()


# What strategies read


def test_topology_gives_the_hardware_feature_also_of_copies(api: Any, ours: Any) -> None:
    from tensorflow.core.protobuf.tpu import topology_pb2

    topology = topology_pb2.TopologyProto(mesh_shape=[2, 2, 1, 1])  # pyright: ignore[reportAttributeAccessIssue]
    topology.tpu_hardware_feature.embedding_feature = 1
    resolver = api.TPUClusterResolver(GRPC)
    assert resolver.tpu_hardware_feature is None
    resolver.set_tpu_topology(topology.SerializeToString())
    for each in (
        resolver,
        copy.copy(resolver),
        copy.deepcopy(resolver),
        pickle.loads(pickle.dumps(resolver)),
    ):
        assert each.tpu_hardware_feature == topology.tpu_hardware_feature
    assert (copy.deepcopy(resolver) is resolver) == (api is not ours)
    with pytest.raises(ConfigurationError, match="serialized_tpu_topology"):
        ours.TPUClusterResolver(GRPC).set_tpu_topology(b"\xff\xff")
