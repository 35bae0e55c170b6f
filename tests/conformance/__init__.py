"""One test suite for two API servers: the embedded one and, if its binaries are installed, a real one."""
