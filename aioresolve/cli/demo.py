"""`aioresolve demo`: a training job and a TPU on loopback, resolved and probed for real."""

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

    Then resolve the two slices of a Cloud TPU there, and probe their workers over gRPC. It is the code and
    the protocols that a real cluster sees. Nothing is left behind.
    """
    streams.hush_grpc()
    try:
        # Here and not above: nobody else is to pay for a server.
        from .loopback import sections
        from .loopback_tpu import tpu_sections

        text = streams.sections_text([*sections(), *tpu_sections()])
    except (ResolveError, OSError) as error:
        raise click.ClickException(f"the demo failed: {error}") from error
    streams.write(text)
