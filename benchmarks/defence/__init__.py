"""What verification stops, and at what cost: attacks on a market of real units, beside published defences."""
