"""The TPU system that the workers form: their devices, and what only the local TensorFlow can do with it.

It starts a coordinator, initializes the system, and lists the devices of this host. TensorFlow is imported on
first use, in a worker thread, because that takes seconds. Its calls cannot be interrupted: when one is
cancelled, its thread is abandoned and ends on its own. grpc is imported on first use too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aioresolve._core.secrets import CrossLoopLock
from aioresolve._core.threads import run_in_thread
from aioresolve._core.validation import validate_text
from aioresolve.errors import (
    ConfigurationError,
    MissingDependencyError,
    ProbeError,
    ResolveError,
    TPUNotFoundError,
)
from aioresolve.resolver.base import ClusterResolver
from aioresolve.spec import host_port

from .discovery import worker_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.probe import Device, WorkerProbe

    from .finder import TPUClients

T = TypeVar("T")

TPU = "TPU"


class TPUSystemMetadata(NamedTuple):
    """Facts about a TPU system: the tuple `tf.tpu.experimental.TPUSystemMetadata`, with the same fields.

    >>> TPUSystemMetadata(8, 2, 4, None, ()).num_cores
    8

    Attributes:
        num_cores: the TPU cores of the system, as TensorFlow counts them: its TPU devices.
        num_hosts: the number of TPU workers.
        num_of_cores_per_host: the TPU cores of each worker.
        topology: None, as from TensorFlow's resolver.
        devices: every device of every worker, including CPUs, in task order, with the names that they have in
            this cluster: `/job:worker/replica:0/task:1/device:TPU:0`.
    """

    num_cores: int
    num_hosts: int
    num_of_cores_per_host: int
    topology: None
    devices: tuple[Device, ...]


def system_metadata(probes: dict[str, WorkerProbe], job: str, timeout: float) -> TPUSystemMetadata:
    """Return the facts about the system that these workers form, as tasks of `job`.

    It raises a ProbeError if a worker failed, or the workers have different numbers of cores.
    """
    from aioresolve.probe.workers import common_accelerators

    cores = common_accelerators(probes, timeout, only=TPU).get(TPU, 0)
    tasks = enumerate(probes.values())
    devices = tuple(device for task, probe in tasks for device in _task_devices(probe, job, task))
    return TPUSystemMetadata(cores * len(probes), len(probes) if cores else 0, cores, None, devices)


def _task_devices(probe: WorkerProbe, job: str, task: int) -> Iterator[Device]:
    """Yield the devices of a worker with the names that TensorFlow gives them in a cluster with that worker.

    The names that workers report are not unique: every server that was started alone is task 0 of its own
    cluster, and libtpu knows no tasks.
    """
    numbers: Counter[str] = Counter()
    for device in probe.devices:
        number = numbers[device.type]
        numbers[device.type] += 1
        yield replace(device, name=f"/job:{job}/replica:0/task:{task}/device:{device.type}:{number}")


async def local_system() -> TPUSystemMetadata:
    """Return the facts about this host, from its TensorFlow; a MissingDependencyError without one."""
    from aioresolve.probe import Device

    devices = await _run_in_thread(
        lambda tf: tuple(Device(each.name, each.device_type) for each in tf.config.list_logical_devices()),
        "tpu='local'",
        "pass {tpu=grpc://localhost:8470} to probe the servers of this host instead",
    )
    cores = sum(device.type == TPU for device in devices)
    return TPUSystemMetadata(cores, 1 if cores else 0, cores, None, devices)


# TensorFlow


class Coordinator:
    """The task that coordinates the workers, in a job of its own.

    Args:
        name: the name of its job; if None, the cluster has no coordinator.
        address: its `host:port`; if None, a TensorFlow server is started in this process on first use.
        job_name: the job of the workers.

    Raises:
        ConfigurationError: an argument is invalid, or the name is that of the job of the workers.
    """

    def __init__(self, name: Any, address: Any, job_name: str) -> None:
        self.name = validate_text("coordinator_name", name)
        self._address = validate_text("coordinator_address", address)
        if self.name == job_name:
            raise ConfigurationError(
                f"{self.name!r} is the job of the TPU workers",
                argument="coordinator_name",
                hint="Choose another name, or pass {job_name}.",
            )
        if self.name is not None and self._address is not None:
            self._address = worker_address(self._address, "coordinator_address")
        self._server: Any = None
        self._lock = CrossLoopLock()

    async def jobs(self, clients: TPUClients, progress: Progress) -> dict[str, str]:
        """Return the name of its job and its address, `host:port`; empty without a coordinator."""
        if self.name is None:
            return {}
        async with self._lock:
            # Started once: the server keeps its address even if the metadata server is unreachable later.
            if self._address is None:
                host = await self._own_host(clients, progress)
                progress.waiting("coordinator", "TensorFlow has not started its server")
                self._server, port = await start_server()
                self._address = host_port(host, port)
                progress.done("coordinator", self._address)
        return {self.name: self._address}

    async def _own_host(self, clients: TPUClients, progress: Progress) -> str:
        try:
            return await (await clients.metadata()).internal_ip(progress)
        except ResolveError as error:
            if error.retryable:
                raise
            raise ConfigurationError(
                f"unknown address for coordinator {self.name!r}: this VM's metadata server did not report"
                f" the address of this machine: {error.summary}",
                hint="Pass {coordinator_address}.",
            ) from error


async def start_server() -> tuple[Any, int]:
    """Start a TensorFlow server in this process that listens on every interface, and return it and its port.

    It runs as long as the process: TensorFlow cannot stop a server.
    """
    server = await _run_in_thread(
        lambda tf: tf.distribute.Server({"local": ["0.0.0.0:0"]}, protocol="grpc", start=True),
        "a coordinator without an address",
        "pass {coordinator_address}",
    )
    return server, int(server.target.rpartition(":")[2])


async def initialize_system(addresses: Sequence[str], job: str) -> None:
    """Connect this process's TensorFlow to the workers of `job`, and initialize their TPU system.

    `addresses` are theirs, `host:port`; empty for the TPU of this host.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
        TPUNotFoundError: the workers have no TPU.
        ProbeError: TensorFlow failed for another reason.
    """
    where = ", ".join(addresses) or "this host"

    def initialize(tf: Any) -> None:
        # TensorFlow's functions accept only its own resolver, which sends no requests for given addresses.
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            ",".join(f"grpc://{address}" for address in addresses) or "local", job_name=job
        )
        try:
            if addresses:
                tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
        except (tf.errors.OpError, RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0][:500]
            if isinstance(error, tf.errors.NotFoundError):
                raise TPUNotFoundError(
                    f"TensorFlow found no TPU at {where}: {reason}",
                    tried=[where],
                    hint="Check that the workers run a TensorFlow server that holds the TPU.",
                ) from error
            raise ProbeError(
                f"TensorFlow could not initialize the TPU system at {where}: {reason}", code="failed"
            ) from error

    await _run_in_thread(initialize, "initializing a TPU system")


async def _run_in_thread(work: Callable[[Any], T], feature: str, alternative: str = "") -> T:
    return await run_in_thread(feature, lambda: work(_import_tensorflow(feature, alternative)))


def _import_tensorflow(feature: str, alternative: str = "") -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        install = "Run `pip install 'aioresolve[tensorflow]'`"
        raise MissingDependencyError(
            f"{feature} needs TensorFlow",
            hint=f"{install}, or {alternative}." if alternative else f"{install}.",
        ) from error
    return tf


class TopologyHolder:
    """The part of a TPU resolver that keeps the topology which TensorFlow reports."""

    _kept_attributes = ClusterResolver._kept_attributes | {"_tpu_topology"}
    _tpu_topology: Any = None

    def set_tpu_topology(self, serialized_tpu_topology: bytes) -> None:
        """Keep the topology that TensorFlow reports when it initializes a TPU system.

        Args:
            serialized_tpu_topology: a serialized `tensorflow.tpu.TopologyProto`.

        Raises:
            MissingDependencyError: (an ImportError) TensorFlow is not installed.
            ConfigurationError: (a ValueError) the argument is invalid.
        """
        _import_tensorflow("set_tpu_topology()")
        from tensorflow.core.protobuf.tpu import topology_pb2

        topology = topology_pb2.TopologyProto()  # pyright: ignore[reportAttributeAccessIssue]
        try:
            topology.ParseFromString(serialized_tpu_topology)
        except Exception as error:  # TypeError, or DecodeError of protobuf, which is not imported here
            raise ConfigurationError(
                f"it is not a serialized TopologyProto: {error}", argument="serialized_tpu_topology"
            ) from error
        self._tpu_topology = topology

    @property
    def tpu_hardware_feature(self) -> Any:
        """The `TPUHardwareFeature` of the topology that was set; None before `set_tpu_topology`."""
        return None if self._tpu_topology is None else self._tpu_topology.tpu_hardware_feature
