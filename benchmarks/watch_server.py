"""Runs the API server of `watch.py`, in a separate process.

It uses TLS and requires a bearer token, or plain HTTP, over which clients send no token. It sends prepared
bytes, into which only address and version are inserted, so that the figures show the cost of the client. It
supports the requests for the pods of one selector: a list, a list in pages, and a watch from a version or
from the existing pods. A watch that cannot keep up still gets every change, later.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import resource
import secrets
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.child_process import running, serve_requests
from benchmarks.server import CONDITIONS_SIZE, with_own_times
from benchmarks.watch_changes import address_of, first_address, pod_changed, pod_name

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Sequence

    from aiohttp import web

    from benchmarks.child_process import Child

__all__ = ["NAMESPACE", "SELECTOR", "allow_many_sockets", "running_watch_server"]

NAMESPACE = "training"
SELECTOR = "app=trainer"
PATHS = (f"/api/v1/namespaces/{NAMESPACE}/pods", "/api/v1/pods")

POD_SIZE = 8192
"""Bytes of the JSON of a pod, typical of a training pod with a dozen variables and managedFields."""

FIRST_VERSION = 1_000_000
"""The resourceVersion before the first change; each change has the next one."""

BATCH = 64
"""How many pods are sent at a time when a watch begins."""

PIECE = 64 << 10
"""How many bytes of a list are sent at a time."""

BOOKMARKS = 60.0
"""Seconds between two bookmarks of a watch, as on a real API server."""

ADDRESS, VERSION = b"@address@", b"@version@"


@contextmanager
def running_watch_server(pods: int, scheme: str, kubeconfig: Path) -> Iterator[Child]:
    """Run a server with `pods` pods inside the block, and write a kubeconfig for it.

    The request `wait` waits until the given number of `watches` is connected. The request `change` changes
    pods at a `rate` per second for some `seconds`, and returns the time of each change on the monotonic
    clock.
    """
    with running("benchmarks.watch_server", str(pods), scheme, str(kubeconfig)) as server:
        server.request("wait", watches=0)
        yield server


def allow_many_sockets() -> None:
    """Raise the limit of open files of this process to the maximum."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class PreparedPods:
    """The bytes of pods and of their changes.

    Attributes:
        changes: the number of changes that were made.
    """

    def __init__(self, count: int) -> None:
        self.changes = 0
        self._templates = [_template(number) for number in range(count)]
        version = str(FIRST_VERSION)
        self._now = [
            _fill(template, first_address(number), version) for number, template in enumerate(self._templates)
        ]

    @property
    def version(self) -> int:
        """The current resourceVersion."""
        return FIRST_VERSION + self.changes

    def snapshot(self) -> list[bytes]:
        """Return the current JSON of every pod."""
        return self._now.copy()

    def make_change(self) -> None:
        """Assign the next address to the next pod."""
        pod, self._now[pod] = self._after(self.changes)
        self.changes += 1

    def event(self, change: int) -> bytes:
        """Return the watch event of a change."""
        return added_or_modified("MODIFIED", self._after(change)[1])

    def bookmark(self, changes: int, *, ends_initial_events: bool = False) -> bytes:
        """Return the bookmark for a watch to which `changes` changes were sent."""
        annotations = b',"annotations":{"k8s.io/initial-events-end":"true"}' if ends_initial_events else b""
        return (
            b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"%d"%b},'
            b'"spec":{"containers":null},"status":{}}}\n' % (FIRST_VERSION + changes, annotations)
        )

    def _after(self, change: int) -> tuple[int, bytes]:
        """Return the number of the changed pod, and its new JSON."""
        pod = pod_changed(change, len(self._templates))
        return pod, _fill(self._templates[pod], address_of(change), str(FIRST_VERSION + change + 1))


def added_or_modified(type_: str, pod: bytes) -> bytes:
    """Return an event as a line of JSON, in which a pod has its kind, as it does not in a list."""
    return b'{"type":"%b","object":{"kind":"Pod","apiVersion":"v1",%b}\n' % (type_.encode(), pod[1:])


def _template(number: int) -> list[bytes]:
    """Return the JSON of a pod, split at its addresses and version, with placeholders in between."""
    from aioresolve.testing import pod

    key, _, value = SELECTOR.partition("=")
    made = pod(
        pod_name(number),
        NAMESPACE,
        labels={key: value},
        index=number,
        ip=ADDRESS.decode(),
        host_ip=f"192.168.{number >> 8}.{number & 255}",
        node=f"gke-training-pool-3f9c2a71-{number:04x}",
        created="2026-11-20T00:00:00Z",
        size=POD_SIZE - CONDITIONS_SIZE,
    )
    made = with_own_times(made, random.Random(number))
    del made["kind"], made["apiVersion"]
    made["metadata"] |= {"uid": f"3f9c2a71-0000-4000-8000-{number:012x}", "resourceVersion": VERSION.decode()}
    cut = json.dumps(made, separators=(",", ":")).encode()
    pieces = [cut]
    for mark in (ADDRESS, VERSION):
        pieces = [part for piece in pieces for part in _cut_at(mark, piece)]
    return pieces


def _cut_at(mark: bytes, piece: bytes) -> list[bytes]:
    first, *others = piece.split(mark)
    return [first, *(part for other in others for part in (mark, other))]


def _fill(template: Sequence[bytes], address: str, version: str) -> bytes:
    values = {ADDRESS: address.encode(), VERSION: version.encode()}
    return b"".join([values.get(piece, piece) for piece in template])


