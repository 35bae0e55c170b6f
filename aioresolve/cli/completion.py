"""Shell completion: the scripts, and the names that depend on the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import ShellComplete, get_completion_class

from aioresolve.errors import ConfigurationError

from .terminal import streams

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["completion", "contexts"]

EPILOG = """\
\b
Examples:
  source <(aioresolve completion bash)                                           # in ~/.bashrc
  source <(aioresolve completion zsh)                                            # in ~/.zshrc
  aioresolve completion fish > ~/.config/fish/completions/aioresolve.fish
"""


@click.command(epilog=EPILOG, short_help="The script that completes this command in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete this command: options, choices and --context names."""
    root = context.find_root()
    name = root.info_name or ""
    kind = get_completion_class(shell)
    assert kind is not None
    # The base class's way: bash's own starts a bash first, to see how old it is.
    streams.write(ShellComplete.source(kind(root.command, {}, name, f"_{name.upper()}_COMPLETE")))


def contexts(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of contexts that begin with `incomplete`; none where no kubeconfig can be read."""
    from aioresolve.kubernetes.auth.kubeconfig import merge_kubeconfigs, parse_kubeconfig

    try:
        found = merge_kubeconfigs(
            [
                parse_kubeconfig(path.read_bytes(), str(path))
                for path in _kubeconfigs(context)
                if path.exists()
            ]
        )
    except (ConfigurationError, OSError):
        return []
    return sorted(name for name in found.contexts if name.startswith(incomplete))


def _kubeconfigs(context: click.Context) -> Iterable[Path]:
    """Return the kubeconfigs that the command would read as it is typed so far."""
    named = context.params.get("kubeconfigs") or os.environ.get("KUBECONFIG", "").split(os.pathsep)
    return [Path(path).expanduser() for path in named if path] or [Path.home() / ".kube" / "config"]
