"""What the commands print: functions from values to text and tables, without I/O."""
