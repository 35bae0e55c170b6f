"""What the commands print: pure functions from values to text."""
