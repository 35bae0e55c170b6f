"""What only the local TensorFlow can do: start a coordinator, initialize a TPU, list this host's devices.

TensorFlow is imported on first use, in a worker thread, because that takes seconds. Its calls cannot be
interrupted: when one is cancelled, its thread is abandoned and ends on its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from aioresolve._core.threads import run_in_thread
from aioresolve._core.token_cache import CrossLoopLock
from aioresolve.errors import (
    ConfigurationError,
    MissingDependencyError,
    ProbeError,
    ResolveError,
    TPUNotFoundError,
)
from aioresolve.resolver.base import ClusterResolver
from aioresolve.spec import host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.probe import Device, WorkerProbe

    from .connections import TPUClients
    from .topology import TPUTopology

T = TypeVar("T")


class Coordinator:
    """The task that coordinates the workers, in a job of its own.

    Args:
        name: the name of its job.
        address: its `host:port`; if None, a TensorFlow server is started in this process on first use.
    """

    def __init__(self, name: str, address: str | None) -> None:
        self.name = name
        self._given_address = address
        self._server: tuple[Any, str] | None = None
        self._lock = CrossLoopLock()

    async def jobs(self, connections: TPUClients, progress: Progress) -> dict[str, str]:
        """Return the name of its job and its address, `host:port`.

        Raises:
            MissingDependencyError: TensorFlow is needed to start a server and is not installed.
            ConfigurationError: the address of this machine, where the server would listen, is unknown.
        """
        if self._given_address is not None:
            return {self.name: self._given_address}
        async with self._lock:
            # Started once: the server keeps its address even if the metadata server is unreachable later.
            if self._server is None:
                host = await self._own_host(connections, progress)
                progress.waiting("coordinator", "TensorFlow has not started its server")
                server, port = await start_server()
                self._server = server, host_port(host, port)
        address = self._server[1]
        progress.done("coordinator", address)
        return {self.name: address}

    async def _own_host(self, connections: TPUClients, progress: Progress) -> str:
        try:
            return await (await connections.metadata()).internal_ip(progress)
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

    Raises:
        MissingDependencyError: TensorFlow is not installed.
    """
    return await _run_in_thread(
        _start_server, "a coordinator without an address", "pass {coordinator_address}"
    )


async def list_local_devices() -> list[tuple[str, str]]:
    """Return the name and type of each logical device of this host.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
    """
    return await _run_in_thread(
        lambda tf: [(device.name, device.device_type) for device in tf.config.list_logical_devices()],
        "tpu='local'",
        "pass {tpu=grpc://localhost:8470} to probe the servers of this host instead",
    )


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
        self._tpu_topology = _parse_topology(serialized_tpu_topology)

    @property
    def tpu_hardware_feature(self) -> Any:
        """The `TPUHardwareFeature` of the topology that was set; None before `set_tpu_topology`."""
        return None if self._tpu_topology is None else self._tpu_topology.tpu_hardware_feature


def _parse_topology(serialized: bytes) -> Any:
    _import_tensorflow("set_tpu_topology()", "")
    from tensorflow.core.protobuf.tpu import topology_pb2

    topology = topology_pb2.TopologyProto()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        topology.ParseFromString(serialized)
    except Exception as error:  # TypeError, or DecodeError of protobuf, which is imported in spec only
        raise ConfigurationError(
            f"it is not a serialized TopologyProto: {error}", argument="serialized_tpu_topology"
        ) from error
    return topology


async def initialize_system(addresses: Sequence[str], job: str) -> None:
    """Connect this process's TensorFlow to the workers and initialize their TPU system.

    Args:
        addresses: the workers, `host:port`; empty for the TPU of this host.
        job: the name of their job.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
        TPUNotFoundError: the workers have no TPU.
        ProbeError: TensorFlow failed for another reason.
    """
    await _run_in_thread(lambda tf: _initialize(tf, addresses, job), "initializing a TPU system")


async def _run_in_thread(work: Callable[[Any], T], feature: str, alternative: str = "") -> T:
    return await run_in_thread(feature, lambda: work(_import_tensorflow(feature, alternative)))


def _import_tensorflow(feature: str, alternative: str) -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        install = "Run `pip install 'aioresolve[tensorflow]'`"
        raise MissingDependencyError(
            f"{feature} needs TensorFlow",
            hint=f"{install}, or {alternative}." if alternative else f"{install}.",
        ) from error
    return tf


def _start_server(tf: Any) -> tuple[Any, int]:
    server = tf.distribute.Server({"local": ["0.0.0.0:0"]}, protocol="grpc", start=True)
    return server, int(server.target.rpartition(":")[2])


def _initialize(tf: Any, addresses: Sequence[str], job: str) -> None:
    where = ", ".join(addresses) or "this host"
    # TensorFlow's functions accept only its own resolver, which sends no requests for given addresses.
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
        ",".join(f"grpc://{address}" for address in addresses) or "local", job_name=job
    )
    try:
        if addresses:
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except tf.errors.NotFoundError as error:
        raise TPUNotFoundError(
            f"TensorFlow found no TPU at {where}: {_first_line(error)}",
            tried=[where],
            hint="Check that the workers run a TensorFlow server that holds the TPU.",
        ) from error
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        raise ProbeError(
            f"TensorFlow could not initialize the TPU system at {where}: {_first_line(error)}", code="failed"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:500]


class _Fields(NamedTuple):
    num_cores: int
    num_hosts: int
    num_of_cores_per_host: int
    topology: Any
    devices: tuple[Any, ...]


# It is defined here rather than in probing.py because `import aioresolve.tpu` must not load grpc.
class TPUSystemMetadata(_Fields):
    """Facts about a TPU system: the tuple `tf.tpu.experimental.TPUSystemMetadata`, with the same five fields.

    Attributes:
        num_cores: the TPU cores of the system, as TensorFlow counts them: its TPU devices.
        num_hosts: the number of TPU workers.
        num_of_cores_per_host: the TPU cores of each worker.
        topology: the layout of the slice, a `TPUTopology`; None if slices differ or it is unknown.
        devices: every device of every worker, including CPUs, in task order, with the names that they have in
            this cluster: `/job:worker/replica:0/task:1/device:TPU:0`.
        hosts: what each worker reported, in task order: `WorkerProbe` objects, with the worker's own names.
    """

    hosts: tuple[WorkerProbe, ...]

    def __new__(
        cls,
        num_cores: int,
        num_hosts: int,
        num_of_cores_per_host: int,
        topology: TPUTopology | None,
        devices: Sequence[Device],
        hosts: Sequence[WorkerProbe] = (),
    ) -> Self:
        self = super().__new__(cls, num_cores, num_hosts, num_of_cores_per_host, topology, tuple(devices))
        self.hosts = tuple(hosts)
        return self
