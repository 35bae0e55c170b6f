"""Which source names the workers: the argument, then the environment, then the VM."""

from __future__ import annotations

import os
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioresolve
from aioresolve import TPUClusterResolver
from aioresolve._core.deadline import Progress
from aioresolve.errors import ConfigurationError, DeadlineExceededError
from aioresolve.spec import split_host_port
from aioresolve.tpu.discovery import (
    GivenWorkers,
    LocalTPU,
    MetadataSource,
    NamedTPUs,
    Source,
    WorkersFile,
    read_workers,
    tpu_source,
    validate_tpu,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

EVERYTHING = {
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://kube:8470",
    "TPU_WORKER_HOSTNAMES": "hostname",
    "TPU_PROCESS_ADDRESSES": "process:8476",
    "TPU_NAME": "variable",
    "TPU_CONFIG": '{"tpu_node_name": "configured", "project": "p", "zone": "z"}',
}


def source(tpu: Any = None, **environ: str) -> Source:
    return tpu_source(validate_tpu(tpu), environ)


def addresses(found: Source) -> list[str]:
    assert isinstance(found, GivenWorkers)
    return list(found.addresses)


@pytest.mark.parametrize(
    ("unset", "found"),
    [
        ([], ["kube:8470"]),
        (["KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"], ["process:8470"]),
        (["KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_PROCESS_ADDRESSES"], ["hostname:8470"]),
    ],
)
def test_variables_with_addresses_take_precedence_in_this_order(unset: list[str], found: list[str]) -> None:
    environ = {name: value for name, value in EVERYTHING.items() if name not in unset}
    assert addresses(tpu_source((), environ)) == found


def test_tpu_name_takes_precedence_over_tpu_config() -> None:
    assert source(TPU_NAME="a", TPU_CONFIG=EVERYTHING["TPU_CONFIG"]) == NamedTPUs("$TPU_NAME", ("a",))
    assert source(TPU_CONFIG=EVERYTHING["TPU_CONFIG"]) == NamedTPUs(
        "$TPU_CONFIG", ("configured",), project="p", zone="z"
    )


def test_without_a_named_tpu_the_metadata_server_is_the_source_and_all_others_are_listed() -> None:
    found = source()
    assert isinstance(found, MetadataSource)
    tried = " ".join(found.tried)
    assert "no name or address was given" in tried
    assert all(f"${name}" in tried for name in [*EVERYTHING, "TPU_PROCESS_ADDRESSES_PATH"])


def test_empty_variables_and_arguments_are_ignored() -> None:
    assert isinstance(tpu_source((), dict.fromkeys(EVERYTHING, "")), MetadataSource)
    for nothing in (None, ""):
        assert source(nothing, TPU_NAME="variable") == NamedTPUs("$TPU_NAME", ("variable",))


@given(st.sampled_from(sorted(EVERYTHING)))
def test_the_argument_takes_precedence_over_every_variable(name: str) -> None:
    assert tpu_source(("given",), {name: EVERYTHING[name]}) == NamedTPUs("tpu", ("given",))


def test_local_is_the_tpu_of_this_host() -> None:
    for tpu in ("local", ["local"]):
        assert source(tpu, **EVERYTHING) == LocalTPU("tpu")
    assert source(TPU_NAME="local") == LocalTPU("$TPU_NAME")
    assert source(TPU_CONFIG='{"tpu_node_name": "local", "zone": "z"}') == LocalTPU("$TPU_CONFIG")


@pytest.mark.parametrize(
    ("tpu", "found"),
    [
        ("grpc://a,b,c:1", ["a:8470", "b:8470", "c:1"]),
        (["10.0.0.1:1,10.0.0.2:2", "fd00::3"], ["10.0.0.1:1", "10.0.0.2:2", "[fd00::3]:8470"]),
    ],
)
def test_addresses_are_workers(tpu: Any, found: list[str]) -> None:
    assert source(tpu) == GivenWorkers("tpu", tuple(found))


@pytest.mark.parametrize(
    ("tpu", "names"),
    [
        ("my-tpu", ("my-tpu",)),
        ("a, b", ("a", "b")),
        ("projects/p/locations/z/nodes/n", ("projects/p/locations/z/nodes/n",)),
    ],
)
def test_names_are_looked_up_with_the_api(tpu: Any, names: tuple[str, ...]) -> None:
    assert source(tpu) == NamedTPUs("tpu", names)


@pytest.mark.parametrize(
    ("tpu", "message"),
    [
        ([], "at least one"),
        ([""], "an empty name"),
        (["a", 7], "a list of texts"),
        (7, "Pass the name of a TPU"),
        (["a", "a"], "a twice"),
        ("a,,b", "an empty name"),
        (["a", "grpc://b:1"], "mixes names and addresses"),
        (["local", "a"], "Pass 'local' alone"),
    ],
)
def test_an_invalid_argument_is_rejected(tpu: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        validate_tpu(tpu)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "no tpu_node_name"),
        ('{"tpu_node_name": 1}', "no tpu"),
    ],
)
def test_a_malformed_tpu_config_is_rejected(config: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"\$TPU_CONFIG.*{message}"):
        source(TPU_CONFIG=config)


