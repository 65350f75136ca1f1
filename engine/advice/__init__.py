"""What the numbers mean: findings of the doctor. Pure: frames in, advice out; no torch, no I/O, no clock."""
