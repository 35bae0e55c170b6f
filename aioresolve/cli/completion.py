"""What a shell completes as the value of an option: contexts, namespaces and labels of pods."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click
import msgspec

from aioresolve.errors import ConfigurationError, ResolveError

from . import streams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aioresolve.kubernetes.auth.connection import Connection

TIMEOUT = 2.0
"""Seconds that the cluster has to list its namespaces or pods, while the user waits for the shell."""

MAX_OBJECTS = 500
"""The maximum number of namespaces, or of pods of a namespace, whose names or labels are completed."""

OPTIONS = ("kubeconfig", "context", "server", "token_file", "impersonate", "impersonate_groups")
"""The options that say which cluster it is, by their arguments of the Python API."""


def complete_contexts(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the contexts that start with `incomplete`; none if a kubeconfig cannot be read."""
    from aioresolve.kubernetes.auth.kubeconfig import merge_kubeconfigs, parse_kubeconfig

    # The same files that the command would read.
    given = context.params.get("kubeconfig") or os.environ.get("KUBECONFIG", "").split(os.pathsep)
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
        namespaces = given.get("namespace") or (connection.namespace or "default",)
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

    from aioresolve.kubernetes.api.transport import AiohttpTransport
    from aioresolve.kubernetes.auth import find_connection, search_for

    query = {"limit": str(MAX_OBJECTS)}
    headers = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"}
    with anyio.move_on_after(TIMEOUT):
        try:
            connection = await find_connection(
                search_for(**{name: given.get(name) or None for name in OPTIONS})
            )
            transport = AiohttpTransport(connection)
            try:
                responses = [
                    await transport.send("GET", path, query, headers=headers) for path in paths(connection)
                ]
            finally:
                await transport.aclose()
            lists = [msgspec.json.decode(response.body)["items"] for response in responses]
            return [item["metadata"] for items in lists for item in items]
        except (ResolveError, msgspec.DecodeError, KeyError, TypeError):
            return []
    return []


COMPLETION_EPILOG = """\
\b
Examples:
  source <(aioresolve completion bash)                                           # in ~/.bashrc
  source <(aioresolve completion zsh)                                            # in ~/.zshrc
  aioresolve completion fish > ~/.config/fish/completions/aioresolve.fish
"""


SCRIPT_CORRECTIONS = (
    # The fish script of click splits each candidate at all commas, also at those of its description.
    ('string split "," ', 'string split --max 1 "," '),
    # bash splits words at `=` too, and replaces only the part after the last one.
    (
        """\
    local response

    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD""",
        """\
    local response words=() cword=0 i

    for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
        if ((i > 0)) && [[ ${COMP_WORDS[i]} == =* || ${COMP_WORDS[i - 1]} == *= ]]; then
            words[-1]+=${COMP_WORDS[i]}
        else
            words+=("${COMP_WORDS[i]}")
        fi
        ((i == COMP_CWORD)) && cword=$((${#words[@]} - 1))
    done
    local word=${words[cword]}
    local replaced=$word
    [[ $COMP_WORDBREAKS == *=* ]] && replaced=${word##*=}

    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$cword""",
    ),
    ("COMPREPLY+=($value)", 'COMPREPLY+=("${value#"${word%"$replaced"}"}")'),
)
"""Corrections of the scripts of click: texts, and what replaces them."""


@click.command(epilog=COMPLETION_EPILOG, short_help="The completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands, options and their values.

    Contexts are read from the kubeconfig, and namespaces and labels of pods from the cluster.
    """
    from click.shell_completion import ShellComplete, get_completion_class

    root = context.find_root()
    name = root.info_name or ""
    completer = get_completion_class(shell)
    assert completer is not None
    # The method of the base class: that of bash would first start a bash, to check its version.
    script = ShellComplete.source(completer(root.command, {}, name, f"_{name.upper()}_COMPLETE"))
    for old, new in SCRIPT_CORRECTIONS:
        script = script.replace(old, new)
    streams.write_stdout(script)