def test_a_repeated_worker_address_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="h:8470 twice"):
        TPUClusterResolver("grpc://h:8470,grpc://h")
    with pytest.raises(ConfigurationError, match=r"\$KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS: .* a:8470 twice"):
        source(KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS="grpc://a,grpc://a:8470")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("[2001:DB8::1]:8470", "2001:db8::1"),
        ("h", "H:8470"),
    ],
)
def test_two_spellings_of_one_address_are_repeated(first: str, second: str) -> None:
    with pytest.raises(ConfigurationError, match=r"names .*:8470 twice"):
        TPUClusterResolver(f"grpc://{first},grpc://{second}")
    hosts = [
        split_host_port(each)[0] for each in addresses(source(TPU_PROCESS_ADDRESSES=f"{first},{second}"))
    ]
    assert (len(hosts), len({*hosts})) == (2, 1)


@pytest.mark.parametrize(
    "environ",
    [
        {"TPU_PROCESS_ADDRESSES": "a:8476,a:8477,b:8476,b:8477"},
        # LeaderWorkerSet repeats the hosts; KubeRay lists each once, in addition to the processes.
        {"TPU_WORKER_HOSTNAMES": "a,a,b,b"},
        {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_PROCESS_ADDRESSES": "a:8476,a:8477,b:8476,b:8477"},
    ],
)
async def test_each_process_of_a_host_is_a_worker_with_its_own_index(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "tpu7x-16")
    monkeypatch.setenv("TPU_TOPOLOGY", "2x2x2")
    tasks = []
    for worker_id in range(4):
        monkeypatch.setenv("TPU_WORKER_ID", str(worker_id))
        tasks.append(await TPUClusterResolver().this_task())
    assert [(task.rank, task.num_tasks, task.address) for task in tasks] == [
        (0, 4, "a:8470"),
        (1, 4, "a:8471"),
        (2, 4, "b:8470"),
        (3, 4, "b:8471"),
    ]
    topology = await TPUClusterResolver().topology()
    assert topology is not None
    assert (topology.hosts, topology.processes, topology.chips_per_host) == (2, 4, 4)
    assert topology.chips_per_process == 2


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"TPU_WORKER_HOSTNAMES": "a,b,c,d", "TPU_WORKER_ID": "5"},
            r"\$TPU_WORKER_ID=5 is out of range: \$TPU_WORKER_HOSTNAMES has 4 processes",
        ),
        (
            {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0", "CLOUD_TPU_TASK_ID": "1"},
            r"\$TPU_WORKER_ID=0 and \$CLOUD_TPU_TASK_ID=1 contradict",
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
        (
            {"TPU_WORKER_HOSTNAMES": "a,b", "MEGASCALE_COORDINATOR_ADDRESS": "b:8080"},
            r"MEGASCALE_COORDINATOR_ADDRESS=b:8080 must be .* but it is worker 1 of slice 0",
        ),
        (
            {
                "TPU_WORKER_HOSTNAMES": "a,b",
                "MEGASCALE_COORDINATOR_ADDRESS": "a",
                "MEGASCALE_NUM_SLICES": "2",
                "MEGASCALE_SLICE_ID": "1",
            },
            r"it is worker 0 of slice 1 in \$TPU_WORKER_HOSTNAMES \(MEGASCALE_SLICE_ID=1\)",
        ),
    ],
)
def test_variables_that_contradict_each_other_are_an_error_that_names_both(
    environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        source(**environ)


def test_processes_of_this_host_only_are_ignored() -> None:
    found = source(TPU_PROCESS_ADDRESSES="local", TPU_WORKER_HOSTNAMES="localhost")
    assert addresses(found) == ["localhost:8470"]
    for nothing in ("local", " , "):
        assert isinstance(source(TPU_PROCESS_ADDRESSES=nothing), MetadataSource)
    found = source(TPU_WORKER_HOSTNAMES="localhost", TPU_PROCESS_ADDRESSES="a:8471,b:8471")
    assert addresses(found) == ["a:8470", "b:8470"]


async def read_file(**environ: str) -> GivenWorkers:
    found = source(**environ)
    assert isinstance(found, WorkersFile)
    return await read_workers(found, Progress())


async def test_a_file_of_process_addresses_takes_precedence_over_the_other_variables(tmp_path: Path) -> None:
    path = tmp_path / "addresses"
    path.write_text(" 10.0.0.1:8476,10.0.0.2:8476, \n")
    found = await read_file(
        TPU_PROCESS_ADDRESSES_PATH=str(path), TPU_PROCESS_ADDRESSES="a:1", TPU_WORKER_HOSTNAMES="localhost"
    )
    assert addresses(found) == ["10.0.0.1:8470", "10.0.0.2:8470"]


@pytest.mark.parametrize(
    ("name", "message"), [("empty", "contains no address"), ("missing", "could not be read")]
)
async def test_an_unusable_file_of_process_addresses_is_an_error(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "empty").write_text(" \n")
    path = str(tmp_path / name)
    with pytest.raises(ConfigurationError, match=rf"{path}.*\$TPU_PROCESS_ADDRESSES_PATH {message}"):
        await read_file(TPU_PROCESS_ADDRESSES_PATH=path, TPU_PROCESS_ADDRESSES="a:1")


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


async def first_state(resolver: TPUClusterResolver) -> None:
    async with aclosing(resolver.watch()) as states:
        await anext(states)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
@pytest.mark.usefixtures("dead_file")
@pytest.mark.parametrize(
    "call",
    [
        TPUClusterResolver.cluster_spec,
        lambda resolver: resolver.wait(timeout=0.5),
        first_state,
        lambda _: aioresolve.detect(timeout=0.1),
    ],
)
async def test_a_file_of_process_addresses_that_hangs_is_read_until_the_deadline(
    call: Callable[[TPUClusterResolver], Awaitable[object]],
) -> None:
    with pytest.raises(DeadlineExceededError):
        await call(TPUClusterResolver(timeout=0.1))


async def test_a_watch_reads_the_file_of_process_addresses_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "addresses"
    path.write_text("127.0.0.1:8476,127.0.0.1:8477")
    monkeypatch.setenv("TPU_PROCESS_ADDRESSES_PATH", str(path))
    source_check, tasks, *_ = await aioresolve.doctor(TPUClusterResolver())
    assert source_check.found == "2 addresses, from $TPU_PROCESS_ADDRESSES_PATH"
    assert tasks.found == "worker: 2"
    async with aclosing(TPUClusterResolver().observations(interval=0.01)) as observations:
        first = await anext(observations)
        path.unlink()
        second = await anext(observations)
    assert first.state is not None
    assert first.state == second.state


async def test_the_worker_id_of_a_gke_pod_is_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    resolver = TPUClusterResolver()
    assert resolver.task_id == 1
    assert await resolver.master() == "grpc://b:8470"
    resolver.task_id = 0
    assert await resolver.master() == "grpc://a:8470"
    (one,) = await resolver.slices()
    assert one.environment.worker_id == 1


@pytest.mark.parametrize(
    ("tpu", "environ"),
    [
        ("grpc://a,grpc://b", {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"}),
        (None, {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "-1"}),
        (None, {"TPU_WORKER_HOSTNAMES": "a,b"}),
    ],
)
def test_the_task_is_0_if_the_variables_do_not_say_which_worker_this_is(
    tpu: str | None, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert TPUClusterResolver(tpu).task_id == 0


def test_a_malformed_worker_id_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setenv("TPU_WORKER_ID", "x")
    with pytest.raises(ConfigurationError, match=r"\$TPU_WORKER_ID='x' is not a number"):
        _ = TPUClusterResolver().task_id


@pytest.mark.parametrize(
    "variable",
    [
        "TPU_PROCESS_ADDRESSES_PATH",
        "TPU_WORKER_HOSTNAMES",
    ],
)
async def test_a_slice_of_a_multislice_has_its_index(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "addresses"
    file.write_text("a,b")
    monkeypatch.setenv(variable, str(file) if variable.endswith("_PATH") else "a,b")
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "2")
    monkeypatch.setenv("MEGASCALE_SLICE_ID", "1")
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5p-16")
    resolver = TPUClusterResolver()
    (one,) = await resolver.slices()
    assert (one.name, one.index, one.num_slices, one.tasks) == ("slice-1", 1, 2, range(2))
    assert one.endpoints[1].name == "slice-1/worker-1"
    assert await resolver.accelerator_type() == "v5p-16"


@pytest.mark.parametrize(
    ("slice_id", "slices", "message"),
    [
        ("x", "2", "MEGASCALE_SLICE_ID"),
        ("0", "-1", "MEGASCALE_NUM_SLICES"),
        ("2", "2", "out of range"),
    ],
)
def test_malformed_megascale_variables_are_rejected(slice_id: str, slices: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        source(TPU_WORKER_HOSTNAMES="a", MEGASCALE_NUM_SLICES=slices, MEGASCALE_SLICE_ID=slice_id)


def test_gke_variables_describe_the_slice() -> None:
    found = source(
        TPU_WORKER_HOSTNAMES="job-0.svc, ,job-1.svc,",
        TPU_WORKER_ID=" 1 ",
        TPU_ACCELERATOR_TYPE="v4-16",
        TPU_TOPOLOGY="2x2x2",
        TPU_CHIPS_PER_HOST_BOUNDS="2, 2,1",
        TPU_HOST_BOUNDS="1,1,2",
        TPU_RUNTIME_METRICS_PORTS="8431,8432,",
    )
    assert addresses(found) == ["job-0.svc:8470", "job-1.svc:8470"]
    assert isinstance(found, GivenWorkers)
    environment = found.environment
    assert (environment.worker_id, environment.accelerator_type, environment.topology) == (
        1,
        "v4-16",
        "2x2x2",
    )
    assert (environment.chips_per_host_bounds, environment.host_bounds) == ((2, 2, 1), (1, 1, 2))
    assert environment.runtime_metrics_ports == (8431, 8432)
    with pytest.raises(ConfigurationError, match=r"\$TPU_HOST_BOUNDS: '1,x' is not a"):
        source(TPU_WORKER_HOSTNAMES="a", TPU_HOST_BOUNDS="1,x")


@given(st.dictionaries(st.sampled_from(sorted(EVERYTHING)), st.text()))
def test_any_environment_is_a_source_or_raises_a_configuration_error(environ: dict[str, str]) -> None:
    try:
        found = tpu_source((), environ)
    except ConfigurationError:
        return
    assert isinstance(found, MetadataSource) or found.origin.removeprefix("$") in environ
