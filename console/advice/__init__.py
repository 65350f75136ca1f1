"""What the numbers mean: findings of the doctor, capacity and plans, settings for other servers.

Pure: numbers and frames in, advice out; no torch, no I/O, no clock.
"""
