"""What only TensorFlow can do: start a server, initialize a TPU system, list this host's devices.

It is imported on first use, in a worker thread: that takes seconds. Its own calls cannot be interrupted: a
thread whose call was given up is left to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import anyio
import anyio.to_thread

from aioresolve.errors import MissingDependencyError, ProbeError, TPUNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aioresolve.probe import Device, WorkerProbe

    from .topology import TPUTopology

__all__ = ["TPUSystemMetadata", "connected_system", "local_devices", "started_server"]

T = TypeVar("T")


async def started_server() -> tuple[Any, int]:
    """Return a TensorFlow server of this process that listens on every interface, and its port.

    It stays as long as the process: TensorFlow cannot stop one.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
    """
    return await _in_thread(_start_server, "start a coordinator; or give coordinator_address")


async def local_devices() -> list[tuple[str, str]]:
    """Return name and type of each of this host's logical devices.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
    """
    return await _in_thread(
        _list_devices,
        "list the devices of tpu='local'; or give tpu='grpc://localhost:8470' to ask this host's own servers",
    )


async def connected_system(addresses: Sequence[str], job: str) -> None:
    """Connect this process's TensorFlow to the workers, and initialize their TPU system.

    Args:
        addresses: the workers, `host:port`; none is the TPU of this very host.
        job: their job's name.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
        TPUNotFoundError: they have no TPU.
        ProbeError: TensorFlow says why it did not work.
    """
    await _in_thread(lambda tf: _connect(tf, addresses, job), "connect to a TPU")


async def _in_thread(work: Callable[[Any], T], purpose: str) -> T:
    return await anyio.to_thread.run_sync(
        lambda: work(_tensorflow(purpose)), abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
    )


def _tensorflow(purpose: str) -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingDependencyError(
            f"TensorFlow is needed to {purpose}, and is not installed ({error});"
            " `pip install 'aioresolve[tensorflow]'`"
        ) from error
    return tf


def _start_server(tf: Any) -> tuple[Any, int]:
    server = tf.distribute.Server({"local": ["0.0.0.0:0"]}, protocol="grpc", start=True)
    return server, int(server.target.rpartition(":")[2])


def _list_devices(tf: Any) -> list[tuple[str, str]]:
    return [(device.name, device.device_type) for device in tf.config.list_logical_devices()]


def _connect(tf: Any, addresses: Sequence[str], job: str) -> None:
    where = ", ".join(addresses) or "this host"
    # Its own resolver asks nobody about workers that are given, and is what its own functions take.
    theirs = tf.distribute.cluster_resolver.TPUClusterResolver(
        ",".join(f"grpc://{address}" for address in addresses) or "local", job_name=job
    )
    try:
        if addresses:
            tf.config.experimental_connect_to_cluster(theirs)
        tf.tpu.experimental.initialize_tpu_system(theirs)
    except tf.errors.NotFoundError as error:
        raise TPUNotFoundError(
            f"TensorFlow found no TPU at {where}: {_first_line(error)}; see that its workers run a TensorFlow"
            " that holds the TPU",
            tried=[where],
        ) from error
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        raise ProbeError(
            f"TensorFlow did not initialize the TPU system at {where}: {_first_line(error)}", code="failed"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:500]


class _Fields(NamedTuple):
    num_cores: int
    num_hosts: int
    num_of_cores_per_host: int
    topology: Any
    devices: tuple[Any, ...]


class TPUSystemMetadata(_Fields):
    """Some facts of a TPU system: the five fields of `tf.tpu.experimental.TPUSystemMetadata`, as that tuple.

    Attributes:
        num_cores: TPU cores in the system, as TensorFlow counts them: its TPU devices.
        num_hosts: TPU workers.
        num_of_cores_per_host: TPU cores of each worker.
        topology: how the slice is built, a `TPUTopology`; None where slices differ or
            nobody can tell.
        devices: every device of every worker, CPUs too, in task order.
        hosts: what each worker answered, in task order: a `WorkerProbe`.
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
