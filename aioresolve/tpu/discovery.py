"""Where TPU workers listen, as people and environment variables write it: text -> `host:port`. Pure.

`grpc://10.0.0.1:8470,grpc://10.0.0.2` is how TensorFlow's Cloud TPU client writes it; 8470 is the port where
none is given.

Which source names the workers: the argument, the environment, or the VM itself. Pure.

Variables: those of TensorFlow's Cloud TPU client (`KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS`, `TPU_NAME`,
`TPU_CONFIG`), and what GKE sets in the pods of a slice (`TPU_WORKER_HOSTNAMES` and, newer,
`TPU_PROCESS_ADDRESSES`; `MEGASCALE_*` where the slice is one of several).
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aioresolve.errors import ConfigurationError
from aioresolve.gcp.tpu_env import TpuEnvironment
from aioresolve.spec import host_port

__all__ = [
    "SCHEME",
    "TPU_PORT",
    "GivenWorkers",
    "Local",
    "NamedTPUs",
    "OwnVM",
    "Source",
    "checked_tpu",
    "is_address",
    "tpu_source",
    "worker_address",
    "worker_addresses",
    "worker_host",
]

TPU_PORT = 8470
"""The port of a TPU worker's TensorFlow server where nothing else is said."""

SCHEME = "grpc://"
"""What TensorFlow puts before a worker's address."""

_ADDRESS = re.compile(r"(?P<host>\[[^\]\s]+\]|[^\s:/\[\],]+)(?::(?P<port>[0-9]{1,5}))?")


def is_address(text: str) -> bool:
    """Whether `text` is to be read as an address rather than a TPU's name, which has no `:` and no `.`."""
    return text.startswith(SCHEME) or ("/" not in text and not {":", "."}.isdisjoint(text))


def worker_addresses(text: str, where: str) -> tuple[str, ...]:
    """Return the addresses in a comma-separated list, each `host:port`.

    Args:
        text: the list.
        where: what it is, for the error message.

    Raises:
        ConfigurationError: an entry is no address; it names the entry.
    """
    return tuple(worker_address(entry.strip(), where) for entry in text.split(","))


def worker_address(text: str, where: str, port: int = TPU_PORT) -> str:
    """Return `host:port` of one address, `port` where it has none.

    Raises:
        ConfigurationError: it is no address.
    """
    host, own_port = _host_and_port(text, where)
    return host_port(host, port if own_port is None else own_port)


def worker_host(text: str, where: str) -> str:
    """Return the host of one address alone, whatever port it has.

    Raises:
        ConfigurationError: it is no address.
    """
    return _host_and_port(text, where)[0]


def _host_and_port(text: str, where: str) -> tuple[str, int | None]:
    bare = text.removeprefix(SCHEME)
    if _is_ipv6(bare):
        return bare, None
    found = _ADDRESS.fullmatch(bare)
    port = int(found["port"]) if found is not None and found["port"] is not None else None
    if found is None or port == 0 or (port or 1) > 65535:
        raise ConfigurationError(
            f"{where}: {text!r} is no worker's address; give host:port such as '10.0.0.7:8470', an IPv6"
            " address in brackets"
        )
    return found["host"], port


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


LOCAL = "local"

HOSTS = ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES")
"""Ports in them are those of libtpu's own network, never a TensorFlow server's."""

_RANGE = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class Local:
    """The TPU of this very host: there is no worker to reach over the network."""

    origin: str


@dataclass(frozen=True, slots=True)
class GivenWorkers:
    """Workers whose addresses are given.

    Attributes:
        origin: who named them: `tpu=` or a variable.
        addresses: `host:port` of each, in worker order.
        environment: what the variables say about the slice.
        slice_index: which of several slices this is, from 0; the others' workers are not known here.
        num_slices: how many slices there are.
    """

    origin: str
    addresses: tuple[str, ...]
    environment: TpuEnvironment = field(default_factory=TpuEnvironment)
    slice_index: int = 0
    num_slices: int = 1


@dataclass(frozen=True, slots=True)
class NamedTPUs:
    """TPUs, or queued resources, that the Cloud TPU API is to be asked for; each is a slice.

    Attributes:
        origin: who named them: `tpu=` or a variable.
        names: ids or full names.
        project: the project that was named along with them.
        zone: the zone that was named along with them.
    """

    origin: str
    names: tuple[str, ...]
    project: str | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class OwnVM:
    """Nobody named a TPU: it may be that of the VM this runs on.

    Attributes:
        tried: where a name was looked for, one line each.
    """

    tried: tuple[str, ...]


Source: TypeAlias = Local | GivenWorkers | NamedTPUs | OwnVM


