"""The HTTP server of a fleet: a page, JSON, server-sent events, metrics and service discovery. Read-only.

Nothing is requested from targets because of a request here: each response shows the latest statuses that a
poll or watch of the fleet has found.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import ipaddress
import re
import secrets
from collections import deque
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from aioresolve._core.network import system_message
from aioresolve._core.threads import run_in_thread
from aioresolve._core.validation import suggestion
from aioresolve.errors import ConfigurationError, MissingDependencyError

from .status import Health, worst_first

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingDependencyError(
        "serving a fleet needs prometheus_client, which is not installed",
        hint="Run `pip install 'aioresolve[serve]'`.",
    ) from error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from prometheus_client.core import Metric

    from aioresolve.spec import Member

    from .status import Target, TargetStatus

MAX_STREAMS = 1000
"""The number of event streams that are open at the same time."""

WRITE_TIMEOUT = 10.0
"""Seconds that a reader of events may take for one of them before it is disconnected."""

PING_INTERVAL = 15.0
"""Seconds without an event after which a ping is sent, so that a reader notices a lost connection."""

BATCH_INTERVAL = 0.2
"""The least seconds between two events of a stream: changes in between are sent together."""

MAX_HISTORY = 200
"""The number of changes of health of a target that are kept."""

HISTORY = timedelta(hours=1)
"""How long changes of health are kept."""

SHUTDOWN_TIMEOUT = 0.5
"""Seconds that requests in progress may take after the end of the server."""

_ORIGIN = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+")


class _Change(NamedTuple):
    at: datetime
    health: Health
    reason: str


class _Entry(NamedTuple):
    """The status of one target, the version in which it changed, and the changes of its health."""

    status: TargetStatus
    version: int
    history: deque[_Change]


class StatusLog:
    """Numbers the changes of a fleet, so that a reader can get those since the last one that it has seen.

    It keeps the latest status of each target with the version in which it changed, and no events: memory does
    not grow with the number of changes or readers, and a slow reader gets the latest statuses only.

    Attributes:
        version: the number of the latest change, from 1.
    """

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._run = secrets.token_hex(4)  # versions of another run of the program mean nothing in this one
        self._targets = targets
        self._entries: dict[str, _Entry] = {}  # in the order of their versions
        self.version = 1
        self._removed_in = 1  # so that a reader without a version gets the names
        self._changed = asyncio.Event()
        self._batches: dict[int, bytes] = {}  # most readers have seen the same version
        for name, target in targets.items():
            if target.status is not None:
                self.update(name)

    def update(self, name: str) -> None:
        """Note that a target may have a new status, or was removed."""
        target, entry = self._targets.get(name), self._entries.get(name)
        status = None if target is None else target.status
        if status is None:
            self._entries.pop(name, None)
            self._removed_in = self._advance()
        elif entry is None or status.differs_from(entry.status):
            history = deque[_Change](maxlen=MAX_HISTORY) if entry is None else entry.history
            if entry is None or status.health is not entry.status.health:
                history.append(_Change(status.since, status.health, status.reason))
            self._entries.pop(name, None)  # so that it moves to the end
            self._entries[name] = _Entry(status, self._advance(), history)

    def history(self, name: str) -> list[dict[str, Any]]:
        """Return the changes of health of a target in the last hour, and the one before them."""
        changes = self._entries[name].history
        while len(changes) > 1 and changes[1].at < datetime.now(UTC) - HISTORY:
            changes.popleft()
        return [{"at": one.at.isoformat(), "health": one.health, "reason": one.reason} for one in changes]

    def parse_id(self, text: str | None) -> int:
        """Return the version of the event with this id; 0 if it is not one of this run of the server."""
        run, _, version = (text or "").partition("-")
        is_known = run == self._run and version.isascii() and version.isdigit()
        return min(int(version[:15]), self.version) if is_known else 0

    def event_since(self, version: int) -> bytes:
        """Return an event with the statuses that have changed after `version`, 0 for all of them.

        It also has the names of all targets if the reader may have one that was removed.
        """
        if version not in self._batches:
            changed = []
            for entry in reversed(self._entries.values()):
                if entry.version <= version:
                    break
                changed.append(entry.status.overview())
            content: dict[str, Any] = {"targets": changed[::-1], "total": len(self._targets)}
            if version < self._removed_in:
                content["names"] = list(self._entries)
            self._batches[version] = b"id: %s-%d\ndata: %s\n\n" % (
                self._run.encode(),
                self.version,
                msgspec.json.encode(content),
            )
        return self._batches[version]

    async def wait_for_change(self, version: int) -> None:
        """Wait until there is a version after `version`."""
        while self.version <= version:
            await self._changed.wait()

    def _advance(self) -> int:
        self.version += 1
        self._batches.clear()
        self._changed.set()
        self._changed = asyncio.Event()
        return self.version


@asynccontextmanager
async def serve(
    targets: Mapping[str, Target],
    listeners: list[Callable[[str], None]],
    host: str,
    port: int,
    *,
    allowed_hosts: Sequence[str] = (),
    peers: Sequence[str] = (),
) -> AsyncIterator[str]:
    """Serve targets inside the block, and yield the URL of the page. See `Fleet.serve` for the arguments.

    The `listeners` are called with the name of each target that has a new status, or was removed.
    """
    host = host.strip("[]")
    for peer in peers:
        if not _ORIGIN.fullmatch(peer):
            raise ConfigurationError(
                f"{peer!r} is not the URL of a server",
                argument="peers",
                hint="Pass one without a path, such as http://shard-1.example.com:8080.",
            )
    server = _Server(targets, {host, *allowed_hosts}, peers)
    runner = web.AppRunner(
        server.application(), access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_TIMEOUT
    )
    await runner.setup()
    listeners.append(server.log.update)
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on port {port} of {host}: {system_message(error)}",
                hint="Pass another port, from 1024 for other users than root, or an address of this machine,"
                " such as 127.0.0.1, 0.0.0.0 or ::1.",
            ) from error
        port = runner.addresses[0][1]
        yield f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
    finally:
        listeners.remove(server.log.update)
        server.end_streams()
        await runner.cleanup()


class _Server:
    def __init__(self, targets: Mapping[str, Target], hosts: Collection[str], peers: Sequence[str]) -> None:
        self.log = StatusLog(targets)
        self._targets = targets
        self._hosts = {host.lower().rstrip(".") for host in hosts}
        self._peers = peers
        self._streams: set[asyncio.Task[Any]] = set()
        self._page = importlib.resources.files("aioresolve.fleet").joinpath("page.html").read_text("utf-8")

    @property
    def _statuses(self) -> list[TargetStatus]:
        return [target.status for target in self._targets.values() if target.status is not None]

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._index)
        app.router.add_get("/api/targets", self._all_targets)
        app.router.add_get("/api/targets/{name:.+}", self._one_target)
        app.router.add_get("/events", self._events)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/sd", self._discovery)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        return app

    def end_streams(self) -> None:
        for stream in self._streams:
            stream.cancel()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Reject other hosts, return errors as JSON, and set the headers of all responses."""
        response: web.StreamResponse
        if not self._is_allowed(request.headers.get("Host", "")):
            hint = "use an IP address, or allow the name with --allow-host or allowed_hosts="
            response = _error(421, f"this server is not named {request.headers.get('Host', '')!r}; {hint}")
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = _error(error.status, error.reason)
                response.headers.update({"Allow": error.headers["Allow"]} if "Allow" in error.headers else {})
        if not response.prepared:  # a stream has set them already
            for name, value in self._headers(request).items():
                response.headers.setdefault(name, value)
        return response

    def _headers(self, request: web.Request) -> dict[str, str]:
        headers = {
            "Cache-Control": "no-store",
            "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        if (origin := request.headers.get("Origin")) in self._peers:
            headers |= {"Access-Control-Allow-Origin": str(origin), "Vary": "Origin"}
        return headers

    def _is_allowed(self, host: str) -> bool:
        """Whether a `Host` header names this server.

        The name of another site may resolve to this server: then its pages could read the responses. With an
        IP address, a page is of the server that has the address.
        """
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:  # brackets that are not closed
            return False
        if name == "localhost" or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    async def _index(self, request: web.Request) -> web.Response:
        nonce = secrets.token_urlsafe(16)
        sources = " ".join(["'self'", *self._peers])
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:;"
            f" connect-src {sources}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return web.Response(
            text=self._page.replace("{{nonce}}", nonce),
            content_type="text/html",
            headers={"Content-Security-Policy": policy},
        )

    async def _all_targets(self, request: web.Request) -> web.Response:
        overviews = [status.overview() for status in worst_first(self._statuses)]
        return _json({"targets": overviews, "total": len(self._targets)})

    async def _one_target(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        target = self._targets.get(name)
        if target is None:
            return _error(404, f"there is no target {name!r}; {suggestion(name, self._targets.keys())}")
        if target.status is None:
            return _error(404, f"target {name!r} has no response yet")
        return _json(target.status.as_dict() | {"history": self.log.history(name)})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if len(self._streams) >= MAX_STREAMS:
            full = _error(503, f"there are already {MAX_STREAMS:,} readers of events")
            full.headers["Retry-After"] = "60"
            return full
        response = web.StreamResponse(headers=self._headers(request))
        response.content_type = "text/event-stream"
        stream = asyncio.current_task()
        assert stream is not None
        self._streams.add(stream)
        try:
            await response.prepare(request)
            await self._send_events(response, self.log.parse_id(request.headers.get("Last-Event-ID")))
        except TimeoutError:  # the reader has stopped reading
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._streams.discard(stream)
        return response

    async def _send_events(self, response: web.StreamResponse, version: int) -> None:
        data = b"retry: 2000\n" + self.log.event_since(version)
        while True:
            version = self.log.version
            async with asyncio.timeout(WRITE_TIMEOUT):
                await response.write(data)
            await asyncio.sleep(BATCH_INTERVAL)
            try:
                async with asyncio.timeout(PING_INTERVAL):
                    await self.log.wait_for_change(version)
            except TimeoutError:
                data = b"event: ping\ndata: {}\n\n"
            else:
                data = self.log.event_since(version)

    async def _metrics(self, request: web.Request) -> web.Response:
        # A registry of each response: two fleets, and the program's own metrics, do not collide.
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Metrics(self._targets.values(), datetime.now(UTC)))
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        # It takes tens of milliseconds for a thousand targets.
        text = await run_in_thread("metrics of a fleet", encode, registry)
        return web.Response(body=text, headers={"Content-Type": content_type})

    async def _discovery(self, request: web.Request) -> web.Response:
        """Return the members in the format of https://prometheus.io/docs/prometheus/latest/http_sd/."""
        return _json(
            [
                {"targets": [member.endpoint.address], "labels": _labels(status, member)}
                for status in self._statuses
                if status.state is not None
                for member in status.state.members
            ]
        )

    async def _healthz(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        found, total = len(self._statuses), len(self._targets)
        return _json({"responses": found, "targets": total}, status=200 if found >= total else 503)


def _labels(status: TargetStatus, member: Member) -> dict[str, str]:
    endpoint = member.endpoint
    labels = {
        "target": status.name,
        "health": str(status.health),
        "job": member.job,
        "task": str(member.task_index),
        "name": endpoint.name,
        "namespace": endpoint.namespace,
        "node": endpoint.node,
        "ready": None if endpoint.ready is None else str(endpoint.ready).lower(),
    }
    return {f"__meta_aioresolve_{name}": value for name, value in labels.items() if value is not None}


def _json(content: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return _json({"error": message}, status=status)


class _Metrics(Collector):
    """The metrics of targets, named by https://prometheus.io/docs/practices/naming/."""

    def __init__(self, targets: Iterable[Target], now: datetime) -> None:
        # A copy, which is read in another thread.
        self._targets = [
            (each.name, each.status, each.num_requests, dict(each.num_errors)) for each in targets
        ]
        self._now = now

    def collect(self) -> Iterable[Metric]:
        number = GaugeMetricFamily("aioresolve_targets", "Targets of the fleet.")
        number.add_metric([], len(self._targets))
        health = _gauge("health", "Whether the target has this health.", "health")
        members = _gauge("members", "Members of the cluster.", "job")
        missing = _gauge("missing_members", "Expected members that are missing or not ready.")
        age = _gauge("age_seconds", "Time since the members were last known to be current.")
        latency = _gauge("latency_seconds", "Duration of the latest request.")
        requests = CounterMetricFamily(
            "aioresolve_target_requests", "Requests; a watch is one.", labels=["target"]
        )
        errors = CounterMetricFamily(
            "aioresolve_target_errors", "Failures, by the class of the error.", labels=["target", "error"]
        )
        for name, status, num_requests, num_errors in self._targets:
            requests.add_metric([name], num_requests)
            for kind, count in num_errors.items():
                errors.add_metric([name, kind], count)
            if status is None:
                continue
            for one in Health:
                health.add_metric([name, str(one)], one is status.health)
            for job, count in status.tasks_by_job.items():
                members.add_metric([name, job], count)
            missing.add_metric([name], max(0, status.num_wanted - status.num_found))
            if (seconds := status.age(self._now)) is not None:
                age.add_metric([name], seconds)
            if status.latency is not None:
                latency.add_metric([name], status.latency)
        return number, health, members, missing, age, latency, requests, errors


def _gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"aioresolve_target_{name}", documentation, labels=["target", *labels])
