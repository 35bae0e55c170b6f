"""`TPUWorker`: a loopback worker that tells its devices over gRPC, as a TensorFlow server and as libtpu."""

from __future__ import annotations

import asyncio
import pickle
import random
import socket
import struct
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import anyio
import anyio.to_thread
import grpc
import grpc.aio

from aioresolve.errors import ConfigurationError
from aioresolve.probe.devices import GET_METRIC, GET_RUNTIME_STATUS, GET_STATUS, TOTAL_MEMORY
from aioresolve.probe.grpc_loop import polled_loop
from aioresolve.probe.libtpu_pb2 import MetricRequest, MetricResponse, RuntimeStatus
from aioresolve.probe.worker_pb2 import GetStatusResponse

from .certificates import CertificateAuthority
from .faults import Answer, Delay, Fault, Hang, Reset

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
    from types import TracebackType

    Context: TypeAlias = grpc.aio.ServicerContext[bytes, bytes]
    Answerer: TypeAlias = Callable[[bytes, Context], Awaitable[bytes]]

__all__ = ["Silence", "TPUWorker", "tpu_worker_process"]

MEMORY = 16 << 30
"""Bytes that each device has."""

MOST_NAMED = 100_000
"""So many devices have names. A larger number is a lie, and with names it would take 600 MB to tell it."""


@dataclass(frozen=True, slots=True)
class Silence(Fault):
    """Connections are taken by the kernel alone and nothing is ever said, as of a process that is stopped."""


