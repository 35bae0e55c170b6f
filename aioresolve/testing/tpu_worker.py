"""`TPUWorker`: a loopback worker that reports devices over gRPC, as a TensorFlow server and as libtpu."""

from __future__ import annotations

import asyncio
import pickle
import random
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import anyio
import anyio.to_thread
import grpc
import grpc.aio

from aioresolve.errors import ConfigurationError
from aioresolve.probe.channels import loop_guard
from aioresolve.probe.devices import GET_METRIC, GET_RUNTIME_STATUS, GET_STATUS, TOTAL_MEMORY
from aioresolve.probe.libtpu_pb2 import MetricRequest, MetricResponse, RuntimeStatus
from aioresolve.probe.worker_pb2 import GetStatusResponse

from .faults import Answer, Delay, Fault, Hang, Reset, reset_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence

    from .lifecycle import CertificateAuthority

    Context: TypeAlias = grpc.aio.ServicerContext[bytes, bytes]
    Method: TypeAlias = Callable[[bytes, Context], bytes]

_MEMORY = 16 << 30
"""The memory of each device in bytes."""

_MAX_NAMED = 100_000
"""Above this number devices have no names: such a worker is a malicious one, and names would take 600 MB."""


class TPUWorker:
    """A worker that reports its devices over gRPC, to test clients with.

    >>> async with TPUWorker(devices=8) as worker:
    ...     probe = await probe_worker(worker.address)
    >>> probe.accelerators
    {'TPU': 8}

    It implements TensorFlow's `WorkerService/GetStatus` and libtpu's `RuntimeMetricService`, both on each of
    its ports. It is a real grpc.aio server in the running event loop, which grpc.aio polls until the server
    stops: code that blocks that loop gets no response. For such code, and for many workers at once, use
    `tpu_worker_process`.

    Args:
        devices: the number of accelerators that it reports, in addition to one CPU. It may be absurd, such as
            10,000,000.
        host_devices: the number of accelerators of all processes of its host, which libtpu reports unless the
            request has `skip_node_aggregation`; by default `devices`.
        cores: the number of TensorCores that libtpu reports.
        chips: the number of chips that libtpu reports; with None, `GetTpuRuntimeStatus` is unimplemented.
        job: TensorFlow's name of the job, a part of the devices' names.
        task: its task index in that job.
        services: the services it has: `"tensorflow"`, `"libtpu"`, both, or neither, like any other gRPC
            server.
        metadata: metadata that a call must have; others are UNAUTHENTICATED.
        tls: use TLS, with a certificate from an authority of its own (needs the extra `testing`).
        faults: faults of every call (`Delay`, `Hang`, `Answer` with the serialized message as body), or of
            every connection (`Reset`).
        host: the loopback address to listen on.
        port: the port; 0 takes a free one, which is kept when the worker is entered again.
        ports: the number of ports to listen on; those after the first are free ones.

    Attributes:
        calls: the methods called, `/package.Service/Method`, in order.
        peers: the client's address of each of these calls, as gRPC writes it.

    Raises:
        MissingDependencyError: TLS needs trustme, which is not installed.
    """

    def __init__(
        self,
        devices: int = 8,
        *,
        host_devices: int | None = None,
        cores: int | None = None,
        chips: int | None = None,
        job: str = "worker",
        task: int = 0,
        services: Collection[str] = ("tensorflow", "libtpu"),
        metadata: Mapping[str, str] | None = None,
        tls: bool = False,
        faults: Sequence[Fault] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        ports: int = 1,
    ) -> None:
        self.calls: list[str] = []
        self.peers: list[str] = []
        self._host = host
        self._ports = [port] + [0] * (ports - 1)
        self._metadata = set((metadata or {}).items())
        self._faults = tuple(faults)
        self._authority: CertificateAuthority | None = None
        if tls:
            from . import lifecycle  # not above: it loads aiohttp, which most workers do without

            self._authority = lifecycle.CertificateAuthority()
        self._methods: dict[str, Method] = {}
        if "tensorflow" in services:
            names = f"/job:{job}/replica:0/task:{task}/device:"
            self._methods[GET_STATUS] = partial(self._status, names, devices)
        if "libtpu" in services:
            host_devices = devices if host_devices is None else host_devices
            self._methods[GET_METRIC] = partial(_metric, devices, host_devices)
        if "libtpu" in services and chips is not None:
            self._methods[GET_RUNTIME_STATUS] = partial(_runtime_status, cores or 0, chips)
        self._incarnation = 0
        self._running: AsyncExitStack | None = None

    @property
    def address(self) -> str:
        """`host:port`; valid after the worker has started."""
        return self.addresses[0]

    @property
    def addresses(self) -> list[str]:
        """`host:port` of each port; valid after the worker has started."""
        return [f"{self._host}:{port}" for port in self._ports]

    @property
    def port(self) -> int:
        """The first port; valid after the worker has started."""
        return self._ports[0]

    @property
    def certificate_authority(self) -> bytes:
        """The CA certificate as PEM: the `root_certificates` of `grpc.ssl_channel_credentials`.

        Raises:
            ConfigurationError: the worker does not use TLS.
        """
        if self._authority is None:
            raise ConfigurationError("this TPUWorker does not use TLS", hint="Create it with tls=True.")
        return self._authority.pem.encode()

    async def __aenter__(self) -> Self:
        """Start the worker.

        Raises:
            OSError: the port is not available.
            ConfigurationError: it is already running, or another event loop polls grpc.aio.
        """
        if self._running is not None:
            raise ConfigurationError("this TPUWorker is already running", hint="Create another one.")
        self._incarnation = random.getrandbits(63)  # as of a new process
        async with AsyncExitStack() as stack:
            if any(isinstance(fault, Reset) for fault in self._faults):
                loop = asyncio.get_running_loop()
                for number, port in enumerate(self._ports):
                    server = await loop.create_server(_Resetting, self._host, port)
                    self._ports[number] = server.sockets[0].getsockname()[1]
                    await stack.enter_async_context(server)
            else:
                await stack.enter_async_context(self._grpc_server())
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    @asynccontextmanager
    async def _grpc_server(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        for port in filter(None, self._ports):
            # grpc's own error for a port in use has no details, and it leaves files open.
            socket.create_server((self._host, port)).close()
        if loop_guard.acquire() is not loop:
            raise ConfigurationError(
                "the event loop of another thread polls grpc.aio, because it has an open channel or server",
                hint="Close that, or use tpu_worker_process().",
            )
        try:
            # With SO_REUSEPORT, a port that another worker has would be shared instead of refused.
            server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
            # gRPC responds UNIMPLEMENTED to other methods.
            for path, method in self._methods.items():
                _, service, name = path.split("/")
                handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
                    partial(self._call, path, method)
                )
                generic = grpc.method_handlers_generic_handler(service, {name: handler})
                server.add_generic_rpc_handlers((generic,))
            try:
                self._ports = [self._bind(server, f"{self._host}:{port}") for port in self._ports]
                await server.start()
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await server.stop(None)
        finally:
            loop_guard.release(loop)

    def _bind(self, server: grpc.aio.Server, address: str) -> int:
        if self._authority is None:
            return server.add_insecure_port(address)
        credentials = grpc.ssl_server_credentials([self._authority.server_certificate()])
        return server.add_secure_port(address, credentials)

    async def _call(self, path: str, method: Method, request: bytes, context: Context) -> bytes:
        self.calls.append(path)
        self.peers.append(context.peer())
        if not self._metadata <= {(key, value) for key, value in context.invocation_metadata() or ()}:
            return _fail(context, grpc.StatusCode.UNAUTHENTICATED, "the call lacks the required metadata")
        for fault in self._faults:
            match fault:
                case Delay(seconds):
                    await anyio.sleep(seconds)
                case Hang():
                    await anyio.sleep_forever()
                case Answer(body=bytes(body)):
                    return body
        return method(request, context)

    def _status(self, names: str, devices: int, request: bytes, context: Context) -> bytes:
        if devices > _MAX_NAMED:
            # A GetStatusResponse with empty device_attributes: field 1, length 0.
            return b"\n\0" * devices
        status = GetStatusResponse()
        for index, name in enumerate(("CPU:0", *(f"TPU:{number}" for number in range(devices)))):
            status.device_attributes.add(
                name=f"{names}{name}",
                device_type=name.partition(":")[0],
                memory_limit=_MEMORY,
                incarnation=self._incarnation + index,
            )
        return status.SerializeToString()


