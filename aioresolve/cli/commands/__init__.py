"""The subcommands of `aioresolve`, one file each."""
