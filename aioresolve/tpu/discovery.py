"""Which source names the TPU workers: the `tpu` argument, environment variables, or this VM.

The first source that is set is used: the argument, the variables of TensorFlow's Cloud TPU client
(`KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS`, `TPU_NAME`, `TPU_CONFIG`), and between them the variables that GKE sets in
the pods of a slice, in the order of JAX (`jax/_src/clusters/cloud_tpu_cluster.py`): the file of
`TPU_PROCESS_ADDRESSES_PATH`, `TPU_PROCESS_ADDRESSES`, `TPU_WORKER_HOSTNAMES`. `TPU_WORKER_ID` is the index of
this pod among them, and `MEGASCALE_*` describes the slices if there are several. Only that file is read, by
`read_workers`.

Worker addresses are written as TensorFlow writes them: `grpc://10.0.0.1:8470,grpc://10.0.0.2`. The default
port is 8470.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from aioresolve._core.concurrency import run_in_thread
from aioresolve.errors import ConfigurationError
from aioresolve.gcp.tpu_env import TPUEnvironment
from aioresolve.spec import host_port

if TYPE_CHECKING:
    from aioresolve._core.deadline import Progress

TPU_PORT = 8470
"""The default port of the TensorFlow server of a TPU worker."""

SCHEME = "grpc://"

LOCAL = "local"

ENDPOINTS_VARIABLE = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"

PATH_VARIABLE = "TPU_PROCESS_ADDRESSES_PATH"

HOST_VARIABLES = (PATH_VARIABLE, "TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
"""GKE's variables, in order of precedence: GKE sets the last one to `localhost` in some pods of slices with
several hosts. Their ports belong to libtpu's own network, not to a TensorFlow server."""

