"""What a shell completes as the value of an option: contexts, namespaces and labels of pods."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aioresolve.errors import ConfigurationError, ResolveError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import click

    from aioresolve.kubernetes.api.objects import ObjectMeta
    from aioresolve.kubernetes.auth.connection import Connection

TIMEOUT = 2.0
"""Seconds that the cluster has to list its namespaces or pods, while the user waits for the shell."""

OPTIONS = ("kubeconfig", "context", "server", "token_file", "impersonate", "impersonate_groups")
"""The options that say which cluster it is, by their arguments of the Python API."""


def find_contexts(given: Sequence[str] = ()) -> list[str]:
    """Return the contexts of kubeconfigs, by default those of the environment; none if one cannot be read."""
    from aioresolve.kubernetes.auth.kubeconfig import merge_kubeconfigs, parse_kubeconfig

    # The same files that a command would read.
    named = given or os.environ.get("KUBECONFIG", "").split(os.pathsep)
    paths = [Path(path).expanduser() for path in named if path] or [Path.home() / ".kube" / "config"]
    try:
        config = merge_kubeconfigs(
            [parse_kubeconfig(path.read_bytes(), str(path)) for path in paths if path.exists()]
        )
    except (ConfigurationError, OSError):
        return []
    return sorted(config.contexts)


async def find_connection(arguments: Mapping[str, Any]) -> Connection:
    """Return the API server that the options of a command select."""
    from aioresolve.kubernetes.auth import find_connection, search_for

    return await find_connection(search_for(**{name: arguments.get(name) or None for name in OPTIONS}))


def complete_contexts(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the contexts that start with `incomplete`."""
    return [
        name for name in find_contexts(context.params.get("kubeconfig") or ()) if name.startswith(incomplete)
    ]


def complete_namespaces(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the namespaces that start with `incomplete`; none if the cluster does not list them in time."""
    import asyncio

    namespaces = asyncio.run(_list_metadata(context.params, lambda _: "/api/v1/namespaces"))
    return sorted({each.name for each in namespaces if each.name.startswith(incomplete)})


def complete_selectors(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return selectors that start with `incomplete` and end with a label of a pod, such as `app=trainer`."""
    import asyncio

    given = context.params

    def path(connection: Connection) -> str:
        if given.get("all_namespaces"):
            return "/api/v1/pods"
        namespace = given.get("namespace") or connection.namespace or "default"
        return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"

    pods = asyncio.run(_list_metadata(given, path))
    labels = {f"{key}={value}" for each in pods for key, value in each.labels.items()}
    before, comma, term = incomplete.rpartition(",")
    job, equals, selector = term.partition("=")
    for start, label_start in (("", term), (job + equals, selector)):
        found = sorted(label for label in labels if label.startswith(label_start))
        if found:
            return [f"{before}{comma}{start}{label}" for label in found]
    return []


async def _list_metadata(given: Mapping[str, Any], path: Callable[[Connection], str]) -> list[ObjectMeta]:
    """Return the metadata of the objects in a list of the cluster; nothing if it does not respond in time."""
    import anyio

    from aioresolve.kubernetes.api.client import open_api

    with anyio.move_on_after(TIMEOUT), suppress(ResolveError):
        connection = await find_connection(given)
        async with open_api(connection) as api:
            return list(await api.metadata(path(connection)) or ())
    return []
