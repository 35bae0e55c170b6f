"""The terminal: output streams, progress and live views."""
