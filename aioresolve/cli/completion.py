"""`aioresolve completion`: the script that makes a shell complete commands, options and their values."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aioresolve.errors import ConfigurationError

from . import streams

if TYPE_CHECKING:
    from collections.abc import Sequence

EPILOG = """\
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


@click.command(epilog=EPILOG, short_help="The completion script for a shell.")
@click.argument("shell", type=click.Choice([*FILES, "install"]))
@click.argument("installed", metavar="[bash|zsh|fish]", required=False, type=click.Choice([*FILES]))
@click.pass_context
def completion(context: click.Context, shell: str, installed: str | None) -> None:
    """Print the script that makes SHELL complete commands, options and their values, or install it.

    Contexts are read from the kubeconfig. `install` writes the script for bash, zsh or fish, by default the
    shell of $SHELL, where that shell finds it.
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
    # The fish script of click splits each candidate at all commas, also at those of its description.
    return script.replace('string split "," ', 'string split --max 1 "," ')


def find_contexts(given: Sequence[str] = ()) -> list[str]:
    """Return the contexts of kubeconfigs, by default those of the environment; none if one cannot be read."""
    from aioresolve.kubernetes.auth.kubeconfig import merge_kubeconfigs, parse_kubeconfig

    # The same files that a command would read.
    named = given or (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
    paths = [Path(path).expanduser() for path in named if path]
    try:
        config = merge_kubeconfigs(
            [parse_kubeconfig(path.read_bytes(), str(path)) for path in paths if path.exists()]
        )
    except (ConfigurationError, OSError):
        return []
    return sorted(config.contexts)


def complete_contexts(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the contexts that start with `incomplete`."""
    return [
        name for name in find_contexts(context.params.get("kubeconfig") or ()) if name.startswith(incomplete)
    ]
