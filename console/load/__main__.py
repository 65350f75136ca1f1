"""`python -m slotdeck.console.load --users 5 --socket PATH`: what the console's key L starts."""

from __future__ import annotations

import typer

from slotdeck.console.load.command import background

if __name__ == "__main__":
    typer.run(background)
