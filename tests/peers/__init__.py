"""Slotdeck beside other servers, on the same weights and the same machine: ``python -m tests.peers``."""
