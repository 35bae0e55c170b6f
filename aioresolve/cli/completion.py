"""What a shell completes as the value of an option: contexts, namespaces and labels of pods."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from aioresolve.errors import ConfigurationError, ResolveError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import click

    from aioresolve.kubernetes.auth.connection import Connection

TIMEOUT = 2.0
"""Seconds that the cluster has to list its namespaces or pods, while the user waits for the shell."""

MAX_OBJECTS = 500
"""The maximum number of namespaces, or of pods of a namespace, whose names or labels are completed."""

OVERRIDES = ("server", "token_file", "impersonate", "impersonate_groups")
"""The options that replace parts of the kubeconfig, by their arguments of the Python API."""


def complete_contexts(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the contexts that start with `incomplete`; none if a kubeconfig cannot be read."""
    from aioresolve.kubernetes.auth.kubeconfig import merge_kubeconfigs, parse_kubeconfig

    # The same files that the command would read.
    given = context.params.get("kubeconfigs") or os.environ.get("KUBECONFIG", "").split(os.pathsep)
    paths = [Path(path).expanduser() for path in given if path] or [Path.home() / ".kube" / "config"]
    try:
        config = merge_kubeconfigs(
            [parse_kubeconfig(path.read_bytes(), str(path)) for path in paths if path.exists()]
        )
    except (ConfigurationError, OSError):
        return []
    return sorted(name for name in config.contexts if name.startswith(incomplete))


def complete_namespaces(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the namespaces that start with `incomplete`; none if the cluster does not list them in time."""
    import asyncio

    namespaces = asyncio.run(_list_metadata(context.params, lambda _: ["/api/v1/namespaces"]))
    names = {str(namespace["name"]) for namespace in namespaces}
    return sorted(name for name in names if name.startswith(incomplete))


def complete_selectors(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return selectors that start with `incomplete` and end with a label of a pod, such as `app=trainer`."""
    import asyncio

    given = context.params

    def paths(connection: Connection) -> list[str]:
        if given.get("all_namespaces"):
            return ["/api/v1/pods"]
        namespaces = given.get("namespaces") or (connection.namespace or "default",)
        return [f"/api/v1/namespaces/{quote(namespace, safe='')}/pods" for namespace in namespaces]

    pods = asyncio.run(_list_metadata(given, paths))
    labels = {f"{key}={value}" for each in pods for key, value in (each.get("labels") or {}).items()}
    before, comma, term = incomplete.rpartition(",")
    job, equals, selector = term.partition("=")
    for start, label_start in (("", term), (job + equals, selector)):
        found = sorted(label for label in labels if label.startswith(label_start))
        if found:
            return [f"{before}{comma}{start}{label}" for label in found]
    return []


async def _list_metadata(
    given: Mapping[str, Any], paths: Callable[[Connection], Sequence[str]]
) -> list[dict[str, Any]]:
    """Return the metadata of the objects in lists of the cluster; nothing if it does not respond in time."""
    import anyio

    from aioresolve.kubernetes.api.client import AiohttpTransport
    from aioresolve.kubernetes.auth import CredentialCache, find_connection, validate_overrides

    query = {"limit": str(MAX_OBJECTS)}
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    with anyio.move_on_after(TIMEOUT):
        try:
            connection = await find_connection(
                kubeconfig=given.get("kubeconfigs") or None,
                context=given.get("context"),
                overrides=validate_overrides(**{name: given.get(name) for name in OVERRIDES}),
                cache=CredentialCache(),
            )
            transport = AiohttpTransport(connection)
            try:
                responses = [await transport.get(path, query, accept) for path in paths(connection)]
            finally:
                await transport.aclose()
            lists = [msgspec.json.decode(response.body)["items"] for response in responses]
            return [item["metadata"] for items in lists for item in items]
        except (ResolveError, msgspec.DecodeError, KeyError, TypeError):
            return []
    return []
