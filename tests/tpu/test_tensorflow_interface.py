"""The parts of `TPUClusterResolver` that TensorFlow's class has, without TensorFlow.

`tests/tensorflow/test_tpu_page.py` compares the two classes.
"""

import sys
from unittest.mock import Mock, call

import pytest

from aioresolve import TPUClusterResolver, sync
from aioresolve.errors import MissingDependencyError, ProbeError, TPUNotFoundError
from aioresolve.testing import GoogleServer, TPUWorker, tpu_node

ZONE = "us-central2-b"
PROJECT = "demo-project"
GRPC = "grpc://10.240.1.2:8470"


async def test_args_coordinator_address_none_starts_a_server_once(
    google: GoogleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    async def start_server() -> tuple[object, int]:
        started.append(1)
        return object(), 4321

    monkeypatch.setattr("aioresolve.tpu.system.start_server", start_server)
    resolver = TPUClusterResolver(GRPC, coordinator_name="chief")
    for _ in range(2):
        assert (await resolver.cluster_spec()).job_tasks("chief") == ["10.128.0.2:4321"]
    assert started == [1]
    await TPUClusterResolver(GRPC).cluster_spec()
    assert started == [1]


async def test_a_coordinator_and_the_workers_are_jobs_with_the_names_that_are_set() -> None:
    resolver = TPUClusterResolver(GRPC, coordinator_name="chief", coordinator_address="h:1")
    assert await resolver.master("chief", 0) == "grpc://h:1"
    resolver.task_type = "tpus"
    assert resolver.known_jobs == ["tpus", "chief"]
    assert (await resolver.cluster_spec()).as_dict() == {"tpus": ["10.240.1.2:8470"], "chief": ["h:1"]}


async def test_args_discovery_url_names_the_api_and_the_variable_overrides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with GoogleServer([tpu_node("my-tpu", ips=["10.0.0.1"])]) as google:
        template = f"{google.url}/discovery/v1/apis/{{api}}/{{apiVersion}}/rest"
        resolver = TPUClusterResolver("my-tpu", ZONE, PROJECT, discovery_url=template)
        assert await resolver.master() == "grpc://10.0.0.1:8470"
        monkeypatch.setenv("TPU_API_DISCOVERY_URL", template)
        overridden = TPUClusterResolver("my-tpu", ZONE, PROJECT, discovery_url="http://127.0.0.1:1/")
        assert await overridden.master() == "grpc://10.0.0.1:8470"
        directory = "https://www.googleapis.com/discovery/v1/apis/{api}/{apiVersion}/rest"
        monkeypatch.setenv("TPU_API_DISCOVERY_URL", directory)
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", google.url)
        assert await TPUClusterResolver("my-tpu", ZONE, PROJECT).master() == "grpc://10.0.0.1:8470"


async def test_raises_import_error_if_a_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(
        ImportError, match=r"tpu='local' needs TensorFlow. Run `pip .*\[tensorflow\]'`, or pass `tpu='grpc://"
    ) as raised:
        await TPUClusterResolver("local").num_accelerators()
    assert isinstance(raised.value, MissingDependencyError)


async def test_the_coordination_service_runs_on_the_first_worker() -> None:
    assert TPUClusterResolver("grpc://a").get_coordination_service_leader() == "/job:worker/task:0"
    resolver = sync.TPUClusterResolver("grpc://a", job_name="tpu")
    assert resolver.get_coordination_service_leader() == "/job:tpu/task:0"


async def test_a_topology_needs_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = TPUClusterResolver("grpc://a")
    assert resolver.tpu_hardware_feature is None
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(MissingDependencyError, match=r"set_tpu_topology\(\) needs TensorFlow"):
        resolver.set_tpu_topology(b"")


async def test_methods_connect_initializes_the_tpu_and_returns_a_resolver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensorflow = Mock()
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    given = tensorflow.distribute.cluster_resolver.TPUClusterResolver.return_value
    async with TPUWorker(4) as worker:
        resolver = await TPUClusterResolver.connect(f"grpc://{worker.address}")
        calls = [
            call.distribute.cluster_resolver.TPUClusterResolver(
                f"grpc://{worker.address}", job_name="worker"
            ),
            call.config.experimental_connect_to_cluster(given),
            call.tpu.experimental.initialize_tpu_system(given),
        ]
        assert tensorflow.mock_calls == calls
        assert await resolver.master() == f"grpc://{worker.address}"
        # TensorFlow would wait for the second one.
        with pytest.raises(ProbeError, match=r"127\.0\.0\.1:1: connection refused"):
            await TPUClusterResolver.connect(f"grpc://{worker.address},127.0.0.1:1")
    assert tensorflow.mock_calls == calls


async def test_methods_connect_raises_a_typed_error_if_tensorflow_cannot_initialize_the_tpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensorflow = Mock()
    tensorflow.errors.OpError = type("OpError", (Exception,), {})
    tensorflow.errors.NotFoundError = type("NotFoundError", (tensorflow.errors.OpError,), {})
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    for kind, expected, text in (
        (
            tensorflow.errors.NotFoundError,
            TPUNotFoundError,
            "TensorFlow found no TPU at this host: no device",
        ),
        (RuntimeError, ProbeError, "TensorFlow could not initialize the TPU system at this host: no device"),
    ):
        tensorflow.tpu.experimental.initialize_tpu_system.side_effect = kind(
            f"no device{'!' * 600}\nat line 1"
        )
        with pytest.raises(expected) as raised:
            await TPUClusterResolver.connect("local")
        assert str(raised.value).startswith(text)
        assert raised.value.summary.count("!") == 491
        assert "line 1" not in str(raised.value)


async def test_the_system_of_this_host_has_the_devices_of_its_tensorflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kinds, cores in ((["CPU"], 0), (["CPU", "TPU", "TPU"], 2)):
        devices = [Mock(device_type=kind) for kind in kinds]
        tensorflow = Mock(**{"config.list_logical_devices.return_value": devices})
        monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
        system = await TPUClusterResolver("local").get_tpu_system_metadata()
        assert (system.num_cores, system.num_hosts, system.num_of_cores_per_host) == (
            cores,
            min(cores, 1),
            cores,
        )
        assert [device.type for device in system.devices] == kinds
