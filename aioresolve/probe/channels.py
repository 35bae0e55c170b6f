"""Whether a server speaks TLS: gRPC, asked to connect in plain, only sees that such a server hangs up.

gRPC channels to workers: how they are opened, shared and asked, with grpc's errors made into ours.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import anyio
import grpc
import grpc.aio

from aioresolve.errors import ConfigurationError, ProbeError

from .grpc_errors import deadline_passed, failed_call, speaks_tls_error
from .grpc_loop import polled_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from types import TracebackType


__all__ = ["Deadline", "ProbeChannels", "WorkerChannel", "bare_address", "speaks_tls", "split_address"]


ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment `timeout` seconds after it was set.

    Attributes:
        timeout: seconds from when it was set.
        ends: the moment, in seconds of `time.monotonic()`.
    """

    timeout: float
    ends: float

    @classmethod
    def after(cls, timeout: float) -> Self:
        """Return the deadline so many seconds from now."""
        return cls(timeout, time.monotonic() + timeout)

    @property
    def left(self) -> float:
        """Seconds until then, never negative."""
        return max(0.0, self.ends - time.monotonic())


def bare_address(address: object) -> str:
    """Return `host:port` of a worker's address, which may have TensorFlow's `grpc://` before it.

    Raises:
        ConfigurationError: it is no such address.
    """
    bare = address.removeprefix("grpc://") if isinstance(address, str) else ""
    found = ADDRESS.fullmatch(bare)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise ConfigurationError(
            f"{address!r} is no worker's address; give host:port such as '10.0.0.7:8470', an IPv6 address in"
            " brackets"
        )
    return bare


def split_address(address: str) -> tuple[str, int]:
    """Return the host, an IPv6 address without its brackets, and the port of `host:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


async def speaks_tls(host: str, port: int, timeout: float) -> bool:
    """Return whether the server at `host` and `port` begins a TLS handshake within `timeout` seconds.

    Nothing is sent but the handshake, and its certificate is not looked at.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with anyio.move_on_after(timeout):
        try:
            stream = await anyio.connect_tcp(host, port, ssl_context=context, tls_standard_compatible=False)
        except ssl.SSLError as error:
            # An alert is TLS as well: such a server wants our certificate, or another version.
            return "ALERT" in (error.reason or "").upper()
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream):
            return False
        await stream.aclose()
        return True
    return False


OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.enable_http_proxy", 0),  # workers are inside the cluster, whatever the proxy's variables say
    ("grpc.enable_retries", 0),  # a probe tells what it sees
    ("grpc.service_config_disable_resolution", 1),  # or DNS is asked for a TXT record of each worker
    ("grpc.use_local_subchannel_pool", 1),  # or a new channel shares an old one's backoff after a failure
    ("grpc.initial_reconnect_backoff_ms", 100),  # or a connection is tried for a second at least
    ("grpc.http2.bdp_probe", 0),  # or megabytes are read of an answer before it is known to be too large
    ("grpc.primary_user_agent", "aioresolve"),
)

LINGERING = 0.1
"""Seconds after the deadline of a call, which is to pass first, until grpc gives up to connect.

By default that is 20 s after it began: so long grpc would keep the socket to a worker that never speaks, even
if the channel is closed. It has no other way to end that."""

UNWINDING = 1.0
"""Seconds that grpc has to end a cancelled call."""

SNIFFING = 1.0
"""Seconds at most to find out whether a server that hangs up speaks TLS."""

NO_ANSWER = frozenset({"malformed", "refused", "tls", "unreachable"})
"""Failures of the connection: there is no gRPC server at its other end, or not any more."""

HUNG_UP = frozenset({"malformed", "unreachable"})
"""What a TLS server that is asked in plain looks like."""

KEY = re.compile(r"[0-9a-z_.-]+")


