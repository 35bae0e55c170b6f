"""One suite, two API servers: the embedded one and, where its binaries are at hand, the real one."""