def _fail(context: Context, code: grpc.StatusCode, details: str) -> bytes:
    """Make the call fail. Unlike `context.abort` this leaves no reference cycle."""
    context.set_code(code)
    context.set_details(details)
    return b""


def _metric(devices: int, host_devices: int, request: bytes, context: Context) -> bytes:
    message = MetricRequest.FromString(request)
    if message.metric_name != TOTAL_MEMORY:
        return _fail(context, grpc.StatusCode.NOT_FOUND, f"no metric {message.metric_name!r}")
    response = MetricResponse()
    for number in range(devices if message.skip_node_aggregation else host_devices):
        metric = response.metric.metrics.add()
        metric.attribute.value.int_attr = number
        metric.gauge.as_int = _MEMORY
    return response.SerializeToString()


def _runtime_status(cores: int, chips: int, request: bytes, context: Context) -> bytes:
    """Return the response to GetTpuRuntimeStatus: the cores, spread evenly over the chips."""
    status = RuntimeStatus()
    for core in range(cores):
        identifier = status.core_states[core].core_id
        identifier.chip_id = core * chips // cores
        identifier.core_on_chip.type = 1
    return status.SerializeToString()


class _Resetting(asyncio.Protocol):
    """Resets a connection as soon as the client has sent something."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        reset_connection(self._transport)


@contextmanager
def tpu_worker_process(**options: Any) -> Iterator[list[str]]:
    """Run a `TPUWorker` in a new process; yield its addresses, `host:port`.

    Starting the process blocks for about half a second, so enter this before the event loop runs.

    ```
    with tpu_worker_process(devices=8, ports=1024) as addresses:
        ...
    ```

    Args:
        **options: the arguments of `TPUWorker`, except `tls`.

    Raises:
        ConfigurationError: the process did not start; its error is on stderr.
    """
    command = [sys.executable, "-c", f"import {__name__} as worker; worker.run_worker_process()"]
    command.append(pickle.dumps(options).hex())
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: S603
        assert process.stdin is not None
        assert process.stdout is not None
        addresses = process.stdout.readline().split()
        if not addresses:
            raise ConfigurationError(f"TPUWorker({options}) did not start: exit code {process.wait()}")
        try:
            yield addresses
        finally:
            process.stdin.close()


def run_worker_process() -> None:
    """Run the process of `tpu_worker_process`: print the addresses, and serve until stdin is closed."""
    anyio.run(_serve, pickle.loads(bytes.fromhex(sys.argv[1])))  # noqa: S301 - from our parent process


async def _serve(options: dict[str, Any]) -> None:
    async with TPUWorker(**options) as worker:
        print(*worker.addresses, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