class TPUWorker:
    """A worker whose devices can be asked for over gRPC, for tests of what asks.

    ```
    async with TPUWorker(devices=8) as worker:
        probe = await probe_worker(worker.address)
        assert probe.accelerators == {"TPU": 8}
    ```

    It answers TensorFlow's `WorkerService/GetStatus` and libtpu's `RuntimeMetricService`, both at each of its
    ports. It is a real grpc.aio server in the running event loop, which is the one that grpc.aio polls
    meanwhile: code that blocks that loop gets no answer. For such code, and for many workers at once, there
    is `tpu_worker_process`.

    Args:
        devices: how many accelerators it says it has, besides one CPU. 10,000,000 is a lie worth a test.
        device_type: their type.
        cores: how many TensorCores libtpu tells.
        chips: how many chips libtpu tells; where None, it has no `GetTpuRuntimeStatus`.
        job: TensorFlow's name of its job, a part of its devices' names.
        task: its task index in that job.
        services: what it serves: `"tensorflow"`, `"libtpu"`, both, or neither, which is another gRPC service.
        metadata: what a call has to carry, or it is UNAUTHENTICATED.
        tls: speak TLS, with a certificate of an authority of its own (needs the extra `testing`).
        faults: what befalls every call (`Delay`, `Hang`, `Answer` with the body to send as the message) or
            every connection (`Silence`, `Reset`).
        host: the loopback address to listen at.
        port: the port; 0 takes a free one, which is kept when it is entered again.
        ports: at how many ports to listen; those after the first are free ones.

    Attributes:
        calls: the methods asked for, `/package.Service/Method`, in the order they came in.
        peers: the client's end of the connection of each of these calls, as gRPC writes it.

    Raises:
        MissingDependencyError: TLS needs trustme, which is not installed.
    """

    def __init__(
        self,
        devices: int = 8,
        *,
        device_type: str = "TPU",
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
        self._names = f"/job:{job}/replica:0/task:{task}/device:"
        self._devices = devices
        self._device_type = device_type
        self._cores = cores
        self._chips = chips
        self._services = services
        self._metadata = set((metadata or {}).items())
        self._authority = CertificateAuthority() if tls else None
        self._faults = tuple(faults)
        self._host = host
        self._ports = [port] + [0] * (ports - 1)
        self._running: AsyncExitStack | None = None

    @property
    def address(self) -> str:
        """`host:port`; the port is known once it listens."""
        return self.addresses[0]

    @property
    def addresses(self) -> list[str]:
        """`host:port` of each port; they are known once it listens."""
        return [f"{self._host}:{port}" for port in self._ports]

    @property
    def port(self) -> int:
        """The first port; it is known once it listens."""
        return self._ports[0]

    @property
    def certificate_authority(self) -> bytes:
        """The PEM that a client has to trust: the `root_certificates` of `grpc.ssl_channel_credentials`.

        Raises:
            ConfigurationError: it does not speak TLS.
        """
        if self._authority is None:
            raise ConfigurationError("this TPUWorker does not speak TLS; make it with tls=True")
        return self._authority.pem.encode()

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: the port is taken.
            ConfigurationError: it listens already, or grpc.aio is polled by another event loop.
        """
        if self._running is not None:
            raise ConfigurationError("this TPUWorker listens already")
        befalls_connections = next(
            (fault for fault in self._faults if isinstance(fault, (Silence, Reset))), None
        )
        async with AsyncExitStack() as stack:
            if befalls_connections is None:
                await stack.enter_async_context(self._grpc_server())
            else:
                listeners = [stack.enter_context(self._listener(n)) for n in range(len(self._ports))]
                if isinstance(befalls_connections, Reset):
                    await stack.enter_async_context(_resetting(listeners))
            self._running = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    @asynccontextmanager
    async def _grpc_server(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        for port in filter(None, self._ports):
            # grpc says little of a port that is taken, and leaves files open.
            socket.create_server((self._host, port)).close()
        if polled_loop.enter() is not loop:
            raise ConfigurationError(
                "grpc.aio is polled by the event loop of another thread, which has a channel or server open;"
                " close it, or use tpu_worker_process()"
            )
        try:
            server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
            server.add_generic_rpc_handlers(tuple(self._handlers()))
            try:
                self._ports = [self._bound(server, port) for port in self._ports]
                await server.start()
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await server.stop(None)
        finally:
            polled_loop.leave(loop)

    def _bound(self, server: grpc.aio.Server, port: int) -> int:
        address = f"{self._host}:{port}"
        if self._authority is None:
            return server.add_insecure_port(address)
        credentials = grpc.ssl_server_credentials([self._authority.server_certificate()])
        return server.add_secure_port(address, credentials)

    @contextmanager
    def _listener(self, number: int) -> Iterator[socket.socket]:
        with socket.create_server((self._host, self._ports[number])) as listener:
            listener.setblocking(False)
            self._ports[number] = listener.getsockname()[1]
            yield listener

    def _handlers(self) -> Iterator[grpc.GenericRpcHandler]:
        """Yield what answers each service; a method that is left out is UNIMPLEMENTED."""
        answers: dict[str, Answerer] = {}
        if "tensorflow" in self._services:
            answers[GET_STATUS] = partial(_same, self._status())
        if "libtpu" in self._services:
            answers[GET_METRIC] = partial(_metric, self._devices)
            if self._chips is not None:
                answers[GET_RUNTIME_STATUS] = partial(_same, _runtime_status(self._cores or 0, self._chips))
        for path, answer in answers.items():
            _, service, method = path.split("/")
            handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
                partial(self._answer, path, answer)
            )
            yield grpc.method_handlers_generic_handler(service, {method: handler})

    async def _answer(self, path: str, answer: Answerer, request: bytes, context: Context) -> bytes:
        self.calls.append(path)
        self.peers.append(context.peer())
        if not self._metadata <= {(key, value) for key, value in context.invocation_metadata() or ()}:
            return _failed(context, grpc.StatusCode.UNAUTHENTICATED, "these are not the metadata wanted")
        for fault in self._faults:
            match fault:
                case Delay(seconds):
                    await anyio.sleep(seconds)
                case Hang():
                    await anyio.sleep_forever()
                case Answer(body=bytes(body)):
                    return body
        return await answer(request, context)

    def _status(self) -> bytes:
        """Return the answer to GetStatus, with incarnations of its own for each start."""
        if self._devices > MOST_NAMED:
            return b"\n\0" * self._devices
        names = ["CPU:0", *(f"{self._device_type}:{number}" for number in range(self._devices))]
        status = GetStatusResponse()
        for name in names:
            status.device_attributes.add(
                name=f"{self._names}{name}",
                device_type=name.partition(":")[0],
                memory_limit=MEMORY,
                incarnation=random.getrandbits(64),
            )
        return status.SerializeToString()


def _failed(context: Context, code: grpc.StatusCode, details: str) -> bytes:
    """Let the call fail, with this for an answer. Unlike `context.abort` it leaves no reference cycle."""
    context.set_code(code)
    context.set_details(details)
    return b""


async def _same(body: bytes, request: bytes, context: Context) -> bytes:
    return body


async def _metric(devices: int, request: bytes, context: Context) -> bytes:
    name = MetricRequest.FromString(request).metric_name
    if name != TOTAL_MEMORY:
        return _failed(context, grpc.StatusCode.NOT_FOUND, f"no metric {name!r}")
    response = MetricResponse()
    for number in range(devices):
        metric = response.metric.metrics.add()
        metric.attribute.value.int_attr = number
        metric.gauge.as_int = MEMORY
    return response.SerializeToString()


def _runtime_status(cores: int, chips: int) -> bytes:
    """Return the answer to GetTpuRuntimeStatus: the cores, spread evenly over the chips."""
    status = RuntimeStatus()
    for core in range(cores):
        identifier = status.core_states[core].core_id
        identifier.chip_id = core * chips // cores
        identifier.core_on_chip.type = 1
    return status.SerializeToString()


@asynccontextmanager
async def _resetting(listeners: Sequence[socket.socket]) -> AsyncIterator[None]:
    """Reset each connection as soon as it has said something."""

    async def reset(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_recv(connection, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def accept(listener: socket.socket) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            group.start_soon(reset, connection)

    async with anyio.create_task_group() as group:
        for listener in listeners:
            group.start_soon(accept, listener)
        try:
            yield
        finally:
            group.cancel_scope.cancel()


@contextmanager
def tpu_worker_process(**options: Any) -> Iterator[list[str]]:
    """Run a `TPUWorker` in a process of its own; yield its addresses, `host:port`.

    It blocks while the process starts, for about half a second: enter it before there is an event loop.

    ```
    with tpu_worker_process(devices=8, ports=1024) as addresses:
        ...
    ```

    Args:
        **options: the arguments of `TPUWorker`, but for `tls`.

    Raises:
        ConfigurationError: the process did not start; its own words are on stderr.
    """
    command = [sys.executable, "-c", f"import {__name__} as worker; worker.serve_alone()"]
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


def serve_alone() -> None:
    """Be the process of `tpu_worker_process`: print the addresses, and serve until stdin is closed."""
    anyio.run(_serve, pickle.loads(bytes.fromhex(sys.argv[1])))  # noqa: S301 - our parent made it


async def _serve(options: dict[str, Any]) -> None:
    async with TPUWorker(**options) as worker:
        print(*worker.addresses, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
