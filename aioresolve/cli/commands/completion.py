"""`aioresolve completion`: the script that makes a shell complete commands, options and their values."""

from __future__ import annotations

import os
from pathlib import Path

import click

from aioresolve.cli import streams

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


@click.command(epilog=EPILOG, short_help="The completion script for a shell.")
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
