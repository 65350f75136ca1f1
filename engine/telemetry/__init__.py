"""What the engine tells about itself: frames, events, counters, rolling windows, host probes."""
