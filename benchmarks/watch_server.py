"""The API server that `watch.py` watches, in a process of its own.

It speaks TLS and wants a bearer token, or plain HTTP, over which clients send none. All that it sends is
prepared: of each pod the bytes of its JSON, into which address and version are put, so that what is measured
is the client. It knows one question, the pods of one selector, listed at once or in pages, or watched from
a version on. A watch that cannot keep up is sent every change all the same, later.
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

from benchmarks.watch_changes import address_of, first_address, pod_changed, pod_name
from benchmarks.watch_dialogue import answer_questions, running

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Sequence

    from aiohttp import web

    from benchmarks.watch_dialogue import Child

__all__ = ["NAMESPACE", "SELECTOR", "allow_many_sockets", "running_watch_server"]

NAMESPACE = "training"
SELECTOR = "app=trainer"
PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"

POD_SIZE = 8192
"""Bytes of a pod's JSON: what a training pod with a dozen variables and its managedFields comes to."""

FIRST_VERSION = 1_000_000
"""The resourceVersion before the first change; each change has the next one."""

BOOKMARKS = 60.0
"""Seconds between two bookmarks of one watch, as of a real API server."""

ADDRESS, VERSION = b"@address@", b"@version@"


@contextmanager
def running_watch_server(pods: int, scheme: str, kubeconfig: Path) -> Iterator[Child]:
    """Run a server of so many pods inside the block, and write a kubeconfig for it.

    It can be asked to `wait` until so many `watches` are connected, and to `change` pods at a `rate` a second
    for so many `seconds`; that returns when each change was made, in seconds of the system's monotonic clock.
    """
    with running("benchmarks.watch_server", str(pods), scheme, str(kubeconfig)) as server:
        server.asked("wait", watches=0)
        yield server


def allow_many_sockets() -> None:
    """Let this process open as many sockets as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class PreparedPods:
    """The bytes of pods, and of the changes that were made to them.

    Attributes:
        changes: how many were made.
    """

    def __init__(self, count: int) -> None:
        self.changes = 0
        self._templates = [_template(number) for number in range(count)]
        version = str(FIRST_VERSION)
        self._now = [
            _filled(template, first_address(number), version)
            for number, template in enumerate(self._templates)
        ]

    @property
    def version(self) -> int:
        """The resourceVersion of what is there now."""
        return FIRST_VERSION + self.changes

    def snapshot(self) -> list[bytes]:
        """Return every pod's JSON as it is now."""
        return self._now.copy()

    def make_change(self) -> None:
        """Give the next pod the next address."""
        pod, self._now[pod] = self._after(self.changes)
        self.changes += 1

    def event(self, change: int) -> bytes:
        """Return the line that tells a watch of a change."""
        return b'{"type":"MODIFIED","object":%b}\n' % self._after(change)[1]

    def bookmark(self, changes: int) -> bytes:
        """Return the line that tells a watch that has been told so many changes their version."""
        return (
            b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"%d"},'
            b'"spec":{"containers":null},"status":{}}}\n' % (FIRST_VERSION + changes)
        )

    def _after(self, change: int) -> tuple[int, bytes]:
        """Return the number of the pod that was changed, and its JSON from then on."""
        pod = pod_changed(change, len(self._templates))
        return pod, _filled(self._templates[pod], address_of(change), str(FIRST_VERSION + change + 1))


def _template(number: int) -> list[bytes]:
    """Return a pod's JSON, cut at its addresses and its version, with these marks in between."""
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
        size=POD_SIZE,
    )
    made["metadata"] |= {"uid": f"3f9c2a71-0000-4000-8000-{number:012x}", "resourceVersion": VERSION.decode()}
    cut = json.dumps(made, separators=(",", ":")).encode()
    pieces = [cut]
    for mark in (ADDRESS, VERSION):
        pieces = [part for piece in pieces for part in _cut_at(mark, piece)]
    return pieces


def _cut_at(mark: bytes, piece: bytes) -> list[bytes]:
    first, *others = piece.split(mark)
    return [first, *(part for other in others for part in (mark, other))]


