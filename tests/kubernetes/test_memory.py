"""Memory is bounded, no matter how many pods there are or a server claims to have."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aioresolve.testing import pod
from aioresolve.testing.certificates import CertificateAuthority

from .loopback import TRAIN
from .peers import peer, read_head
from .samples import COLUMNS, table

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux' /proc")

PODS = 10_000
POD = json.dumps(
    pod("train-%05d", "ml", labels=TRAIN, ip="10.0.0.7", size=8192), separators=(",", ":")
).encode()
assert 8_000 < len(POD) < 8_400


def rows(request: bytes) -> Iterator[bytes]:
    """Yield the response of a server that has many pods, as rows."""
    if b"as=Table" not in request:  # for the pods that are not running
        yield b'{"kind":"PodList","metadata":{"resourceVersion":"8470"},"items":[]}'
        return
    cells = [["x", "1/1", "Running", "0", "5d", "10.0.0.7", "node-a", "<none>", "<none>"]] * PODS
    yield table([[f"train-{number:05}", *row[1:]] for number, row in enumerate(cells)], COLUMNS)


def pages(request: bytes) -> Iterator[bytes]:
    """Yield one page of a server that has many pods."""
    start = int(found[1]) if (found := re.search(rb"continue=(\d+)", request)) else 0
    limit = int(found[1]) if (found := re.search(rb"limit=(\d+)", request)) else 0
    end = min(start + limit, PODS)
    token = "" if end == PODS else str(end)
    metadata = json.dumps({"resourceVersion": "7", "continue": token})
    yield f'{{"kind":"PodList","metadata":{metadata},"items":['.encode()
    for number in range(start, end):
        yield (b"," if number > start else b"") + POD.replace(b"%05d", b"%05d" % number)
    yield b"]}"


def endless_body(request: bytes) -> Iterator[bytes]:
    yield b'{"kind":"PodList","items":['
    while True:
        yield POD.replace(b"%05d", b"00000") + b","


BOMB = gzip.compress(gzip.compress(bytes(1 << 30)))
"""A thousand bytes that decompress to a million bytes, which decompress to a gigabyte."""


def bomb(request: bytes) -> Iterator[bytes]:
    yield gzip.decompress(BOMB)


def serving(body: Callable[[bytes], Iterator[bytes]]) -> Callable[[socket.socket], None]:
    """Return a handler that responds to each request of a connection, in chunks."""
    encoding = b"Content-Encoding: gzip\r\n" if body is bomb else b""

    def handle(connection: socket.socket) -> None:
        while request := read_head(connection):
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + encoding + b"\r\n")
            for piece in body(request):
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            connection.sendall(b"0\r\n\r\n")

    return handle


def resolve_in_process(folder: Path, method: str, body: Callable[[bytes], Iterator[bytes]]) -> dict[str, Any]:
    """Return the report of a process that resolved against a server with such responses."""
    authority = CertificateAuthority()
    (folder / "ca.crt").write_text(authority.pem)
    with peer(serving(body), authority.server_context()) as port:
        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(folder / "ca.crt")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "token"}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(document))
        command = [sys.executable, "-m", f"{__package__}.resolving_process", str(folder / "kubeconfig")]
        run = subprocess.run(
            [*command, method, "120"],
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
            cwd=Path(__file__).parents[2],
        )
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def test_ten_thousand_pods_take_little_memory_as_rows(tmp_path: Path) -> None:
    report = resolve_in_process(tmp_path, "cluster_spec", rows)
    assert report["outcome"] == f"{PODS} tasks"
    assert report["peak"] < 70  # MB; 48 when this was written


def test_ten_thousand_pods_take_little_memory_page_by_page(tmp_path: Path) -> None:
    report = resolve_in_process(tmp_path, "cluster_state", pages)
    assert report["outcome"] == f"{PODS} tasks"
    assert report["peak"] < 110  # 61 when this was written


@pytest.mark.parametrize(("method", "body"), [("cluster_spec", endless_body), ("cluster_state", bomb)])
def test_an_endless_body_is_not_read_to_the_end(
    tmp_path: Path, method: str, body: Callable[[bytes], Iterator[bytes]]
) -> None:
    report = resolve_in_process(tmp_path, method, body)
    assert report["outcome"].startswith("BodyTooLongError: ")
    assert "exceeds the limit of 64 MiB" in report["outcome"]
    # cluster_spec() reads two responses at a time.
    assert report["peak"] < 250  # 170 when this was written
