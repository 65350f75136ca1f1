"""The history file: its tables, the recorder that fills it while the engine serves, and the reader."""
