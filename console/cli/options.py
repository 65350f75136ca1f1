"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SocketOption = Annotated[
    Path | None,
    typer.Option(
        "--socket", help="admin socket of the engine; default: this user's", metavar="PATH", show_default=False
    ),
]
