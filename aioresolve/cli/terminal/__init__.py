"""The terminal: streams, progress and live views."""
