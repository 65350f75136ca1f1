"""Scheduler, block pool, waiting queue: pure Python, no torch, no I/O, no clock of its own.

Callers pass ``now`` (seconds on a monotonic clock), so the same code runs in the engine and in a simulation.
"""
