"""What the engine reports about itself: frames, events, counters, rolling windows, host measurements, history."""
