"""How every test runs: a warning of the event loop fails it, and this machine is not a part of anything.

What makes this machine a pod, a VM or a task of a job, or names its credentials, is hidden from the tests.
The home folder is not: a test of a search in it sets `$HOME`.

`pytest` runs the quick tests, which cover every package, and generates few examples for each property test.
It leaves out what has a marker: `REAL_PATHS` and `SLOW_PATHS`, single tests with `@pytest.mark.real` or
`@pytest.mark.slow`, and the repetitions of `UVLOOP_PATHS` on uvloop. `pytest -m ""` runs everything.
"""

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import os
import re
import signal
import socket
import ssl
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

from aioresolve._core import service_account
from aioresolve.gcp import metadata_server
from aioresolve.testing import GoogleServer

SLOW_CALLBACK = 5.0
"""Seconds that a callback may block the loop. On shared machines a lower limit measures other processes."""

CLEANUP_TIME = 30.0
"""Seconds that threads, and servers in threads, have after a test to end."""

TESTS = Path(__file__).parent

QUICK = "not (real or slow or uvloop)"
"""The value of `-m` in pyproject.toml, which selects the quick tests."""

PLATFORM_VARIABLES = re.compile(
    "(AIORESOLVE|AWS|GCE|GCLOUD|GOOGLE|HOROVOD|JAX|KUBERNETES|KUBE_GOOGLE|LWS|MEGASCALE|MV2|OMPI_COMM|POD|SM"
    "|TORCHELASTIC|TPU)_|CLOUD|CROSS_RANK|JOB_COMPLETION_INDEX|KUBECONFIG|NO_GCE_CHECK|OMPI_MCA_orte|PMI|SLURM|TF_CONFIG|[A-Za-z]+_(?i:proxy)$"
)
"""The variables with which a platform describes a cluster or a task, or names credentials or servers."""

REAL_PATHS = (
    "conformance",
    "examples/test_programs.py",
    "jax",
    "kubernetes/test_clients.py",
    "kubernetes/test_kubeconfig_against_kubectl.py",
    "launch/test_programs.py",
    "tensorflow",
    "test_site.py",
)
"""Files and folders whose tests need real programs or large libraries."""

SLOW_PATHS = (
    # They start processes: each one imports the package again, which takes a large part of a second.
    "cli/test_process.py",
    "kubelet",
    "sync/test_process.py",
    "test_process_end.py",
    "test_snippets.py",
    # They check many generated examples, or thousands of pods or polls.
    "core/test_request_rates.py",
    "kubernetes/test_memory.py",
    "kubernetes/test_watch_convergence.py",
    "resolver/test_staleness.py",
)
"""Files and folders whose tests are all slow."""

UVLOOP_PATHS = (
    "core/test_concurrency.py",
    "core/test_http.py",
    "core/test_network.py",
    "kubernetes/test_cancellation.py",
    "kubernetes/test_plugins.py",
    "kubernetes/test_stream.py",
    "kubernetes/test_tls.py",
    "kubernetes/test_watch.py",
    "kubernetes/test_watch_recovery.py",
    "probe/test_channels.py",
    "probe/test_grpc_loop.py",
    "probe/test_libtpu.py",
    "probe/test_workers.py",
    "sync",
)
"""Files and folders whose async tests run on uvloop too: what uses sockets, processes and loops directly."""

for _name, _max_examples in {"quick": 20, "suite": 100, "long": 2_000}.items():
    hypothesis.settings.register_profile(
        _name,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],  # the machine may be busy
        print_blob=True,
        max_examples=_max_examples,
    )


def pytest_configure(config: pytest.Config) -> None:
    sys.addaudithook(_refuse_other_machines)
    _hide_this_machine()
    profile = os.environ.get("HYPOTHESIS_PROFILE", "quick" if _is_quick(config) else "suite")
    hypothesis.settings.load_profile(profile)
    if profile == "long" and config.option.timeout is None:
        config.option.timeout = 3600.0  # a property test runs for minutes
    if find_spec("uvloop"):
        import uvloop

        # libuv opens a pipe for signals with the first loop of a process, and never closes it: no leak.
        uvloop.new_event_loop().close()
    # The processes that tests start inherit ignored signals, and a shell ignores some for jobs in the
    # background, as nohup does.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGHUP", "SIGQUIT"):  # Windows has neither
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _hide_this_machine() -> None:
    """Remove what says that this machine is part of a cluster, also for the processes that tests start."""
    for name in list(os.environ):
        if PLATFORM_VARIABLES.match(name):
            del os.environ[name]
    service_account.FOLDER = "/none"
    metadata_server.DEFAULT_HOST = "metadata.invalid"


def _is_quick(config: pytest.Config) -> bool:
    return bool(config.getoption("markexpr") == QUICK)


