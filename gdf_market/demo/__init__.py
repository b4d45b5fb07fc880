"""The demonstration market: real processes on this machine, run through the same commands that users type."""
