"""The kinds of targets that a fleet file knows: for each, its resolver and its fields.

A new kind is one entry of `KINDS`. A room is imported when the first target of its kind is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .fields import addresses, choice, paths, selectors, text, text_or_texts, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aioresolve.resolver import ClusterResolver

    from .fields import Reader

__all__ = ["KINDS", "Field", "Kind"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a target.

    Attributes:
        read: how it is read.
        argument: the constructor's name for it, where that is another one.
        is_required: whether a target cannot do without it.
    """

    read: Reader
    argument: str | None = None
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of targets.

    Attributes:
        resolver: makes the resolver of what the fields say; no I/O.
        fields: its fields by name.
    """

    resolver: Callable[..., ClusterResolver]
    fields: Mapping[str, Field]

    def made(self, values: Mapping[str, Any], **others: Any) -> ClusterResolver:
        """Return the resolver of what the fields say, and of arguments that every constructor takes.

        Raises:
            ResolveError: the resolver does not take these.
        """
        arguments = {self.fields[name].argument or name: value for name, value in values.items()}
        return self.resolver(**arguments, **others)


def _kubernetes(**arguments: Any) -> ClusterResolver:
    from aioresolve.kubernetes import KubernetesClusterResolver

    return KubernetesClusterResolver(**arguments)


def _tpu(**arguments: Any) -> ClusterResolver:
    from aioresolve.tpu import TPUClusterResolver

    return TPUClusterResolver(**arguments)


def _static(jobs: Any, **arguments: Any) -> ClusterResolver:
    from aioresolve.spec import ClusterSpec
    from aioresolve.static import SimpleClusterResolver

    return SimpleClusterResolver(ClusterSpec(jobs), **arguments)


KINDS: Mapping[str, Kind] = {
    "kubernetes": Kind(
        _kubernetes,
        {
            "jobs": Field(selectors, "job_to_label_mapping", is_required=True),
            "namespace": Field(text_or_texts),
            "context": Field(text),
            "kubeconfig": Field(paths),
            "executable_location": Field(choice("WITHIN_CLUSTER", "OFF_CLUSTER")),
            "port": Field(whole(1, 65535), "tf_server_port"),
            "address": Field(choice("pod_ip", "pod_ipv4", "pod_ipv6", "host_ip", "hostname")),
            "order_by": Field(choice("name", "index")),
            "not_running": Field(choice("raise", "skip")),
            "rpc_layer": Field(text),
            "max_concurrency": Field(whole(1, 10_000)),
        },
    ),
    "tpu": Kind(
        _tpu,
        {
            "name": Field(text_or_texts, "tpu", is_required=True),
            "project": Field(text),
            "zone": Field(text),
            "job_name": Field(text),
            "discovery_url": Field(text),
            "api_version": Field(choice("v1", "v2")),
        },
    ),
    "static": Kind(
        _static,
        {
            "jobs": Field(addresses, is_required=True),
            "rpc_layer": Field(text),
        },
    ),
}
"""Each kind by its name in a fleet file; `union` is read beside them, for it names other targets."""
