"""One file a trace format. `traces/formats.py` is the registry."""
