"""Which source names the workers (the argument, then the environment, then the VM), and invalid arguments."""

import os
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioresolve
from aioresolve import Progress, TPUClusterResolver, Want
from aioresolve.errors import ConfigurationError, DeadlineExceededError, TPUNotFoundError
from aioresolve.testing import GoogleServer, tpu_node

EVERYTHING = {
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://kube:8470",
    "TPU_WORKER_HOSTNAMES": "hostname",
    "TPU_PROCESS_ADDRESSES": "process:8476",
    "TPU_NAME": "variable",
    "TPU_CONFIG": '{"tpu_node_name": "configured", "project": "p", "zone": "z"}',
}


class Environment:
    """The variables of this process, and the workers that they name."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def set(self, **variables: str) -> None:
        for name in (*EVERYTHING, "TPU_PROCESS_ADDRESSES_PATH"):
            self._patch.delenv(name, raising=False)
        for name, value in variables.items():
            self._patch.setenv(name, value)

    async def addresses(self, tpu: Any = None, **variables: str) -> list[str | None]:
        self.set(**variables)
        return (await TPUClusterResolver(tpu).cluster_spec()).job_tasks("worker")


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Environment:
    return Environment(monkeypatch)


async def test_the_first_source_that_is_set_is_used(environ: Environment, google: GoogleServer) -> None:
    google.add(tpu_node("variable", ips=["10.0.0.1"]))
    google.add(tpu_node("projects/p/locations/z/nodes/configured", ips=["10.0.0.2"]))
    assert await environ.addresses("grpc://given", **EVERYTHING) == ["given:8470"]
    variables = dict(EVERYTHING)
    for name, address in {
        "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "kube:8470",
        "TPU_PROCESS_ADDRESSES": "process:8470",
        "TPU_WORKER_HOSTNAMES": "hostname:8470",
        "TPU_NAME": "10.0.0.1:8470",
        "TPU_CONFIG": "10.0.0.2:8470",
    }.items():
        for nothing in (None, ""):
            assert await environ.addresses(nothing, **variables) == [address]
        variables[name] = ""
    environ.set(**variables)
    with pytest.raises(TPUNotFoundError) as raised:
        await TPUClusterResolver().cluster_spec()
    tried = " ".join(raised.value.tried)
    assert "no name or address was given" in tried
    assert all(f"${name}" in tried for name in [*EVERYTHING, "TPU_PROCESS_ADDRESSES_PATH"])


async def test_local_is_the_tpu_of_this_host(environ: Environment) -> None:
    for tpu, variables in (
        ("local", EVERYTHING),
        (["local"], EVERYTHING),
        (None, {"TPU_NAME": "local"}),
        (None, {"TPU_CONFIG": '{"tpu_node_name": "local", "zone": "z"}'}),
    ):
        environ.set(**variables)
        resolver = TPUClusterResolver(tpu)
        assert not await resolver.cluster_spec()
        assert (await resolver.master(), await resolver.probe()) == ("", ())
        assert (await aioresolve.doctor(resolver))[1].found.startswith("the TPU of this host has no workers")


@pytest.mark.parametrize(
    ("tpu", "found"),
    [
        ("grpc://10.0.0.1", ["10.0.0.1:8470"]),
        ("worker-0.tpu.svc", ["worker-0.tpu.svc:8470"]),
        ("grpc://a,b,c:1", ["a:8470", "b:8470", "c:1"]),
        (
            ["10.0.0.1:1, 10.0.0.2:2 ,grpc://c:3", "fd00::3"],
            ["10.0.0.1:1", "10.0.0.2:2", "c:3", "[fd00::3]:8470"],
        ),
        ("grpc://[fd00::7]", ["[fd00::7]:8470"]),
        ("fe80::1%eth0", ["[fe80::1%eth0]:8470"]),
    ],
)
async def test_addresses_are_workers(tpu: Any, found: list[str], environ: Environment) -> None:
    assert await environ.addresses(tpu) == found


@pytest.mark.parametrize(
    ("tpu", "message"),
    [
        ([], "at least one"),
        ([""], "an empty name"),
        (["a", 7], "a list of texts"),
        (7, "Pass the name of a TPU"),
        ("a,,b", "an empty name"),
        (["a", "grpc://b:1"], "mixes names, addresses"),
        (["local", "a"], "mixes names, addresses or 'local'"),
        ("grpc://h:8470,grpc://h", "h:8470 twice"),
        ("[2001:DB8::1]:8470,2001:db8::1", "2001:db8::1]:8470 twice"),
        ("grpc://http://a:1", "is not the address .* Write host:port"),
        ("a:0", "'a:0' is not the address"),
        ("a:65536", "'a:65536' is not"),
    ],
)
def test_an_invalid_argument_is_rejected_by_the_constructor(tpu: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TPUClusterResolver(tpu)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"coordinator_name": "worker"}, "`coordinator_name=`: 'worker' is the job"),
        ({"coordinator_name": "chief", "coordinator_address": "nowhere:x"}, "coordinator_address"),
        ({"zone": 7}, "`zone=`: 7 is not text"),
        ({"not_healthy": "keep"}, "`not_healthy=`: 'keep' is not one of 'raise'"),
        ({"address": "ip"}, "`address=`: 'ip' is not one of"),
        ({"service": object()}, "googleapiclient"),
        ({"discovery_url": 7}, "`discovery_url=`: 7 is not a URL"),
        ({"discovery_url": "ftp://a/"}, "discovery_url"),
        ({"discovery_url": "https://a/{project}"}, "discovery_url"),
    ],
)
def test_another_invalid_argument_is_rejected_too(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TPUClusterResolver("my-tpu", **arguments)


@given(st.text())
def test_any_text_is_an_address_or_raises_a_configuration_error(text: str) -> None:
    try:
        TPUClusterResolver(f"grpc://{text}")
    except ConfigurationError:
        return


# The variables of GKE


@pytest.mark.parametrize(
    "variables",
    [
        {"TPU_PROCESS_ADDRESSES": "a:8476,a:8477,b:8476,b:8477"},
        # LeaderWorkerSet repeats the hosts; KubeRay lists each once, in addition to the processes.
        {"TPU_WORKER_HOSTNAMES": "a,A,b,b"},
        {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_PROCESS_ADDRESSES": "a:8476,a:8477,b:8476,b:8477"},
    ],
)
async def test_each_process_of_a_host_is_a_worker_with_its_own_index(
    variables: dict[str, str], environ: Environment
) -> None:
    tasks = []
    for worker_id in range(4):
        environ.set(**variables, TPU_WORKER_ID=f"{worker_id}")
        tasks.append(await TPUClusterResolver().this_task())
    assert [(task.rank, task.num_tasks, task.address) for task in tasks] == [
        (0, 4, "a:8470"),
        (1, 4, "a:8471"),
        (2, 4, "b:8470"),
        (3, 4, "b:8471"),
    ]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TPU_CONFIG": "{"}, r"\$TPU_CONFIG is not valid JSON"),
        ({"TPU_CONFIG": "[]"}, r"\$TPU_CONFIG has no tpu_node_name"),
        ({"TPU_CONFIG": '{"tpu_node_name": 1}'}, r"\$TPU_CONFIG has no tpu_node_name"),
        ({"TPU_API_DISCOVERY_URL": "x", "TPU_NAME": "a"}, r"\$TPU_API_DISCOVERY_URL"),
        (
            {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://a,grpc://a:8470"},
            r"\$KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS: .* a:8470 twice",
        ),
        (
            {"TPU_WORKER_HOSTNAMES": "a,b,c,d", "TPU_WORKER_ID": "5"},
            r"\$TPU_WORKER_ID=5 is out of range: \$TPU_WORKER_HOSTNAMES has 4 processes",
        ),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "x"}, r"\$TPU_WORKER_ID: 'x' is not a number"),
        (
            {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0", "CLOUD_TPU_TASK_ID": "1"},
            r"\$TPU_WORKER_ID=0 contradicts \$CLOUD_TPU_TASK_ID=1",
        ),
        (
            {"TPU_PROCESS_ADDRESSES": "a:8476,b:8476", "TPU_PROCESS_BOUNDS": "2,2,1"},
            r"\$TPU_PROCESS_ADDRESSES has 2 processes, but \$TPU_PROCESS_BOUNDS=2,2,1 are 4",
        ),
        (
            {"TPU_PROCESS_ADDRESSES": "a:8476,b:8476", "TPU_WORKER_HOSTNAMES": "a,b,c"},
            r"\$TPU_PROCESS_ADDRESSES has processes on 2 hosts, but \$TPU_WORKER_HOSTNAMES=a,b,c has 3",
        ),
        ({"TPU_PROCESS_ADDRESSES": "a:8476,a:8476"}, r"\$TPU_PROCESS_ADDRESSES: .* names a:8476 twice"),
        ({"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_SLICE_ID": "x"}, r"\$MEGASCALE_SLICE_ID"),
        (
            {"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_SLICE_ID": "2", "MEGASCALE_NUM_SLICES": "2"},
            "MEGASCALE_SLICE_ID=2 is out of range",
        ),
        ({"TPU_WORKER_HOSTNAMES": "a", "TPU_HOST_BOUNDS": "1,x"}, r"\$TPU_HOST_BOUNDS: '1,x' is not a"),
    ],
)
async def test_variables_that_are_invalid_or_contradict_each_other_are_named(
    variables: dict[str, str], message: str, environ: Environment
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await environ.addresses(**variables)


async def test_processes_of_this_host_only_are_ignored(environ: Environment) -> None:
    for local in ("local", " , "):
        found = await environ.addresses(TPU_PROCESS_ADDRESSES=local, TPU_WORKER_HOSTNAMES="localhost")
        assert found == ["localhost:8470"]
    found = await environ.addresses(
        TPU_WORKER_HOSTNAMES="localhost", TPU_PROCESS_ADDRESSES="a:8471, ,b:8471,"
    )
    assert found == ["a:8470", "b:8470"]
    found = await environ.addresses(
        TPU_WORKER_HOSTNAMES="a,b", TPU_PROCESS_ADDRESSES="127.0.0.1:8476,127.0.0.1:8477"
    )
    assert found == ["127.0.0.1:8470", "127.0.0.1:8471"]


async def test_the_worker_id_of_a_gke_pod_is_its_task(environ: Environment) -> None:
    environ.set(TPU_WORKER_HOSTNAMES="a,b", TPU_WORKER_ID=" 1 ")
    resolver = TPUClusterResolver()
    assert resolver.task_id == 1
    assert await resolver.master() == "grpc://b:8470"
    resolver.task_id = 0
    assert await resolver.master() == "grpc://a:8470"
    (one,) = await resolver.slices()
    assert one.environment.worker_id == 1
    assert TPUClusterResolver("grpc://a,grpc://b").task_id == 0
    environ.set(TPU_WORKER_HOSTNAMES="a,b", TPU_WORKER_ID="-1")
    assert TPUClusterResolver().task_id == 0


async def test_the_worker_id_may_be_in_the_variable_of_libtpu(environ: Environment) -> None:
    environ.set(TPU_WORKER_HOSTNAMES="a,b", CLOUD_TPU_TASK_ID="1")
    assert (await TPUClusterResolver().this_task()).address == "b:8470"


async def test_the_worker_id_of_a_pod_is_no_index_of_other_endpoints(environ: Environment) -> None:
    endpoints = {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://a,grpc://b"}
    environ.set(**endpoints, TPU_WORKER_HOSTNAMES="x,y,z", TPU_WORKER_ID="2")
    resolver = TPUClusterResolver()
    assert (resolver.task_id, await resolver.master()) == (0, "grpc://a:8470")


async def test_a_task_id_that_is_set_is_the_task_of_this_process() -> None:
    resolver = TPUClusterResolver("grpc://a,grpc://b")
    resolver.task_id = 1
    assert (await resolver.this_task()).address == "b:8470"


async def test_project_and_zone_that_are_passed_precede_those_of_a_variable(
    environ: Environment, google: GoogleServer
) -> None:
    google.add(tpu_node("projects/other/locations/here/nodes/configured", ips=["10.0.0.3"]))
    environ.set(TPU_CONFIG=EVERYTHING["TPU_CONFIG"])
    assert await TPUClusterResolver(zone="here", project="other").master() == "grpc://10.0.0.3:8470"


# The file of process addresses


async def test_a_file_of_process_addresses_takes_precedence_over_the_other_variables(
    tmp_path: Path, environ: Environment
) -> None:
    path = tmp_path / "addresses"
    path.write_text(" 10.0.0.1:8476,10.0.0.2:8476, \n")
    found = await environ.addresses(
        TPU_PROCESS_ADDRESSES_PATH=str(path), TPU_PROCESS_ADDRESSES="a:1", TPU_WORKER_HOSTNAMES="localhost"
    )
    assert found == ["10.0.0.1:8470", "10.0.0.2:8470"]
    progress = Progress()
    await TPUClusterResolver().observe(Want(), progress)
    assert not progress.missing


@pytest.mark.parametrize(
    ("name", "message"), [("empty", "contains no address"), ("missing", "could not be read")]
)
async def test_an_unusable_file_of_process_addresses_is_an_error(
    tmp_path: Path, name: str, message: str, environ: Environment
) -> None:
    (tmp_path / "empty").write_text(" \n")
    path = str(tmp_path / name)
    with pytest.raises(ConfigurationError, match=rf"{path}.*\$TPU_PROCESS_ADDRESSES_PATH {message}"):
        await environ.addresses(TPU_PROCESS_ADDRESSES_PATH=path, TPU_PROCESS_ADDRESSES="a:1")


@pytest.fixture
def dead_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A file of process addresses that cannot be opened before the end of the test."""
    path = tmp_path / "dead"
    os.mkfifo(path)
    monkeypatch.setenv("TPU_PROCESS_ADDRESSES_PATH", str(path))
    yield str(path)
    while True:  # end the threads that open it
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
@pytest.mark.usefixtures("dead_file")
async def test_a_file_of_process_addresses_that_hangs_is_read_until_the_deadline() -> None:
    with pytest.raises(DeadlineExceededError, match="not read yet"):
        await TPUClusterResolver(timeout=0.1).cluster_spec()


async def test_a_watch_reads_the_file_of_process_addresses(tmp_path: Path, environ: Environment) -> None:
    path = tmp_path / "addresses"
    path.write_text("127.0.0.1:8476,127.0.0.1:8477")
    environ.set(TPU_PROCESS_ADDRESSES_PATH=str(path))
    source_check, tasks, *_ = await aioresolve.doctor(TPUClusterResolver())
    assert (source_check.found, tasks.found) == ("the workers, from $TPU_PROCESS_ADDRESSES_PATH", "worker: 2")
    async with aclosing(TPUClusterResolver().observations(interval=0.01)) as observations:
        first = await anext(observations)
        path.write_text("127.0.0.1:8476")
        second = await anext(observations)
    assert first.state is not None
    assert second.state is not None
    assert (len(first.state.members), len(second.state.members)) == (2, 1)
