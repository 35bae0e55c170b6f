"""What a shell completes as the value of an option: contexts and namespaces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError, ResolveError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import click

NAMESPACES_TIMEOUT = 2.0
"""Seconds that the cluster has to list its namespaces, while the user waits for the shell."""

MAX_NAMESPACES = 500

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

    names = asyncio.run(_namespaces(context.params))
    return sorted(name for name in names if name.startswith(incomplete))


async def _namespaces(given: Mapping[str, Any]) -> list[str]:
    import anyio
    import msgspec

    from aioresolve.kubernetes.auth import CredentialCache, find_connection, validate_overrides
    from aioresolve.kubernetes.client import AiohttpTransport

    query = {"limit": str(MAX_NAMESPACES)}
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    with anyio.move_on_after(NAMESPACES_TIMEOUT):
        try:
            connection = await find_connection(
                kubeconfig=given.get("kubeconfigs") or None,
                context=given.get("context"),
                overrides=validate_overrides(**{name: given.get(name) for name in OVERRIDES}),
                cache=CredentialCache(),
            )
            transport = AiohttpTransport(connection)
            try:
                response = await transport.get("/api/v1/namespaces", query, accept)
            finally:
                await transport.aclose()
            return [item["metadata"]["name"] for item in msgspec.json.decode(response.body)["items"]]
        except (ResolveError, msgspec.DecodeError, KeyError, TypeError):
            return []
    return []
