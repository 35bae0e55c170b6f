"""`Fleet.serve`: what the server of a fleet says, and to whom."""

import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import pytest

from aioresolve.errors import ConfigurationError, ConnectionFailedError, MissingDependencyError
from aioresolve.fleet import Fleet, server
from aioresolve.spec import ClusterState, Endpoint, Missing, Observation

from .fleets import Scripted, Source, respond_with, until

STATE = ClusterState.of(
    {"worker": [Endpoint("10.0.0.1:1", name="train-0", namespace="ml", node="a", ready=True)]}
)
PENDING = Observation(STATE, (Missing("worker", "ml/train-1", "Pending <b>"),))
FAILED = ConnectionFailedError("nothing listens")


class Events:
    """The events that a client receives."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.id = ""

    async def next(self) -> Any:
        """Return the content of the next event, without pings."""
        kind = ""
        with anyio.fail_after(30):
            while line := (await self._response.content.readline()).decode():
                name, _, value = line.rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "id":
                    self.id = value
                elif name == "data" and kind != "ping":
                    return json.loads(value)
                elif not name:
                    kind = ""
        raise EOFError


class Client:
    """A fleet that is served, its sources, and a client of it."""

    def __init__(
        self, url: str, fleet: Fleet, sources: dict[str, Source], http: aiohttp.ClientSession
    ) -> None:
        self.url, self.fleet, self.sources, self.http = url, fleet, sources, http

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path, headers=headers) as response:
            return response.status, await response.json()

    @asynccontextmanager
    async def events(self, last: str = "") -> AsyncIterator[Events]:
        async with self.http.get(self.url + "events", headers={"Last-Event-ID": last}) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            yield Events(response)

    async def show(self, name: str, *found: Observation | Exception) -> None:
        """Let the source of a target report something, and wait until the fleet has seen it."""
        before = self.fleet.readings.get(name)
        self.sources[name].emit(*found)
        await until(lambda: self.fleet.readings.get(name) is not before)


@asynccontextmanager
async def served(*names: str, **options: Any) -> AsyncIterator[Client]:
    """Watch and serve a fleet of sources, which have not reported anything yet."""
    sources = {name: Source() for name in names}
    fleet = Fleet(sources)

    async def watch() -> None:
        async for _ in fleet.watch(interval=0.01):
            pass

    async with (
        fleet.serve(**options) as url,
        aiohttp.ClientSession() as http,
        anyio.create_task_group() as group,
    ):
        group.start_soon(watch)
        yield Client(url, fleet, sources, http)
        group.cancel_scope.cancel()


async def test_targets_as_json() -> None:
    async with served("a", "b/ü") as client:
        assert await client.get("api/targets/a") == (404, {"error": "target 'a' has no response yet"})
        await client.show("a", Observation(STATE))
        assert await client.get("readyz") == (503, {"responses": 1, "targets": 2})
        await client.show("b/ü", PENDING)
        assert await client.get("readyz") == (200, {"responses": 2, "targets": 2})
        assert await client.get("healthz") == (200, {"status": "ok"})
        _, content = await client.get("api/targets")
        assert [(each["name"], each["health"]) for each in content["targets"]] == [
            ("b/ü", "degraded"),
            ("a", "ready"),
        ]
        status, found = await client.get("api/targets/b%2F%C3%BC")
        assert status == 200
        assert found["jobs"]["worker"][0]["address"] == "10.0.0.1:1"
        assert found["absent"] == [{"job": "worker", "name": "ml/train-1", "reason": "Pending <b>"}]
        assert found["reason"] == "ml/train-1: Pending <b>"
        [change] = found["history"]
        assert (change["health"], change["reason"]) == ("degraded", found["reason"])
        assert found["since"] == change["at"].replace("+00:00", "Z")


async def test_changes_of_health_are_kept_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served("a") as client:
        other = Observation(STATE, (Missing("worker", "ml/train-2", "Pending"),))
        for found in (Observation(STATE), PENDING, other, FAILED):
            await client.show("a", found)
        await until(lambda: client.fleet.readings["a"].health == "stale")
        _, content = await client.get("api/targets/a")
        assert [each["health"] for each in content["history"]] == ["ready", "degraded", "stale"]
        assert content["error"]["type"] == "ConnectionFailedError"
        monkeypatch.setattr(server, "HISTORY", timedelta(0))
        assert len((await client.get("api/targets/a"))[1]["history"]) == 1


async def test_events_are_changes_and_resume_where_a_reader_stopped() -> None:
    async with served("a", "b") as client:
        await client.show("a", Observation(STATE))
        async with client.events() as events:
            first = await events.next()
            assert (first["names"], first["total"], len(first["targets"])) == (["a"], 2, 1)
            await client.show("b", PENDING)
            second = await events.next()
            assert [(each["name"], each["health"]) for each in second["targets"]] == [("b", "degraded")]
            assert "names" not in second
        await client.show("a", PENDING)
        for unknown in ("other-3", "3", f"{events.id}x"):
            async with client.events(unknown) as restarted:
                event = await restarted.next()
            assert event["names"] == [each["name"] for each in event["targets"]] == ["b", "a"]
        async with client.events(events.id) as resumed:
            assert [each["name"] for each in (await resumed.next())["targets"]] == ["a"]
            client.fleet.remove("b")
            removed = await resumed.next()
            assert (removed["names"], removed["total"], removed["targets"]) == (["a"], 1, [])


async def test_unchanged_statuses_are_no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PING_INTERVAL", 0.01)
    async with served("a") as client:
        await client.show("a", Observation(STATE))
        async with client.events() as events:
            await events.next()
            await client.show("a", Observation(STATE))
            await client.show("a", PENDING)
            assert [each["health"] for each in (await events.next())["targets"]] == ["degraded"]


async def test_reader_that_stops_reading_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "WRITE_TIMEOUT", 0.05)
    monkeypatch.setattr(server, "BATCH_INTERVAL", 0.0)
    monkeypatch.setattr(server, "MAX_STREAMS", 1)
    async with served(*(f"t{number}" for number in range(50))) as client:
        port = int(client.url.rpartition(":")[2][:-1])

        async def is_full() -> bool:
            async with client.http.get(client.url + "events") as response:
                return response.status == 503 and response.headers["Retry-After"] == "60"

        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            stuck.connect(("127.0.0.1", port))
            stuck.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not await is_full():  # noqa: ASYNC110 - the server has no event for it
                await anyio.sleep(0.01)
            for number in range(3):
                missing = Missing("worker", f"train-{number}", "Pending" * 20_000)
                for source in client.sources.values():
                    source.emit(Observation(STATE, (missing,)))
                await anyio.sleep(0.02)
            while await is_full():  # noqa: ASYNC110
                await anyio.sleep(0.01)
            stuck.settimeout(5.0)
            last = b""
            with suppress(ConnectionResetError):
                while received := await anyio.to_thread.run_sync(stuck.recv, 65536):
                    last = received
            assert not last.endswith(b"0\r\n\r\n")  # which would be the end of a response
    assert "Error handling request" not in caplog.text


async def test_streams_end_with_the_server() -> None:
    async with served("a") as client:
        http = aiohttp.ClientSession()
        response = await http.get(client.url + "events")
        await Events(response).next()
        started = anyio.current_time()
    assert anyio.current_time() - started < 1.0
    with pytest.raises((EOFError, aiohttp.ClientError)):
        await Events(response).next()
    response.close()
    await http.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:80", 200),
        ("[::1]:80", 200),
        ("Fleet.example.com.", 200),
        ("fleet.example.com:8080", 200),
        ("example.com", 421),
        ("127.0.0.1.example.com", 421),
        ("", 421),
        ("[", 421),
    ],
)
async def test_requests_for_other_hosts_are_rejected(host: str, status: int) -> None:
    async with served("a", allowed_hosts=["fleet.example.com"]) as client:
        found, content = await client.get("healthz", Host=host)
        assert found == status
        assert status == 200 or f"not named {host!r}" in content["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "api/targets/trainer", 404, "there is no target 'trainer'; did you mean 'trainers'?"),
        ("GET", "api", 404, "Not Found"),
        ("GET", "../etc/passwd", 404, "Not Found"),
        ("POST", "api/targets", 405, "Method Not Allowed"),
        ("DELETE", "api/targets/trainers", 405, "Method Not Allowed"),
    ],
)
async def test_errors_are_json(method: str, path: str, status: int, message: str) -> None:
    async with served("trainers") as client, client.http.request(method, client.url + path) as response:
        assert (response.status, await response.json()) == (status, {"error": message})
        assert ("GET" in response.headers.get("Allow", "")) is (status == 405)


async def test_page_has_a_policy_that_permits_only_its_own_script() -> None:
    async with served("a", peers=["http://shard-1:8080"]) as client:
        nonces = set()
        for _ in range(2):
            async with client.http.get(client.url) as response:
                policy, text = response.headers["Content-Security-Policy"], await response.text()
            nonce = policy.partition("script-src 'nonce-")[2].partition("'")[0]
            assert "connect-src 'self' http://shard-1:8080;" in policy
            assert "unsafe" not in policy
            assert text.count("<script") == text.count(f'<script nonce="{nonce}"') == 1
            assert text.count("<style") == text.count(f'<style nonce="{nonce}"') == 1
            nonces.add(nonce)
        assert len(nonces) == 2
        for origin, allowed in (("http://shard-1:8080", "http://shard-1:8080"), ("http://evil:8080", None)):
            async with client.http.get(client.url + "api/targets", headers={"Origin": origin}) as response:
                headers = response.headers
                assert headers.get("Access-Control-Allow-Origin") == allowed
                assert headers.get("Vary") == (allowed and "Origin")
                assert headers["X-Content-Type-Options"] == "nosniff"
                assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
                assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"


async def test_metrics_of_two_fleets_do_not_collide() -> None:
    async with served("late", "a") as one, served('b"', "a") as two:
        await one.show("a", Observation(STATE))
        await one.show("a", FAILED)
        await until(lambda: one.sources["a"].num_started == 2)
        await two.show("a", PENDING)
        for observation in (PENDING, Observation(STATE)):
            await one.show("late", observation.stale(FAILED, datetime.now(UTC)))
        texts = []
        for client in (one, two):
            async with client.http.get(client.url + "metrics") as response:
                assert response.headers["Content-Type"].startswith("text/plain")
                texts.append((await response.text()).splitlines())
    assert "aioresolve_targets 2.0" in texts[0]
    assert 'aioresolve_target_health{health="stale",target="a"} 1.0' in texts[0]
    assert 'aioresolve_target_health{health="ready",target="a"} 0.0' in texts[0]
    for name in ("a", "late"):  # although two observations of `late` have the error
        counter = f'aioresolve_target_errors_total{{error="ConnectionFailedError",target="{name}"}} 1.0'
        assert counter in texts[0]
    assert 'aioresolve_target_missing_members{target="a"} 0.0' in texts[0]
    assert 'aioresolve_target_requests_total{target="a"} 2.0' in texts[0]
    assert 'aioresolve_target_requests_total{target="late"} 1.0' in texts[0]
    assert 'aioresolve_target_health{health="degraded",target="a"} 1.0' in texts[1]
    assert 'aioresolve_target_members{job="worker",target="a"} 1.0' in texts[1]
    assert 'aioresolve_target_missing_members{target="a"} 1.0' in texts[1]
    assert 'aioresolve_target_age_seconds{target="a"} 0.0' in texts[1]
    assert 'aioresolve_target_requests_total{target="b\\""} 1.0' in texts[1]
    assert any(line.startswith('aioresolve_target_latency_seconds{target="a"} 0.0') for line in texts[1])


async def test_requests_before_the_server_started_are_shown_and_counted() -> None:
    fleet = Fleet({"a": Scripted(respond_with(3))}, expected={"a": 2})
    await fleet.resolve()
    async with fleet.serve() as url, aiohttp.ClientSession() as http:
        async with http.get(url + "api/targets/a") as response:
            assert [each["health"] for each in (await response.json())["history"]] == ["degraded"]
        async with http.get(url + "metrics") as response:
            text = await response.text()
    assert 'aioresolve_target_requests_total{target="a"} 1.0' in text
    assert 'aioresolve_target_missing_members{target="a"} 0.0' in text


async def test_members_are_discovered_by_prometheus() -> None:
    async with served("a", "b") as client:
        await client.show("a", PENDING)
        assert await client.get("sd") == (
            200,
            [
                {
                    "targets": ["10.0.0.1:1"],
                    "labels": {
                        "__meta_aioresolve_target": "a",
                        "__meta_aioresolve_health": "degraded",
                        "__meta_aioresolve_job": "worker",
                        "__meta_aioresolve_task": "0",
                        "__meta_aioresolve_name": "train-0",
                        "__meta_aioresolve_namespace": "ml",
                        "__meta_aioresolve_node": "a",
                        "__meta_aioresolve_ready": "true",
                    },
                }
            ],
        )


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "aioresolve.fleet.server")
    with pytest.raises(MissingDependencyError, match=r"prometheus_client.*pip install 'aioresolve\[serve\]'"):
        Fleet().serve()


class TestListening:
    async def test_port_in_use_and_address_of_another_machine(self) -> None:
        async with served("a") as client:
            used = int(client.url.rpartition(":")[2][:-1])
            for host, port, reason in (
                ("127.0.0.1", used, "Address already in use"),
                ("192.0.2.1", 8080, "Cannot assign requested address"),
            ):
                with pytest.raises(ConfigurationError, match=f"listen on port {port} of {host}: {reason}"):
                    async with Fleet().serve(host, port):
                        pass

    async def test_ipv6_address(self) -> None:
        async with Fleet().serve("::1") as url, aiohttp.ClientSession() as http:
            assert url.startswith("http://[::1]:")
            async with http.get(url + "healthz") as response:
                assert response.status == 200

    @pytest.mark.parametrize("peer", ["shard-1:8080", "http://shard-1/page", "http://a; script-src *"])
    async def test_peer_that_is_no_server(self, peer: str) -> None:
        with pytest.raises(ConfigurationError, match=r"`peers=`: .* is not the URL of a server"):
            async with Fleet().serve(peers=[peer]):
                pass
