"""The two-requests test: does a server queue, batch or share bandwidth, and does it cut prompts without saying so."""
