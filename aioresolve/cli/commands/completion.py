"""`aioresolve completion`: the shell completion scripts."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from aioresolve.cli.terminal import streams

__all__ = ["completion"]

EPILOG = """\
\b
Examples:
  source <(aioresolve completion bash)                                           # in ~/.bashrc
  source <(aioresolve completion zsh)                                            # in ~/.zshrc
  aioresolve completion fish > ~/.config/fish/completions/aioresolve.fish
"""


@click.command(epilog=EPILOG, short_help="The completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands, options, choices and contexts."""
    root = context.find_root()
    name = root.info_name or ""
    completer = get_completion_class(shell)
    assert completer is not None
    # The method of the base class: that of bash would first start a bash, to check its version.
    streams.write_stdout(ShellComplete.source(completer(root.command, {}, name, f"_{name.upper()}_COMPLETE")))
