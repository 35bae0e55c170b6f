"""The memory that pods take has a limit, whatever their number."""

import json
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from aioresolve.testing import pod

from .kubeconfigs import base64_of, kubeconfig, write_file
from .loopback import TRAIN
from .peers import peer, read_head
from .samples import COLUMNS, table

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


PROGRAM = """
import asyncio, re, sys
from pathlib import Path
from aioresolve import KubernetesClusterResolver
resolver = KubernetesClusterResolver({"worker": "app=train"}, kubeconfig=sys.argv[1], timeout=120)
found = asyncio.run(getattr(resolver, sys.argv[2])())
print(getattr(found, "spec", found).num_tasks("worker"))
# Not `ru_maxrss`: that starts with the memory of the process that started this one.
print(int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""


# 48 and 61 MB when this was written.
@pytest.mark.parametrize(
    ("method", "body", "most"), [("cluster_spec", rows, 70), ("cluster_state", pages, 110)]
)
def test_ten_thousand_pods_take_little_memory(
    tmp_path: Path, method: str, body: Callable[[bytes], Iterator[bytes]], most: int
) -> None:
    def handle(connection: socket.socket) -> None:
        while request := read_head(connection):
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for piece in body(request):
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            connection.sendall(b"0\r\n\r\n")

    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    cluster = {"certificate-authority-data": base64_of(authority.cert_pem.bytes())}
    with peer(handle, context) as port:
        cluster["server"] = f"https://127.0.0.1:{port}"
        path = write_file(tmp_path / "config", kubeconfig({"token": "t"}, **cluster))
        command = [sys.executable, "-c", PROGRAM, str(path), method]
        run = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    tasks, peak = map(int, run.stdout.split())
    assert tasks == PODS
    assert peak < most