class WatchServer:
    """Responds to the requests of clients, and makes changes on request of the benchmark."""

    def __init__(self, pods: int, token: str | None) -> None:
        self._pods = PreparedPods(pods)
        self._authorization = token and f"Bearer {token}"
        self._watches = 0
        self._changed = asyncio.Event()
        self._lists: dict[str, list[bytes]] = {}  # version to a list whose pages were not all requested yet

    async def wait(self, watches: int) -> int:
        """Return when `watches` watches are connected."""
        while self._watches != watches:
            await self._changed.wait()
        return watches

    async def change(self, rate: float, seconds: float) -> list[float]:
        """Make changes; return the time of each.

        Each change is made at a random moment of its own interval of 1/rate seconds, to avoid
        synchronization.
        """
        chance, began = random.Random(self._pods.changes), time.monotonic()
        made = []
        for number in range(round(rate * seconds)):
            due = began + (number + chance.random()) / rate
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
            self._pods.make_change()
            made.append(time.monotonic())
            self._notify()
        return made

    async def pods(self, request: web.Request) -> web.StreamResponse:
        """Respond to a GET of the pods."""
        from aiohttp import web

        if self._authorization and request.headers.get("Authorization") != self._authorization:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 401}
            return web.json_response(status, status=401)
        if request.query.get("labelSelector") != SELECTOR:
            raise web.HTTPBadRequest(text=f"this server supports only the selector {SELECTOR!r}")
        if "watch" in request.query:
            return await self._watch(request)
        return await _respond(request, self._list(request))

    def _list(self, request: web.Request) -> bytes:
        """Return a list, or one page; all pages of a list are from the same snapshot."""
        version, _, skipped = request.query.get("continue", "").partition(":")
        begin = int(skipped or 0)
        if version:
            pods = self._lists[version]
        else:
            version, pods = str(self._pods.version), self._pods.snapshot()
        end = begin + int(request.query.get("limit") or len(pods))
        metadata = {"resourceVersion": version}
        if end < len(pods):
            self._lists[version] = pods
            metadata["continue"] = f"{version}:{end}"
        else:
            self._lists.pop(version, None)
        head = b'{"kind":"PodList","apiVersion":"v1","metadata":%b,"items":[' % json.dumps(metadata).encode()
        return head + b",".join(pods[begin:end]) + b"]}"

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        """Send the pods if no version is requested, every change after that, and bookmarks if requested."""
        from aiohttp import web

        begins_with_pods = request.query.get("sendInitialEvents") == "true"
        sent = int(request.query.get("resourceVersion") or self._pods.version) - FIRST_VERSION
        pods = self._pods.snapshot() if begins_with_pods else []
        wants_bookmarks = request.query.get("allowWatchBookmarks") in ("true", "True", "1")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self._watches += 1
        self._notify()
        try:
            # At a random moment, so that watches that started together do not get their bookmarks together.
            bookmark_at = time.monotonic() + random.uniform(0, BOOKMARKS)
            for start in range(0, len(pods), BATCH):
                events = [added_or_modified("ADDED", pod) for pod in pods[start : start + BATCH]]
                await response.write(b"".join(events))
            if begins_with_pods:
                pods.clear()
                await response.write(self._pods.bookmark(sent, ends_initial_events=True))
            while True:
                while sent < self._pods.changes:
                    await response.write(self._pods.event(sent))
                    sent += 1
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(bookmark_at):
                        await self._changed.wait()
                if time.monotonic() >= bookmark_at:
                    bookmark_at += BOOKMARKS
                    if wants_bookmarks:
                        await response.write(self._pods.bookmark(sent))
        finally:
            self._watches -= 1
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def _respond(request: web.Request, body: bytes) -> web.StreamResponse:
    """Send a body in pieces: asyncio takes long to encrypt a hundred megabytes at once."""
    from aiohttp import web

    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    with memoryview(body) as view:
        for start in range(0, len(body), PIECE):
            await response.write(bytes(view[start : start + PIECE]))
    return response


async def serve(pods: int, scheme: str, kubeconfig: Path) -> None:
    """Serve until stdin is closed."""
    import yaml
    from aiohttp import web

    from aioresolve.testing.lifecycle import CertificateAuthority

    authority = CertificateAuthority() if scheme == "https" else None
    token = secrets.token_urlsafe(32)
    server = WatchServer(pods, token if authority else None)
    application = web.Application()
    for path in PATHS:
        application.router.add_get(path, server.pods)
    # Closed watches have to be noticed immediately, or they would still be counted.
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None)
    await runner.setup()
    context: ssl.SSLContext | None = authority.server_context() if authority else None
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context, backlog=1024).start()
    address = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
    written = yaml.safe_dump(kubeconfig_of(address, token, authority.pem if authority else None))
    await asyncio.to_thread(kubeconfig.write_text, written)
    gc.freeze()  # or the garbage collector traverses all pods during measurements
    await serve_requests({"wait": server.wait, "change": server.change})


def kubeconfig_of(server: str, token: str, authority: str | None) -> dict[str, Any]:
    """Return a kubeconfig for the server; `authority` (PEM) signed its certificate."""
    import base64

    trust = {"certificate-authority-data": base64.b64encode(authority.encode()).decode()} if authority else {}
    context = {"cluster": "benchmark", "user": "benchmark", "namespace": NAMESPACE}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "benchmark",
        "clusters": [{"name": "benchmark", "cluster": {"server": server, **trust}}],
        "users": [{"name": "benchmark", "user": {"token": token}}],
        "contexts": [{"name": "benchmark", "context": context}],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pods", type=int)
    parser.add_argument("scheme", choices=["https", "http"])
    parser.add_argument("kubeconfig", type=Path)
    options = parser.parse_args(arguments)
    allow_many_sockets()
    asyncio.run(serve(options.pods, options.scheme, options.kubeconfig))


if __name__ == "__main__":
    main()
