"""The terminal console of Slotdeck. A process of its own: it watches an engine and commands it."""

import os

# Looking for plug-ins that are not there takes pydantic 8 ms of the console's start.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
