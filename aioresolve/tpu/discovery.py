"""Which source names the TPU workers: the `tpu` argument, environment variables, or this VM.

The first source that is set is used: the argument, the variables of TensorFlow's Cloud TPU client
(`KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS`, `TPU_NAME`, `TPU_CONFIG`), and between them the variables that GKE sets in
the pods of a slice, in the order of JAX (`jax/_src/clusters/cloud_tpu_cluster.py`): the file of
`TPU_PROCESS_ADDRESSES_PATH`, `TPU_PROCESS_ADDRESSES`, `TPU_WORKER_HOSTNAMES`. Each entry is a process, and
`TPU_WORKER_ID` is the index of this process among them: a host with several containers is listed once for
each, as LeaderWorkerSet (`pkg/utils/accelerators/tpu.go`) and KubeRay's TPU webhook do it. `MEGASCALE_*`
describes the slices if there are several. Only that file is read, by `read_workers`.

Worker addresses are written as TensorFlow writes them: `grpc://10.0.0.1:8470,grpc://10.0.0.2`. The default
port is 8470.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from aioresolve._core.threads import run_in_thread
from aioresolve.errors import ConfigurationError
from aioresolve.spec import host_port, split_host_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioresolve._core.deadline import Progress
    from aioresolve.errors import ResolveError

TPU_PORT = 8470
"""The default port of the TensorFlow server of a TPU worker."""

SCHEME = "grpc://"

LOCAL = "local"

LOCAL_HOSTS = frozenset({LOCAL, "localhost", "127.0.0.1", "::1"})

COORDINATOR_VARIABLE = "MEGASCALE_COORDINATOR_ADDRESS"

ENDPOINTS_VARIABLE = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"

PATH_VARIABLE = "TPU_PROCESS_ADDRESSES_PATH"

HOST_VARIABLES = (PATH_VARIABLE, "TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
"""GKE's variables, in order of precedence: GKE sets the last one to `localhost` in some pods of slices with
several hosts. Their ports belong to libtpu's own network, not to a TensorFlow server."""

