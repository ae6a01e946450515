"""The local engine: a stack as processes on this machine, with no Docker."""
