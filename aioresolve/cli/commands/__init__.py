"""The subcommands: one module each, with the options of the command and what it does.

The modules import click at the top and everything else inside functions: `--help` and shell completion import
the modules but run no command, and must not pay for asyncio, aiohttp or grpc.
"""