_ADDRESS = re.compile(r"(?P<host>\[[^\]\s]+\]|[^\s:/\[\],]+)(?::(?P<port>[0-9]{1,5}))?")
_NUMBER = re.compile(r"[0-9]{1,6}")
_WORKER_ID = re.compile(r"-?[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class LocalTPU:
    """The TPU of this host: no worker can be reached over the network."""

    origin: str


@dataclass(frozen=True, slots=True)
class GivenWorkers:
    """Workers whose addresses are given.

    Attributes:
        origin: where they are named: `tpu` (the argument) or `$VARIABLE`.
        addresses: `host:port` of each worker, in worker order.
        environment: what the variables report about the slice.
        slice_index: the index of this slice, from 0. The workers of other slices are not known here.
        num_slices: the number of slices.
    """

    origin: str
    addresses: tuple[str, ...]
    environment: TPUEnvironment = field(default_factory=TPUEnvironment)
    slice_index: int = 0
    num_slices: int = 1


@dataclass(frozen=True, slots=True)
class WorkersFile:
    """A file that contains the addresses of the workers.

    Attributes:
        path: the path of the file.
        workers: the workers without their addresses.
    """

    path: str
    workers: GivenWorkers

    @property
    def origin(self) -> str:
        """The variable that names the file."""
        return self.workers.origin


@dataclass(frozen=True, slots=True)
class NamedTPUs:
    """TPUs, or queued resources, to find with the Cloud TPU API; each TPU is a slice.

    Attributes:
        origin: where they are named: `tpu` (the argument) or `$VARIABLE`.
        names: ids or full names.
        project: the project that the same source names.
        zone: the zone that the same source names.
    """

    origin: str
    names: tuple[str, ...]
    project: str | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class MetadataSource:
    """No TPU is named: the metadata server of this VM may report the slice that the VM belongs to.

    Attributes:
        tried: the sources that name no TPU, one line each.
        slice_index: the index of the slice, from 0, if `$MEGASCALE_SLICE_ID` is set.
        num_slices: the number of slices, if `$MEGASCALE_NUM_SLICES` is set.
    """

    tried: tuple[str, ...]
    slice_index: int | None = None
    num_slices: int | None = None


Source: TypeAlias = LocalTPU | GivenWorkers | WorkersFile | NamedTPUs | MetadataSource


def tpu_source(tpu: tuple[str, ...], environ: Mapping[str, str]) -> Source:
    """Return the source of the workers: the argument, or the first variable that is set.

    Args:
        tpu: the argument, as `validate_tpu` returns it; empty if it was not given.
        environ: the environment variables.

    Raises:
        ConfigurationError: the first source that is set is invalid.
    """
    if tpu:
        return _named("tpu", tpu)
    if endpoints := environ.get(ENDPOINTS_VARIABLE):
        origin = f"${ENDPOINTS_VARIABLE}"
        return GivenWorkers(origin, worker_addresses(endpoints, origin), _environment(environ))
    if variable := _host_variable(environ):
        return _gke_slice(variable, environ)
    if name := environ.get("TPU_NAME"):
        return _named("$TPU_NAME", validate_tpu(name, "$TPU_NAME"))
    if config := environ.get("TPU_CONFIG"):
        return _from_tpu_config(config)
    variables = (ENDPOINTS_VARIABLE, *HOST_VARIABLES, "TPU_NAME", "TPU_CONFIG")
    unset = ", ".join(f"${name}" for name in variables)
    tried = ("no name or address was given", f"{unset} are not set")
    return MetadataSource(tried, *_megascale(environ))


async def read_workers(file: WorkersFile, progress: Progress) -> GivenWorkers:
    """Return the workers in the file, which is read in a thread: its file system may hang.

    Raises:
        ConfigurationError: the file cannot be read, or is invalid.
    """
    progress.waiting(file.path, "not read yet")
    text = await run_in_thread(f"read {file.path}", _read_addresses, file.path)
    progress.ready(file.path)
    where = f"the file {file.path!r} of {file.origin}"
    return replace(file.workers, addresses=_host_addresses(text, file.origin, where))


def environment_task_id(environ: Mapping[str, str]) -> int | None:
    """Return the task index of this process: `$TPU_WORKER_ID`, if GKE's variables name the workers.

    It is None otherwise, and in a pod without a TPU, such as the leader of a LeaderWorkerSet, which has -1.

    Raises:
        ConfigurationError: the variable is not a number.
    """
    if environ.get(ENDPOINTS_VARIABLE) or _host_variable(environ) is None:
        return None
    return _worker_id(environ)


def validate_tpu(tpu: Any, where: str = "tpu") -> tuple[str, ...]:
    """Return the names or addresses in the `tpu` argument; empty if it is None or empty text.

    Raises:
        ConfigurationError: it is not text or a list of texts, or has an empty or repeated entry.
    """
    if tpu is None or tpu == "":
        return ()
    entries = [tpu] if isinstance(tpu, str) else tpu
    if not isinstance(entries, Sequence) or isinstance(entries, bytes):
        raise invalid_value(
            where,
            f"{tpu!r} is not text or a list of texts",
            "Pass the name of a TPU, the address of a worker such as 'grpc://10.0.0.7:8470', a list of"
            " either, or 'local'.",
        )
    if not entries:
        raise invalid_value(where, f"{tpu!r} is empty", "Name at least one TPU, or pass None.")
    if not all(isinstance(text, str) and text for text in entries):
        raise invalid_value(
            where, f"{tpu!r} has an entry that is empty or not text", "Pass names or addresses."
        )
    names = tuple(name for text in entries for name in _list_entries(text))
    if not all(names):
        raise invalid_value(where, f"{tpu!r} contains an empty name", "Remove the extra comma.")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise invalid_value(where, f"{tpu!r} names {', '.join(repeated)} twice", "Name each TPU once.")
    if LOCAL in names and len(names) > 1:
        raise invalid_value(
            where,
            f"{tpu!r} combines 'local' with other TPUs",
            "Pass 'local' alone: it is the TPU of this host.",
        )
    if len({is_address(name) for name in names}) > 1:
        raise invalid_value(where, f"{tpu!r} mixes names and addresses", "Pass either.")
    return names


def invalid_value(where: str, summary: str, hint: str) -> ConfigurationError:
    """Return the error for an invalid value.

    Args:
        where: the name of a Python argument, or anything else that holds the value, such as `$TPU_NAME`.
        summary: the problem with the value.
        hint: what to change.
    """
    if where.isidentifier() and where.islower():
        return ConfigurationError(summary, argument=where, hint=hint)
    return ConfigurationError(f"{where}: {summary}", hint=hint)


def is_address(text: str) -> bool:
    """Return whether `text` is an address. The name of a TPU contains no `:` and no `.`."""
    return text.startswith(SCHEME) or ("/" not in text and not {":", "."}.isdisjoint(text))


def worker_addresses(text: str, where: str) -> tuple[str, ...]:
    """Return the addresses in a comma-separated list, each `host:port`.

    Args:
        text: the list.
        where: what contains the list, for the error message.

    Raises:
        ConfigurationError: an entry is not an address, or an address is repeated.
    """
    entries = text.strip().removesuffix(",").split(",")
    addresses: dict[str, str] = {}
    for entry in entries:
        address = worker_address(entry.strip(), where)
        if (key := _normalized(address)) in addresses:
            raise invalid_value(where, f"{text!r} names {address} twice", "Name each worker once.")
        addresses[key] = address
    return tuple(addresses.values())


def worker_address(text: str, where: str, port: int = TPU_PORT) -> str:
    """Return `host:port` of one address, with `port` if it has none.

    Raises:
        ConfigurationError: it is not an address.
    """
    host, own_port = _host_and_port(text, where)
    return host_port(host, port if own_port is None else own_port)


def worker_host(text: str, where: str) -> str:
    """Return the host of one address, without its port.

    Raises:
        ConfigurationError: it is not an address.
    """
    return _host_and_port(text, where)[0]


def _host_and_port(text: str, where: str) -> tuple[str, int | None]:
    bare = text.removeprefix(SCHEME)
    if _is_ipv6(bare):
        return bare, None
    match = _ADDRESS.fullmatch(bare)
    port = int(match["port"]) if match is not None and match["port"] is not None else None
    if match is None or port == 0 or (port or 1) > 65535:
        raise invalid_value(
            where,
            f"{text!r} is not the address of a worker",
            "Write host:port, such as '10.0.0.7:8470', with an IPv6 address in brackets.",
        )
    return match["host"], port


def _normalized(address: str) -> str:
    """Return the same text for every spelling of `host:port`, of which IPv6 addresses have several."""
    host, _, port = address.rpartition(":")
    try:
        return f"{ipaddress.ip_address(host.strip('[]'))} {port}"
    except ValueError:
        return f"{host.lower()} {port}"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


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
    return NamedTPUs(source.origin, source.names, fields.get("project") or None, fields.get("zone") or None)


def _host_variable(environ: Mapping[str, str]) -> str | None:
    """Return the variable of GKE that names the workers, or None."""
    # Colab and Kaggle set `local` if there is no other process.
    return next(
        (name for name in HOST_VARIABLES if environ.get(name, "").strip(", ") not in ("", LOCAL)), None
    )


def _gke_slice(variable: str, environ: Mapping[str, str]) -> GivenWorkers | WorkersFile:
    """Return the workers of one slice on GKE, or the file that contains them."""
    origin, value = f"${variable}", environ[variable]
    position = slice_position(*_megascale(environ))
    if variable == PATH_VARIABLE:
        return WorkersFile(value, GivenWorkers(origin, (), _environment(environ), *position))
    return GivenWorkers(origin, _host_addresses(value, origin, origin), _environment(environ), *position)


def _host_addresses(text: str, origin: str, where: str) -> tuple[str, ...]:
    """Return the address of each host in a comma-separated list of processes, which `where` contains."""
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        raise ConfigurationError(f"{where} contains no address", hint="Unset the variable.")
    # Several processes on one host are one worker.
    addresses: dict[str, str] = {}
    for entry in entries:
        address = host_port(worker_host(entry, origin), TPU_PORT)
        addresses.setdefault(_normalized(address), address)
    return tuple(addresses.values())


def _megascale(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the index of the slice and the number of slices; each None if its variable is not set."""
    return _number(environ, "MEGASCALE_SLICE_ID"), _number(environ, "MEGASCALE_NUM_SLICES")


def slice_position(slice_index: int | None, num_slices: int | None) -> tuple[int, int]:
    """Return the index of a slice, by default 0, and the number of slices, by default 1.

    Raises:
        ConfigurationError: the index is out of range.
    """
    index, number = slice_index or 0, num_slices or 1
    if index >= number:
        raise ConfigurationError(
            f"MEGASCALE_SLICE_ID={index} is out of range: MEGASCALE_NUM_SLICES={number}",
            hint="Slices are numbered from 0.",
        )
    return index, number


def _read_addresses(path: str) -> str:
    """Return the text of the file with the addresses of the workers."""
    try:
        return Path(path).read_text()
    except (OSError, ValueError) as error:
        # As in JAX, the other variables are not used instead: they may name other workers.
        raise ConfigurationError(
            f"the file {path!r} of ${PATH_VARIABLE} could not be read: {error}",
            hint="Check that the file is mounted, or unset the variable.",
        ) from error


def _environment(environ: Mapping[str, str]) -> TPUEnvironment:
    """Return what GKE's variables report about the slice: the names of `tpu-env` with the prefix `TPU_`."""
    return TPUEnvironment(
        accelerator_type=environ.get("TPU_ACCELERATOR_TYPE") or None,
        topology=environ.get("TPU_TOPOLOGY") or None,
        chips_per_host_bounds=_numbers(environ, "TPU_CHIPS_PER_HOST_BOUNDS"),
        host_bounds=_numbers(environ, "TPU_HOST_BOUNDS"),
        worker_id=_worker_id(environ),
        runtime_metrics_ports=_numbers(environ, "TPU_RUNTIME_METRICS_PORTS") or (),
    )


def _numbers(environ: Mapping[str, str], variable: str) -> tuple[int, ...] | None:
    text = environ.get(variable)
    if not text:
        return None
    parts = [part.strip() for part in text.removesuffix(",").split(",")]
    if not all(map(_NUMBER.fullmatch, parts)):
        raise ConfigurationError(
            f"${variable}={text!r} is not a list of numbers", hint="Separate them by commas, such as 2,2,1."
        )
    return tuple(map(int, parts))


def _number(environ: Mapping[str, str], variable: str) -> int | None:
    text = environ.get(variable)
    if not text:
        return None
    if _NUMBER.fullmatch(text.strip()) is None:
        raise ConfigurationError(
            f"${variable}={text!r} is not a number from 0", hint="Correct or unset the variable."
        )
    return int(text)


def _worker_id(environ: Mapping[str, str]) -> int | None:
    """Return the index of this pod in its slice; None if it is unknown, or negative: not a worker."""
    text = environ.get("TPU_WORKER_ID", "").strip()
    if not text:
        return None
    if _WORKER_ID.fullmatch(text) is None:
        raise ConfigurationError(
            f"$TPU_WORKER_ID={text!r} is not a number", hint="Correct or unset the variable."
        )
    return int(text) if int(text) >= 0 else None
