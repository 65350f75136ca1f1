"""The view that is shown: the newest one, or while paused the one that was kept."""

from __future__ import annotations

from collections.abc import Callable

from slotdeck.console.state.store import Store, View


class Display:
    """Pauses and resumes the view. The store keeps following the engine. ``clock`` is monotonic seconds."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._kept: View | None = None
        self._since = 0.0

    @property
    def paused(self) -> bool:
        """True while an old view is kept on the screen."""
        return self._kept is not None

    @property
    def paused_for(self) -> float | None:
        """Whole seconds since the view was paused; ``None`` while it is not."""
        return float(int(self._clock() - self._since)) if self.paused else None

    @property
    def view(self) -> View:
        """What is shown. A paused view still learns that the connection was lost."""
        newest, kept = self._store.view, self._kept
        if kept is None:
            return newest
        if newest.disconnected is not None and kept.frame is not None and kept.disconnected != newest.disconnected:
            self._kept = kept = kept.without_connection(newest)
        return kept

    def toggle_pause(self) -> None:
        """Pause, or resume with the newest view."""
        self._kept = None if self.paused else self._store.view
        self._since = self._clock()