def _filled(template: Sequence[bytes], address: str, version: str) -> bytes:
    values = {ADDRESS: address.encode(), VERSION: version.encode()}
    return b"".join([values.get(piece, piece) for piece in template])


class WatchServer:
    """What answers the requests, and makes the changes when it is told to."""

    def __init__(self, pods: int, token: str | None) -> None:
        self._pods = PreparedPods(pods)
        self._authorization = token and f"Bearer {token}"
        self._watches = 0
        self._stirred = asyncio.Event()
        self._lists: dict[str, list[bytes]] = {}  # of which pages are still to be fetched, by version

    async def wait(self, watches: int) -> int:
        """Return once so many watches are connected."""
        while self._watches != watches:
            await self._stirred.wait()
        return watches

    async def change(self, rate: float, seconds: float) -> list[float]:
        """Make changes; return when each was made.

        They come at the rate without being in step with anything: each somewhere in its own 1/rate seconds.
        """
        chance, began = random.Random(self._pods.changes), time.monotonic()
        made = []
        for number in range(round(rate * seconds)):
            due = began + (number + chance.random()) / rate
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
            self._pods.make_change()
            made.append(time.monotonic())
            self._stir()
        return made

    async def pods(self, request: web.Request) -> web.StreamResponse:
        """Answer a GET of the pods."""
        from aiohttp import web

        if self._authorization and request.headers.get("Authorization") != self._authorization:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 401}
            return web.json_response(status, status=401)
        if request.query.get("labelSelector") != SELECTOR:
            raise web.HTTPBadRequest(text=f"this server knows the selector {SELECTOR!r} alone")
        if "watch" in request.query:
            return await self._watch(request)
        return web.Response(body=self._list(request), content_type="application/json")

    def _list(self, request: web.Request) -> bytes:
        """Return a list, or a page of one: all pages of a list show the same moment."""
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
        """Send every change after the version that was named, and bookmarks if they are wanted."""
        from aiohttp import web

        told = int(request.query["resourceVersion"]) - FIRST_VERSION
        wants_bookmarks = request.query.get("allowWatchBookmarks") in ("true", "True", "1")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self._watches += 1
        self._stir()
        try:
            # Somewhere in the first period: watches that began together are not told together.
            bookmark_at = time.monotonic() + random.uniform(0, BOOKMARKS)
            while True:
                while told < self._pods.changes:
                    await response.write(self._pods.event(told))
                    told += 1
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(bookmark_at):
                        await self._stirred.wait()
                if time.monotonic() >= bookmark_at:
                    bookmark_at += BOOKMARKS
                    if wants_bookmarks:
                        await response.write(self._pods.bookmark(told))
        finally:
            self._watches -= 1
            self._stir()

    def _stir(self) -> None:
        stirred, self._stirred = self._stirred, asyncio.Event()
        stirred.set()


async def serve(pods: int, scheme: str, kubeconfig: Path) -> None:
    """Serve until stdin is closed."""
    import yaml
    from aiohttp import web

    from aioresolve.testing.certificates import CertificateAuthority

    authority = CertificateAuthority() if scheme == "https" else None
    token = secrets.token_urlsafe(32)
    server = WatchServer(pods, token if authority else None)
    application = web.Application()
    application.router.add_get(PATH, server.pods)
    # A watch that was left has to be noticed at once, or it would still be counted.
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None)
    await runner.setup()
    context: ssl.SSLContext | None = authority.server_context() if authority else None
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context, backlog=1024).start()
    address = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
    written = yaml.safe_dump(kubeconfig_of(address, token, authority.pem if authority else None))
    await asyncio.to_thread(kubeconfig.write_text, written)
    gc.freeze()  # or the collector walks through every pod, now and then, while a client is measured
    await answer_questions({"wait": server.wait, "change": server.change})


def kubeconfig_of(server: str, token: str, authority: str | None) -> dict[str, Any]:
    """Return a kubeconfig for the server, whose certificate is trusted by `authority` (PEM)."""
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