NUMBER = re.compile(r"[0-9]{1,6}")
_ADDRESS = re.compile(r"(?P<host>\[[^\]\s]+\]|[^\s:/\[\],]+)(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class TPUEnvironment:
    """What variables of a process, or `tpu-env` of a TPU VM, report about a slice; None for the rest.

    Attributes:
        accelerator_type: such as `v4-256`.
        topology: chips of the slice in each dimension, such as `4x4x8`.
        chips_per_host_bounds: chips of one host in each dimension, such as `(2, 2, 1)`.
        host_bounds: hosts of the slice in each dimension, such as `(2, 2, 8)`.
        process_bounds: processes of the slice in each dimension.
        worker_id: the index of this VM in the slice, from 0.
        runtime_metrics_ports: the ports of libtpu's metrics, one for each process.
        node_id: the id of the TPU node.
        slice_index: the index of the slice in a multislice, from 0.
        num_slices: the number of slices of a multislice.
        coordinator: `MEGASCALE_COORDINATOR_ADDRESS`: the host of the first worker of the first slice, perhaps
            with a port.
    """

    accelerator_type: str | None = None
    topology: str | None = None
    chips_per_host_bounds: tuple[int, ...] | None = None
    host_bounds: tuple[int, ...] | None = None
    process_bounds: tuple[int, ...] | None = None
    worker_id: int | None = None
    runtime_metrics_ports: tuple[int, ...] = ()
    node_id: str | None = None
    slice_index: int | None = None
    num_slices: int | None = None
    coordinator: str | None = None


@dataclass(frozen=True, slots=True)
class LocalTPU:
    """The TPU of this host: no worker can be reached over the network.

    Here and below, `origin` is where the TPU is named: `tpu` (the argument) or `$VARIABLE`.
    """

    origin: str


@dataclass(frozen=True, slots=True)
class GivenWorkers:
    """Workers whose addresses are given: `host:port` of each, in worker order.

    `environment` is what the variables report about the slice. The workers of other slices are not known.
    """

    origin: str
    addresses: tuple[str, ...]
    environment: TPUEnvironment = field(default_factory=TPUEnvironment)


@dataclass(frozen=True, slots=True)
class WorkersFile:
    """A file that contains the addresses of the workers; the other variables describe the slice."""

    path: str
    origin: str
    environ: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class NamedTPUs:
    """TPUs, or queued resources, to find with the Cloud TPU API; each TPU is a slice.

    Attributes:
        origin: see `LocalTPU`.
        names: ids or full names.
        project: the project that the same source names.
        zone: the zone that the same source names.
        environment: what other variables report about the slice of this process; only `MEGASCALE_*` are used.
    """

    origin: str
    names: tuple[str, ...]
    project: str | None = None
    zone: str | None = None
    environment: TPUEnvironment = field(default_factory=TPUEnvironment)


@dataclass(frozen=True, slots=True)
class MetadataSource:
    """No TPU is named: the metadata server of this VM may report the slice that the VM belongs to.

    `tried` are the sources that name no TPU, one line each; of `environment` only `MEGASCALE_*` are used.
    """

    tried: tuple[str, ...]
    environment: TPUEnvironment = field(default_factory=TPUEnvironment)


Source: TypeAlias = LocalTPU | GivenWorkers | WorkersFile | NamedTPUs | MetadataSource


def tpu_source(tpu: tuple[str, ...], environ: Mapping[str, str]) -> Source:
    """Return what names the workers: `tpu` (see `validate_tpu`), or the first variable that is set."""
    if tpu:
        return _named("tpu", tpu)
    if endpoints := environ.get(ENDPOINTS_VARIABLE):
        origin = f"${ENDPOINTS_VARIABLE}"
        # They are the workers of TPU nodes: this process is not one of them.
        environment = replace(_environment(environ), worker_id=None)
        return GivenWorkers(origin, worker_addresses(endpoints, origin), environment)
    if variable := _host_variable(environ):
        origin = f"${variable}"
        if variable == PATH_VARIABLE:
            return WorkersFile(environ[variable], origin, environ)
        return _given_workers(environ[variable], origin, origin, environ)
    if name := environ.get("TPU_NAME"):
        named = _named("$TPU_NAME", validate_tpu(name, "$TPU_NAME"))
    elif config := environ.get("TPU_CONFIG"):
        named = _from_tpu_config(config)
    else:
        unset = ", ".join(
            f"${name}" for name in (ENDPOINTS_VARIABLE, *HOST_VARIABLES, "TPU_NAME", "TPU_CONFIG")
        )
        named = MetadataSource(("no name or address was given", f"{unset} are not set"))
    if isinstance(named, NamedTPUs | MetadataSource):
        return replace(named, environment=_variables(environ, ("MEGASCALE_",)))
    return named


async def read_workers(file: WorkersFile, progress: Progress) -> GivenWorkers:
    """Return the workers in the file, which is read in a thread: its file system may hang."""
    progress.waiting(file.path, "not read yet")
    where = f"the file {file.path!r} of {file.origin}"
    try:
        text = await run_in_thread(f"read {file.path}", Path(file.path).read_text)
    except (OSError, ValueError) as error:
        # As in JAX, the other variables are not used instead: they may name other workers.
        raise ConfigurationError(
            f"{where} could not be read: {error}",
            hint="Check that the file is mounted, or unset the variable.",
        ) from error
    progress.ready(file.path)
    return _given_workers(text, file.origin, where, file.environ)


def environment_task_id(environ: Mapping[str, str]) -> int | None:
    """Return the task index of this process: `$TPU_WORKER_ID`, if GKE's variables name the workers.

    It is None otherwise, and in a pod without a TPU, such as the leader of a LeaderWorkerSet, which has -1.
    """
    if environ.get(ENDPOINTS_VARIABLE) or _host_variable(environ) is None:
        return None
    return _environment(environ).worker_id


# Names and addresses


def validate_tpu(tpu: Any, where: str = "tpu") -> tuple[str, ...]:
    """Return the names or addresses in the `tpu` argument; empty if it is None or empty text."""
    if tpu is None or tpu == "":
        return ()
    entries = [tpu] if isinstance(tpu, str) else tpu
    if not isinstance(entries, Sequence) or not all(isinstance(text, str) for text in entries):
        raise invalid_value(
            where,
            f"{tpu!r} is not text or a list of texts",
            "Pass the name of a TPU, the address of a worker such as 'grpc://10.0.0.7:8470', a list of"
            " either, or 'local'.",
        )
    names = tuple(name for text in entries for name in _list_entries(text))
    if not names or not all(names):
        raise invalid_value(where, f"{tpu!r} has an empty name", "Name at least one TPU, or pass None.")
    if len({name if name == LOCAL else is_address(name) for name in names}) > 1:
        raise invalid_value(
            where,
            f"{tpu!r} mixes names, addresses or 'local'",
            "Pass only names, only addresses, or 'local'.",
        )
    return names


def invalid_value(where: str, summary: str, hint: str) -> ConfigurationError:
    """Return the error for a value of `where`: a Python argument, or anything else, such as `$TPU_NAME`."""
    if where.islower():  # an argument; the names of variables have capitals
        return ConfigurationError(summary, argument=where, hint=hint)
    return ConfigurationError(f"{where}: {summary}", hint=hint)


def is_address(text: str) -> bool:
    """Return whether `text` is an address. The name of a TPU contains no `:` and no `.`."""
    return text.startswith(SCHEME) or ("/" not in text and not {":", "."}.isdisjoint(text))


def worker_addresses(text: str, where: str) -> tuple[str, ...]:
    """Return the addresses in a comma-separated list, each `host:port`; `where` contains the list."""
    addresses: dict[tuple[str, int], str] = {}
    for entry in text.strip().removesuffix(",").split(","):
        address = worker_address(entry.strip(), where)
        host, port = split_host_port(address)
        if addresses.setdefault((_normalized(host), port), address) is not address:
            raise invalid_value(where, f"{text!r} names {address} twice", "Name each worker once.")
    return tuple(addresses.values())


def worker_address(text: str, where: str) -> str:
    """Return `host:port` of one address, by default with port 8470."""
    host, port = _host_and_port(text, where)
    return host_port(host, TPU_PORT if port is None else port)


def worker_host(text: str, where: str) -> str:
    """Return the host of one address, without its port; errors are those of `worker_address`."""
    return _host_and_port(text, where)[0]


def _host_and_port(text: str, where: str) -> tuple[str, int | None]:
    bare = text.removeprefix(SCHEME)
    with suppress(ValueError):
        ipaddress.IPv6Address(bare)
        return bare, None
    match = _ADDRESS.fullmatch(bare)
    if match is None or not 0 < int(match["port"] or 1) < 65536:
        raise invalid_value(
            where,
            f"{text!r} is not the address of a worker",
            "Write host:port, such as '10.0.0.7:8470', with an IPv6 address in brackets.",
        )
    return match["host"].strip("[]"), int(match["port"]) if match["port"] else None


def _normalized(host: str) -> str:
    """Return the same text for every spelling of a host, of which IPv6 addresses have several."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def _list_entries(text: str) -> list[str]:
    """Return the entries of a comma-separated list; if the first is `grpc://host`, all are hosts."""
    entries = [entry.strip() for entry in text.split(",")]
    if text.startswith(SCHEME):
        return [f"{SCHEME}{entry.removeprefix(SCHEME)}" if entry else "" for entry in entries]
    return entries


def _named(origin: str, names: tuple[str, ...]) -> Source:
    if names == (LOCAL,):
        return LocalTPU(origin)
    if is_address(names[0]):
        return GivenWorkers(origin, worker_addresses(",".join(names), origin))
    return NamedTPUs(origin, names)


def _from_tpu_config(config: str) -> Source:
    """Return the source that the JSON in `TPU_CONFIG` names."""
    try:
        fields = json.loads(config)
    except ValueError as error:
        raise ConfigurationError(
            f"$TPU_CONFIG is not valid JSON ({error})",
            hint='Write it as {"tpu_node_name": "my-tpu", "project": "...", "zone": "..."}.',
        ) from error
    name = fields.get("tpu_node_name") if isinstance(fields, dict) else None
    if not isinstance(name, str) or not name:
        raise ConfigurationError("$TPU_CONFIG has no tpu_node_name", hint="Add it, or unset the variable.")
    source = _named("$TPU_CONFIG", validate_tpu(name, "$TPU_CONFIG's tpu_node_name"))
    if not isinstance(source, NamedTPUs):
        return source
    return replace(source, project=fields.get("project") or None, zone=fields.get("zone") or None)


# The variables of GKE


def _host_variable(environ: Mapping[str, str]) -> str | None:
    """Return the variable of GKE that names the workers, or None."""
    # Colab and Kaggle set `local` if there is no other process.
    return next(
        (name for name in HOST_VARIABLES if environ.get(name, "").strip(", ") not in ("", LOCAL)), None
    )


def _given_workers(text: str, origin: str, where: str, environ: Mapping[str, str]) -> GivenWorkers:
    """Return the workers in a comma-separated list of processes, which `where` contains."""
    addresses: list[str] = []
    ports: dict[str, list[int | None]] = {}  # those of the processes of each host
    for host, port in _process_list(text, origin):
        others = ports.setdefault(host, [])
        if port is not None and port in others:
            raise invalid_value(
                where, f"{text!r} names {host_port(host, port)} twice", "Each process has its own port."
            )
        # Each process of a host needs another port than libtpu's for what the cluster is used for.
        addresses.append(host_port(host, TPU_PORT + len(others)))
        others.append(port)
    if not addresses:
        raise ConfigurationError(f"{where} contains no address", hint="Unset the variable.")
    environment = _environment(environ)
    validate_index(addresses, environment.worker_id, "$TPU_WORKER_ID", where)
    if origin != f"${HOST_VARIABLES[-1]}":
        _validate_counts(len(addresses), {*ports}, environment.process_bounds, where, environ)
    return GivenWorkers(origin, tuple(addresses), environment)


def _process_list(text: str, origin: str) -> list[tuple[str, int | None]]:
    """Return host and port of each process; a host always in the same spelling."""
    entries = [_host_and_port(entry.strip(), origin) for entry in text.split(",") if entry.strip()]
    spellings: dict[str, str] = {}
    return [(spellings.setdefault(_normalized(host), host), port) for host, port in entries]


def _validate_counts(
    processes: int, hosts: set[str], bounds: tuple[int, ...] | None, where: str, environ: Mapping[str, str]
) -> None:
    """Raise an error if a list of processes does not fit the bounds, or the list of hosts."""
    variable = HOST_VARIABLES[-1]
    listed = {host for host, _ in _process_list(environ.get(variable, ""), f"${variable}")}
    # The list may be unset. GKE sets it to `localhost` in some pods of slices with several hosts.
    is_other_list = not (LOCAL_HOSTS.issuperset(listed) or LOCAL_HOSTS.issuperset(hosts))
    problem = ""
    if bounds is not None and math.prod(bounds) != processes:
        given = environ["TPU_PROCESS_BOUNDS"]
        problem = f"{processes} processes, but $TPU_PROCESS_BOUNDS={given} are {math.prod(bounds)}"
    elif is_other_list and len(listed) != len(hosts):
        number = f"{len(listed)} hosts"
        problem = f"processes on {len(hosts)} hosts, but ${variable}={environ[variable]} has {number}"
    if problem:
        raise ConfigurationError(
            f"{where} has {problem}", hint="Correct or unset the variable that is wrong."
        )


def validate_index(addresses: Sequence[str], worker_id: int | None, index_name: str, where: str) -> None:
    """Raise a ConfigurationError if the index of this process is not in the list of those of its slice.

    `index_name` and `where` say what contains the index and the list.
    """
    if worker_id is not None and worker_id >= len(addresses):
        number = f"{len(addresses)} process{'' if len(addresses) == 1 else 'es'}"
        raise ConfigurationError(
            f"{index_name}={worker_id} is out of range: {where} has {number}",
            hint="Processes are numbered from 0, and a host with several processes is listed once for each.",
        )


def slice_position(environment: TPUEnvironment) -> tuple[int, int]:
    """Return the index of a slice, by default 0, and the number of slices, by default 1."""
    index, number = environment.slice_index or 0, environment.num_slices or 1
    if index >= number:
        raise ConfigurationError(
            f"MEGASCALE_SLICE_ID={index} is out of range: MEGASCALE_NUM_SLICES={number}",
            hint="Slices are numbered from 0.",
        )
    return index, number


def _environment(environ: Mapping[str, str]) -> TPUEnvironment:
    """Return what GKE's variables report about the slice."""
    # libtpu reads the second one. A negative index is that of a pod without a TPU: the leader of a group.
    first, second = (environ.get(name, "").strip() for name in ("TPU_WORKER_ID", "CLOUD_TPU_TASK_ID"))
    if first and second and first != second:
        raise ConfigurationError(
            f"$TPU_WORKER_ID={first} contradicts $CLOUD_TPU_TASK_ID={second}",
            hint="Both are the index of this process: unset the wrong one.",
        )
    index = first or second
    values = {**environ, "TPU_WORKER_ID": "" if index.startswith("-") else index}
    return _variables(values, ("TPU_", "MEGASCALE_"))


def _variables(environ: Mapping[str, str], prefixes: tuple[str, ...]) -> TPUEnvironment:
    """Return what variables with these prefixes report: those of `tpu-env` have the prefix `TPU_`."""
    values = {
        name.removeprefix("TPU_"): value for name, value in environ.items() if name.startswith(prefixes)
    }

    def malformed(name: str, problem: str) -> ConfigurationError:
        variable = name if name.startswith("MEGASCALE_") else f"TPU_{name}"
        return ConfigurationError(f"${variable}: {problem}", hint="Correct or unset the variable.")

    return tpu_environment(values, malformed)


def tpu_environment(
    values: Mapping[str, str], malformed: Callable[[str, str], ResolveError]
) -> TPUEnvironment:
    """Return what variables, without the prefix `TPU_`, report about a slice.

    `malformed` returns the error for a variable, given its name and the problem with its value.
    """

    def numbers(name: str) -> tuple[int, ...] | None:
        value = values.get(name, "").strip()
        parts = [part.strip() for part in value.removesuffix(",").split(",")]
        if value and not all(map(NUMBER.fullmatch, parts)):
            raise malformed(name, f"{value!r} is not a comma-separated list of numbers")
        return tuple(map(int, parts)) if value else None

    def number(name: str) -> int | None:
        value = values.get(name, "").strip()
        if value and NUMBER.fullmatch(value) is None:
            raise malformed(name, f"{value!r} is not a number from 0")
        return int(value) if value else None

    return TPUEnvironment(
        accelerator_type=values.get("ACCELERATOR_TYPE") or None,
        topology=values.get("TOPOLOGY") or None,
        chips_per_host_bounds=numbers("CHIPS_PER_HOST_BOUNDS"),
        host_bounds=numbers("HOST_BOUNDS"),
        process_bounds=numbers("PROCESS_BOUNDS"),
        worker_id=number("WORKER_ID"),
        runtime_metrics_ports=numbers("RUNTIME_METRICS_PORTS") or (),
        slice_index=number("MEGASCALE_SLICE_ID"),
        num_slices=number("MEGASCALE_NUM_SLICES"),
        coordinator=values.get("MEGASCALE_COORDINATOR_ADDRESS", "").strip() or None,
    )
