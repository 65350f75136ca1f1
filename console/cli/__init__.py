"""The command line: attaches to the engine of this user, starts it, or measures it. Never imports torch."""
