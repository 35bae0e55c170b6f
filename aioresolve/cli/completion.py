"""What a shell completes as the value of an option: contexts, namespaces and labels of pods."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from aioresolve.errors import ConfigurationError, ResolveError

from . import streams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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

    namespaces = asyncio.run(_list_metadata(context.params, lambda _: ["/api/v1/namespaces"]))
    return sorted({each.name for each in namespaces if each.name.startswith(incomplete)})


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
    labels = {f"{key}={value}" for each in pods for key, value in each.labels.items()}
    before, comma, term = incomplete.rpartition(",")
    job, equals, selector = term.partition("=")
    for start, label_start in (("", term), (job + equals, selector)):
        found = sorted(label for label in labels if label.startswith(label_start))
        if found:
            return [f"{before}{comma}{start}{label}" for label in found]
    return []


async def _list_metadata(
    given: Mapping[str, Any], paths: Callable[[Connection], Sequence[str]]
) -> list[ObjectMeta]:
    """Return the metadata of the objects in lists of the cluster; nothing if it does not respond in time."""
    import anyio

    from aioresolve.kubernetes.api.client import ObjectAPI
    from aioresolve.kubernetes.api.transport import AiohttpTransport

    with anyio.move_on_after(TIMEOUT), suppress(ResolveError):
        connection = await find_connection(given)
        api = ObjectAPI(AiohttpTransport(connection), max_concurrency=1)
        try:
            return [each for path in paths(connection) for each in await api.metadata(path) or ()]
        finally:
            await api.aclose()
    return []


COMPLETION_EPILOG = """\
\b
Examples:
  aioresolve completion install                   # for the shell of $SHELL
  source <(aioresolve completion bash)            # only in this shell
"""

FILES = {
    "bash": "~/.local/share/bash-completion/completions/{name}",
    "zsh": "~/.zfunc/_{name}",
    "fish": "~/.config/fish/completions/{name}.fish",
}
"""Where a script is installed, by the shell."""


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
@click.argument("shell", type=click.Choice([*FILES, "install"]))
@click.argument("installed", metavar="[bash|zsh|fish]", required=False, type=click.Choice([*FILES]))
@click.pass_context
def completion(context: click.Context, shell: str, installed: str | None) -> None:
    """Print the script that makes SHELL complete commands, options and their values, or install it.

    Contexts are read from the kubeconfig, and namespaces and labels of pods from the cluster. `install`
    writes the script for bash, zsh or fish, by default the shell of $SHELL, where that shell finds it.
    """
    if shell != "install":
        streams.write_stdout(_script(context, shell))
        return
    shell = installed or Path(os.environ.get("SHELL", "")).name
    if shell not in FILES:
        raise click.UsageError(
            f"$SHELL is not bash, zsh or fish; pass one: {context.command_path} install bash"
        )
    path = Path(FILES[shell].format(name=context.find_root().info_name)).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_script(context, shell))
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
    how = " and add to ~/.zshrc: fpath+=~/.zfunc; autoload -Uz compinit; compinit" if shell == "zsh" else ""
    streams.write_stderr(f"installed {path}; start a new {shell}{how}\n")


def _script(context: click.Context, shell: str) -> str:
    from click.shell_completion import ShellComplete, get_completion_class

    root = context.find_root()
    name = root.info_name or ""
    completer = get_completion_class(shell)
    assert completer is not None
    # The method of the base class: that of bash would first start a bash, to check its version.
    script = ShellComplete.source(completer(root.command, {}, name, f"_{name.upper()}_COMPLETE"))
    for old, new in SCRIPT_CORRECTIONS:
        script = script.replace(old, new)
    return script
