"""The client of an engine's admin API."""
