"""The engine as the routes see it. No other module of the server uses the loop or its telemetry.

Every method returns at once, except ``find_request``: call it in a thread.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from slotdeck.engine.core.events import QueueFullError, RequestTooLargeError
from slotdeck.engine.core.limits import max_waiting_per_user
from slotdeck.engine.core.request import Request
from slotdeck.engine.loop.changes import PendingChange
from slotdeck.engine.loop.engine_loop import EngineLoop, EngineUnavailableError
from slotdeck.engine.server.accounting import ReceivedCall, count_refused_body, receive_call
from slotdeck.engine.server.errors import QUEUE_FULL, TOO_LONG, invalid, unavailable
from slotdeck.engine.server.output_router import OutputRouter, OutputStream
from slotdeck.engine.telemetry.frame import Frame, Health
from slotdeck.engine.telemetry.requests.detail import RequestDetail
from slotdeck.engine.telemetry.requests.lookup import find_request
from slotdeck.engine.telemetry.step_profile import Profile


class EngineClient:
    """The engine of this process. ``loop`` delivers its outputs to ``outputs``."""

    def __init__(self, loop: EngineLoop, outputs: OutputRouter) -> None:
        self._loop, self._outputs = loop, outputs

    # -- requests ------------------------------------------------------------------------------------------

    def receive(self, user: str) -> AbstractContextManager[ReceivedCall]:
        """Count a call to a route that generates, and how it ends if the engine never accepts it.

        The route prepares and submits the call within this context.
        """
        return receive_call(self._loop.telemetry, user)

    def count_refused_body(self, user: str, reason: str) -> None:
        """Count a call that was refused with 503 before its body was read."""
        count_refused_body(self._loop.telemetry, user, reason)

    def submit(self, call: ReceivedCall, requests: list[Request]) -> OutputStream:
        """Submit the requests of ``call``, all or none. Returns the stream of their outputs; the caller closes it.

        Raises ApiError: 400 if the prompt is too long by now, 503 if the queue is full or the engine takes no requests.
        """
        call.set_num_requests(len(requests))
        outputs = self._outputs.open([request.id for request in requests], self._loop.cancel)
        try:
            self._loop.submit(*requests)
        except BaseException as error:
            outputs.forget(*outputs.request_ids)  # the engine does not know them
            self._outputs.close(outputs)
            raise self._refusal(error) from error
        call.accepted = True
        return outputs

    def cache_salt(self, user: str) -> str | None:
        """The salt for the block hashes of a prompt of ``user``; ``None`` while no prefixes are cached."""
        return self._loop.cache_salt(user)

    def close(self, outputs: OutputStream) -> None:
        """Stop collecting these outputs, and cancel those of their requests that have not ended."""
        self._outputs.close(outputs)

    def finish(self, request_id: str, num_output_tokens: int) -> None:
        """End a request with reason ``stop`` after that many output tokens, because a stop string matched."""
        self._loop.finish(request_id, num_output_tokens)

    def cancel(self, request_id: str) -> bool:
        """Cancel a request in any state. Returns whether it was alive."""
        return self._loop.cancel(request_id)

    def _refusal(self, error: BaseException) -> BaseException:
        if isinstance(error, QueueFullError):
            return unavailable(f"{error}; try again later", QUEUE_FULL, self._loop.estimated_wait())
        if isinstance(error, EngineUnavailableError):
            return unavailable(str(error), "engine_unavailable", 5)
        if isinstance(error, RequestTooLargeError):
            return invalid("messages", str(error), code=TOO_LONG)
        return error

    # -- life ----------------------------------------------------------------------------------------------

    @property
    def num_in_flight(self) -> int:
        """Requests that run or wait."""
        return self._loop.num_in_flight

    def drain(self) -> None:
        """Refuse new and waiting requests, while running ones go on. Cannot be undone."""
        self._loop.drain()

    def end_all(self, error: str) -> None:
        """Cancel every request and send its client ``error``."""
        self._outputs.end_all(error)

    # -- settings ------------------------------------------------------------------------------------------

    @property
    def context_length(self) -> int:
        """The setting: max tokens (prompt + output) of one request."""
        return self._loop.limits.context

    @property
    def pool_tokens(self) -> int:
        """Tokens that the KV pool holds."""
        return self._loop.pool_tokens

    @property
    def max_request_tokens(self) -> int:
        """Max tokens (prompt + output) of one request: the context, or the whole pool where that is smaller."""
        return min(self.context_length, self.pool_tokens)

    @property
    def max_waiting_per_user(self) -> int:
        """Requests of one user that may wait; 0 if nobody may."""
        return max_waiting_per_user(self._loop.limits) if self._loop.limits.queue else 0

    def begin_change(self, changes: dict[str, Any], *, revision: int | None, source: str) -> PendingChange:
        """Begin to change live settings, all or none. The caller waits for the outcome, or withdraws the change.

        ``revision`` is the one that the change was decided on, ``source`` names who asks. Waiting raises SettingsError
        with the reason, RevisionConflictError if another revision is in force.
        """
        return self._loop.begin_change(changes, revision=revision, source=source)

    # -- what it shows -------------------------------------------------------------------------------------

    @property
    def boot_id(self) -> str:
        """Differs after each start of the engine."""
        return self._loop.boot_id

    @property
    def event_cursor(self) -> int:
        """Number of events logged so far, which is the cursor of a reader that has seen them all."""
        return self._loop.telemetry.event_cursor

    def health(self) -> tuple[Health, str | None]:
        """The state and, unless it is ``ok``, the reason."""
        return self._loop.health()

    def frame(self, sequence: int, event_cursor: int) -> tuple[Frame, int]:
        """A frame with the events after ``event_cursor``, and the new cursor. ``sequence`` is put into the frame."""
        return self._loop.frame(sequence, event_cursor)

    def current_frame(self) -> Frame:
        """A frame without events."""
        return self._loop.frame(0, self.event_cursor)[0]

    def metrics(self) -> bytes:
        """The page of ``/metrics``."""
        return self._loop.metrics_text()

    def profile(self) -> Profile:
        """Where the time of all steps so far went. Call it in the thread that serves HTTP."""
        return self._loop.profile()

    def steps(self, after: int) -> tuple[list[Any], int]:
        """Measured steps after the first ``after`` ones, and the cursor for the next call."""
        return self._loop.telemetry.steps.since(after)

    def find_request(self, request_id: str) -> RequestDetail | None:
        """What is known about a request. None if there was none of that id, or it ended too long ago."""
        return find_request(self._loop.telemetry.requests, self.current_frame(), request_id)
