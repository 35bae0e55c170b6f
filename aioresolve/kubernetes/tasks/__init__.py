"""How pods become tasks: which are members, at which address, and in which order."""