def tpu_source(tpu: tuple[str, ...], environ: Mapping[str, str]) -> Source:
    """Return who names the workers: the first of the argument and the variables that is set.

    Args:
        tpu: what `checked_tpu` made of the argument; empty where none was given.
        environ: the environment variables.

    Raises:
        ConfigurationError: what was found first cannot be understood; it says what and how to mend it.
    """
    if tpu:
        return _named("tpu=", tpu)
    if endpoints := environ.get("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        origin = "$KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"
        return GivenWorkers(origin, worker_addresses(endpoints, origin), _environment(environ))
    for variable in HOSTS:
        # Colab and Kaggle put `local` where there is no other process.
        if (hosts := environ.get(variable)) and hosts != LOCAL:
            return _slice_of_pods(hosts, f"${variable}", environ)
    if name := environ.get("TPU_NAME"):
        return _named("$TPU_NAME", checked_tpu(name, "$TPU_NAME"))
    if config := environ.get("TPU_CONFIG"):
        return _configured(config)
    variables = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", *HOSTS, "TPU_NAME", "TPU_CONFIG")
    return OwnVM(
        ("no name or address was given", f"{', '.join(f'${name}' for name in variables)} are not set")
    )


def checked_tpu(tpu: Any, where: str = "tpu") -> tuple[str, ...]:
    """Return the names or addresses in the `tpu` argument; empty where it is None or empty text.

    Raises:
        ConfigurationError: it is no text or list of texts, or names something twice or nothing at all.
    """
    if tpu is None or tpu == "":
        return ()
    given = [tpu] if isinstance(tpu, str) else tpu
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise ConfigurationError(
            f"{where}={tpu!r}: give a TPU's name, a worker's address such as 'grpc://10.0.0.7:8470', a list"
            " of either, or 'local'"
        )
    if not given:
        raise ConfigurationError(f"{where}={tpu!r}: at least one TPU must be named, or give None")
    if not all(isinstance(text, str) and text for text in given):
        raise ConfigurationError(f"{where}={tpu!r} holds what is no text; give names or addresses")
    names = tuple(name for text in given for name in _parts(text))
    if not all(names):
        raise ConfigurationError(f"{where}={tpu!r} holds an empty name; give names or addresses")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"{where}={tpu!r} names {', '.join(twice)} twice; name each once")
    if LOCAL in names and len(names) > 1:
        raise ConfigurationError(f"{where}={tpu!r}: 'local' is this host's own TPU, and stands alone")
    if len({is_address(name) for name in names}) > 1:
        raise ConfigurationError(f"{where}={tpu!r} mixes names and addresses; give either")
    return names


def _parts(text: str) -> list[str]:
    """Return the parts of a comma-separated list; where one is `grpc://host`, the rest are hosts too."""
    parts = [part.strip() for part in text.split(",")]
    return [f"{SCHEME}{part.removeprefix(SCHEME)}" for part in parts] if text.startswith(SCHEME) else parts


def _named(origin: str, names: tuple[str, ...]) -> Source:
    if names == (LOCAL,):
        return Local(origin)
    if is_address(names[0]):
        return GivenWorkers(origin, worker_addresses(",".join(names), origin))
    return NamedTPUs(origin, names)


def _configured(config: str) -> Source:
    """Return the TPU of `TPU_CONFIG`, which is JSON."""
    try:
        said = json.loads(config)
    except ValueError as error:
        raise ConfigurationError(
            f"$TPU_CONFIG is no JSON ({error}); write it as"
            ' {"tpu_node_name": "my-tpu", "project": "...", "zone": "..."}'
        ) from error
    name = said.get("tpu_node_name") if isinstance(said, dict) else None
    if not isinstance(name, str) or not name:
        raise ConfigurationError("$TPU_CONFIG has no tpu_node_name; add it, or unset the variable")
    found = _named("$TPU_CONFIG", checked_tpu(name, "$TPU_CONFIG's tpu_node_name"))
    if not isinstance(found, NamedTPUs):
        return found
    return NamedTPUs(found.origin, found.names, said.get("project") or None, said.get("zone") or None)


def _slice_of_pods(text: str, origin: str, environ: Mapping[str, str]) -> GivenWorkers:
    """Return the workers of one slice on GKE, one for each host."""
    hosts = dict.fromkeys(worker_host(entry.strip(), origin) for entry in text.split(","))
    num_slices = _number(environ, "MEGASCALE_NUM_SLICES", 1)
    slice_index = _number(environ, "MEGASCALE_SLICE_ID", 0)
    if slice_index >= num_slices:
        raise ConfigurationError(
            f"$MEGASCALE_SLICE_ID={slice_index} is none of $MEGASCALE_NUM_SLICES={num_slices} slices; they"
            " are numbered from 0"
        )
    return GivenWorkers(
        origin,
        tuple(host_port(host, TPU_PORT) for host in hosts),
        _environment(environ),
        slice_index,
        num_slices,
    )


def _environment(environ: Mapping[str, str]) -> TpuEnvironment:
    """Return what GKE's variables say of the slice: the lines of a `tpu-env`, with `TPU_` before them."""
    return TpuEnvironment(
        accelerator_type=environ.get("TPU_ACCELERATOR_TYPE") or None,
        topology=environ.get("TPU_TOPOLOGY") or None,
        chips_per_host_bounds=_numbers(environ, "TPU_CHIPS_PER_HOST_BOUNDS"),
        host_bounds=_numbers(environ, "TPU_HOST_BOUNDS"),
        runtime_metrics_ports=_numbers(environ, "TPU_RUNTIME_METRICS_PORTS") or (),
    )


def _numbers(environ: Mapping[str, str], variable: str) -> tuple[int, ...] | None:
    text = environ.get(variable)
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(map(_RANGE.fullmatch, parts)):
        raise ConfigurationError(f"${variable}={text!r} are no numbers with commas between, such as 2,2,1")
    return tuple(map(int, parts))


def _number(environ: Mapping[str, str], variable: str, default: int) -> int:
    text = environ.get(variable)
    if not text:
        return default
    if _RANGE.fullmatch(text.strip()) is None:
        raise ConfigurationError(f"${variable}={text!r} is no number from 0; correct or unset it")
    return int(text)