class ProbeChannels:
    """How workers are reached; inside `async with`, channels stay open from one probe to the next.

    ```
    async with ProbeChannels.over_tls(ca) as channels:
        for _ in range(10):
            await probe_workers(addresses, channels=channels)
    ```

    Outside `async with`, and in other event loops than the one it was entered in, each probe opens a channel
    of its own and closes it again. No HTTP proxy is used.

    Args:
        credentials: TLS, as `grpc.ssl_channel_credentials()` makes it; plain where None.
        tls_server_name: the name that the workers' certificates are to show instead of their address.
        metadata: pairs sent along with each call, such as `("authorization", "Bearer ...")`. They are sent in
            plain where there are no `credentials`.
        max_message_bytes: the largest answer that is taken.
        max_channels: how many channels stay open; the one used longest ago is closed first.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    def __init__(
        self,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        tls_server_name: str | None = None,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        max_message_bytes: int = 1 << 20,
        max_channels: int = 1024,
    ) -> None:
        if credentials is not None and not isinstance(credentials, grpc.ChannelCredentials):
            raise ConfigurationError(
                "credentials are grpc.ChannelCredentials, as grpc.ssl_channel_credentials() makes them; got "
                f"{type(credentials).__name__}"
            )
        if tls_server_name is not None and credentials is None:
            raise ConfigurationError("tls_server_name is of use with credentials only; give both")
        if max_message_bytes < 1 or max_channels < 1:
            raise ConfigurationError("max_message_bytes and max_channels are at least 1")
        options = [*OPTIONS, ("grpc.max_receive_message_length", max_message_bytes)]
        if tls_server_name is not None:
            options.append(("grpc.ssl_target_name_override", tls_server_name))
        self._options = options
        self._credentials = credentials
        self._metadata = _checked_metadata(metadata)
        self._max_channels = max_channels
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: dict[str, WorkerChannel] = {}  # the one used longest ago first

    @classmethod
    def over_tls(cls, root_certificates: bytes | None = None) -> Self:
        """Return channels over TLS that show no certificate of their own.

        Args:
            root_certificates: the authorities to trust, as PEM; where None, those of the file that
                `$GRPC_DEFAULT_SSL_ROOTS_FILE_PATH` names, else gRPC's own.
        """
        return cls(credentials=grpc.ssl_channel_credentials(root_certificates))

    def __repr__(self) -> str:
        return f"<ProbeChannels {'in plain' if self._credentials is None else 'over TLS'}>"

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise ConfigurationError(f"{self!r} is entered already; use the one, or make another")
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every channel, those in use as soon as their probes are done. Closing twice does nothing."""
        while self._idle:
            await self._taken(next(iter(self._idle))).aclose()
        self._loop = None

    @asynccontextmanager
    async def to(self, address: str, deadline: Deadline) -> AsyncIterator[WorkerChannel]:
        """Yield a channel to one worker that nobody else uses meanwhile. To be entered in the polled loop."""
        if address in self._idle and self._is_open_here:
            channel = self._taken(address)
        else:
            channel = WorkerChannel(address, self._credentials, self._metadata, self._options, deadline)
        try:
            yield channel
        finally:
            if channel.is_answering and self._is_open_here and self._keep(channel):
                if len(self._idle) > self._max_channels:
                    await self._taken(next(iter(self._idle))).aclose()
            else:
                await channel.aclose()

    @property
    def _is_open_here(self) -> bool:
        """Whether channels stay open in the running loop, which is another where grpc polls another."""
        return self._loop is asyncio.get_running_loop()

    def _keep(self, channel: WorkerChannel) -> bool:
        """Let a channel stay open, unless there is one already or grpc polls another loop; return whether."""
        if channel.address in self._idle or polled_loop.enter() is not self._loop:
            return False
        self._idle[channel.address] = channel
        return True

    def _taken(self, address: str) -> WorkerChannel:
        assert self._loop is not None
        polled_loop.leave(self._loop)
        return self._idle.pop(address)


