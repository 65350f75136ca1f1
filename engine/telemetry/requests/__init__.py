"""What the engine knows of each request: where its time went, step by step, and why it waited or paused."""
