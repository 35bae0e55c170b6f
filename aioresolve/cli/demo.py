"""`aioresolve demo`: a training job on a loopback cluster, resolved for real."""

from __future__ import annotations

import click

from aioresolve.errors import ResolveError

from . import streams
from .options import verbose_option

__all__ = ["demo"]


@click.command(short_help="See it work on a loopback cluster; none of your own is needed.")
@verbose_option
def demo() -> None:
    """Resolve a training job on a Kubernetes API server on loopback, with TLS and a bearer token.

    It is the code and the protocol that a real cluster sees. Nothing is left behind.
    """
    try:
        # Here and not above: nobody else is to pay for a server.
        from .loopback import sections

        text = streams.sections_text(sections())
    except (ResolveError, OSError) as error:
        raise click.ClickException(f"the demo failed: {error}") from error
    streams.write(text)