class WorkerChannel:
    """One gRPC channel to one worker, open until `aclose`.

    Attributes:
        address: the worker, `host:port`.
        is_answering: whether the last call was answered, if only with a failure: whether it is worth keeping.
    """

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None,
        metadata: tuple[tuple[str, str | bytes], ...],
        options: list[tuple[str, int | str]],
        deadline: Deadline,
    ) -> None:
        self.address = address
        self.is_answering = False
        self._credentials = credentials
        self._metadata = metadata
        self._options = options
        self._open(deadline)

    async def ask(self, method: str, request: bytes, deadline: Deadline) -> bytes:
        """Return what the worker answers to one call.

        A connection that had worked and turns out to be broken is replaced, once: it may be older than the
        worker's last restart.

        Raises:
            ProbeError: there is no answer, or a failure; `code` says what kind.
        """
        had_worked = self.is_answering
        try:
            return await self._answer(method, request, deadline)
        except ProbeError as error:
            if not (had_worked and error.code == "unreachable"):
                if error.code in HUNG_UP and await self._speaks_tls_unasked(deadline):
                    raise speaks_tls_error(self.address) from error
                raise
        await self.aclose()
        self._open(deadline)
        return await self.ask(method, request, deadline)

    async def aclose(self) -> None:
        """Close the channel."""
        channel = self._channel
        del self._channel
        await channel.close()

    def _open(self, deadline: Deadline) -> None:
        connecting = round((deadline.timeout + LINGERING) * 1e3)
        options = [*self._options, ("grpc.min_reconnect_backoff_ms", connecting)]
        self._channel = (
            grpc.aio.insecure_channel(self.address, options)
            if self._credentials is None
            else grpc.aio.secure_channel(self.address, self._credentials, options)
        )

    async def _answer(self, method: str, request: bytes, deadline: Deadline) -> bytes:
        self.is_answering = False
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
        call = ask(request, timeout=deadline.left, metadata=self._metadata)
        try:
            answer = await _result(call)
        except grpc.aio.AioRpcError as error:
            # Without its traceback, whose frames are grpc's and hold the channel.
            raise self._failure(error, method, deadline) from error.with_traceback(None)
        finally:
            # Else a cancellation's traceback keeps them, and with them the channel, until it is collected.
            del ask, call
        self.is_answering = True
        return answer

    def _failure(self, error: grpc.aio.AioRpcError, method: str, deadline: Deadline) -> ProbeError:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            connected = self._channel.get_state() is grpc.ChannelConnectivity.READY
            return deadline_passed(self.address, method, deadline.timeout, connected=connected)
        failure = failed_call(self.address, method, error.code().name, error.details() or "")
        self.is_answering = failure.code not in NO_ANSWER
        return failure

    async def _speaks_tls_unasked(self, deadline: Deadline) -> bool:
        if self._credentials is not None:
            return False
        return await speaks_tls(*split_address(self.address), min(SNIFFING, deadline.left))


async def _result(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> bytes:
    """Return the answer of a call; where that is cancelled, cancel the call and return when it has ended.

    grpc, cancelled while it is awaited, raises a CancelledError of its own that no cancel scope knows.
    """
    ended = asyncio.Event()
    call.add_done_callback(lambda _: ended.set())
    try:
        await ended.wait()
        return await call
    except asyncio.CancelledError:
        _cancel(call)
        with anyio.move_on_after(UNWINDING, shield=True):
            await ended.wait()
            with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await call
        raise
    finally:
        del call


def _cancel(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> None:
    """Cancel a call, and let grpc see its end.

    `call.cancel()` cancels the task that waits for that end as well, and grpc.aio frees the memory of a call,
    2 KB and more, only where it has waited.
    """
    cancel = getattr(call, "_cancel", None)
    if cancel is None:
        call.cancel()
    else:
        cancel("cancelled by the caller")


def _checked_metadata(metadata: Iterable[tuple[Any, Any]]) -> tuple[tuple[str, str | bytes], ...]:
    """Return the pairs; grpc, given what it does not take, would show the values in its error."""
    pairs = tuple(metadata)
    for key, value in pairs:
        if not (isinstance(key, str) and KEY.fullmatch(key)) or key.startswith("grpc-"):
            raise ConfigurationError(
                f"metadata key {key!r}: keys are of a-z, 0-9, '_', '-' and '.', and do not begin with 'grpc-'"
            )
        if key.endswith("-bin"):
            fits = isinstance(value, bytes)
        else:
            fits = isinstance(value, str) and value.isascii() and value.isprintable()
        if not fits:
            raise ConfigurationError(
                f"the value of metadata {key!r} is of printable ASCII, or bytes if the key ends in '-bin'"
            )
    return pairs
