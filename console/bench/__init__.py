"""The bench, the calibration of the simulator, and what they print and draw."""
