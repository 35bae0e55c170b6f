"""Shared machinery of the package: concurrency, deadlines, HTTP, telemetry. Private."""