def _is_in(paths: Sequence[str], path: Path) -> bool:
    return any(path.is_relative_to(TESTS / name) for name in paths)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import files without quick tests if only those run: TensorFlow takes seconds to import."""
    return True if _is_quick(config) and _is_in(REAL_PATHS + SLOW_PATHS, collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_in(REAL_PATHS, item.path):
            item.add_marker("real")
        if _is_in(SLOW_PATHS, item.path):
            item.add_marker("slow")
        if "uvloop" in item.name.partition("[")[2].removesuffix("]").split("-"):
            item.add_marker("uvloop")


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each async test on asyncio's own event loop, and those of `UVLOOP_PATHS` on uvloop too."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": partial(_new_loop, asyncio.new_event_loop)
    }
    if _is_in(UVLOOP_PATHS, item.path) and find_spec("uvloop"):
        import uvloop

        factories["uvloop"] = partial(_new_loop, uvloop.new_event_loop)
    return factories


def _new_loop(factory: Callable[[], asyncio.AbstractEventLoop]) -> asyncio.AbstractEventLoop:
    loop = factory()
    loop.slow_callback_duration = SLOW_CALLBACK
    return loop


class _Warnings(logging.Handler):
    """Keeps the unexpected warnings of the event loop of a test."""

    def __init__(self, *, is_uvloop: bool) -> None:
        super().__init__(logging.WARNING)
        self._is_uvloop = is_uvloop
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message, error = record.getMessage(), record.exc_info and record.exc_info[1]
        if not (_is_expected(record, message, error) or (self._is_uvloop and _is_of_uvloop(message, error))):
            self.messages.append(message)


def _is_expected(record: logging.LogRecord, message: str, error: BaseException | None) -> bool:
    """Return whether a loop that is not from `_new_loop` reports a callback below our limit as slow.

    Or asyncio, in debug mode, reports a client that gave up during the TLS handshake.
    """
    match record.msg, record.args:
        case "Executing %s took %.3f seconds", (_, float(seconds)):
            return seconds < SLOW_CALLBACK
    is_handshake = message.startswith("Error on transport creation for incoming connection")
    return is_handshake and isinstance(error, (ConnectionError, ssl.SSLError))


def _is_of_uvloop(message: str, error: BaseException | None) -> bool:
    """Return whether uvloop reports a connect that was cancelled as its TLS handshake ended.

    uvloop does this also for plain `loop.create_connection`, and leaks nothing: it logs that the socket is
    closed already, or it drops its own future with the failure of the handshake.
    """
    if message.startswith("Fatal error on SSL protocol\nprotocol: <uvloop."):
        return isinstance(error, RuntimeError) and str(error).endswith("the handler is closed")
    if message.startswith("Future exception was never retrieved") and isinstance(error, ssl.SSLError):
        # No frame of a coroutine: the exception never left uvloop.
        frames = traceback.extract_tb(error.__traceback__)
        return all(frame.filename.startswith("uvloop/") or frame.filename == ssl.__file__ for frame in frames)
    return False


@pytest.fixture(autouse=True)
def _no_asyncio_warnings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which asyncio logs a warning: a slow callback, a lost exception, a destroyed task."""
    warnings = _Warnings(is_uvloop="uvloop" in request.node.name)
    logger = logging.getLogger("asyncio")
    logger.addHandler(warnings)
    try:
        yield
    finally:
        logger.removeHandler(warnings)
    assert not warnings.messages


_other_machines: list[str] = []


def _refuse_other_machines(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse connections to other machines, and requests for their addresses, as without a network."""
    match event, arguments:
        case "socket.connect", (_, (str(host), *_)) if not _is_here(host):
            _other_machines.append(host)
            raise OSError(errno.ENETUNREACH, "tests connect to this machine only")
        case "socket.getaddrinfo", (str(host), *_) if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "RFC 6761 reserves .invalid: no DNS has names there")
        case "socket.getaddrinfo", (str(host), *_) if not (_address(host) or _is_here(host)):
            _other_machines.append(host)
            raise socket.gaierror(socket.EAI_AGAIN, "tests look up names of this machine only")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_here(host: str) -> bool:
    if address := _address(host):
        return address.is_loopback or address.is_unspecified
    return host in ("", "localhost", socket.gethostname()) or host.endswith(".localhost")


@pytest.fixture(autouse=True)
def _no_other_machines() -> Iterator[None]:
    """Fail a test that tries to contact another machine: its result would depend on the network.

    Connections of uvloop, of gRPC and of other processes are not noticed.
    """
    _other_machines.clear()
    yield
    assert not _other_machines, _other_machines


@pytest.fixture(autouse=True)
def _no_zombies() -> Iterator[None]:
    """Fail a test that leaves a child process that has exited: later tests would take it for theirs."""
    yield
    if not hasattr(os, "waitid"):  # Windows, and macOS before Python 3.13
        return
    left = []
    with contextlib.suppress(ChildProcessError):  # no children
        while (child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)) is not None:
            left.append((child.si_pid, child.si_status))
    assert not left, f"process and exit code of each child that was left: {left}"


@pytest.fixture(autouse=True)
def _no_known_metadata_server() -> None:
    """Forget the metadata servers of earlier tests, whose ports other servers have later."""
    metadata_server._responded.clear()


@pytest.fixture(scope="module", autouse=True)
def _exclude_imported_modules_from_gc() -> None:
    """Keep the garbage collector from traversing every imported package, which would block the loop."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def closed_address() -> Iterator[str]:
    """An address that refuses connections: its port is bound, so that no program can listen there."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
async def google(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GoogleServer]:
    """Google Cloud as a VM of `demo-project` in `us-central2-b` reaches it, without a group or a TPU."""
    async with GoogleServer() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def no_leak() -> Iterator[None]:
    """Fail a test that leaves a file, a socket or a thread open. It is set up before the test's own loop.

    Threads, and servers in threads that notice a closed connection, end a little later, so the check waits
    for them. It does not run the garbage collector: resources must be closed explicitly.
    """
    before = _open_resources()
    yield
    deadline = time.monotonic() + CLEANUP_TIME
    while (left := _open_resources() - before) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not left, f"left open: {sorted(left)}"


def _open_resources() -> set[str]:
    """Return a description of every thread and file descriptor of this process."""
    resources = {f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()}
    for descriptor in os.listdir("/dev/fd"):
        # One of them was the directory itself, and another thread may close others at the same time.
        with contextlib.suppress(OSError):
            status = os.fstat(int(descriptor))
            resources.add(f"file descriptor {descriptor} (mode {status.st_mode:o}, inode {status.st_ino})")
    return resources
