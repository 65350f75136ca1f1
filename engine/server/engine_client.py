"""The engine as the routes see it. Nothing else in the server touches the loop or its telemetry.

Every method answers at once, but for ``change`` and ``find_request``, which are to be called in a thread.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from slotdeck.engine.core.events import QueueFullError, RequestTooLargeError
from slotdeck.engine.core.request import Request
from slotdeck.engine.loop.engine_loop import EngineLoop, EngineUnavailableError
from slotdeck.engine.server.accounting import ReceivedCall, receive_call
from slotdeck.engine.server.errors import QUEUE_FULL, TOO_LONG, invalid, unavailable
from slotdeck.engine.server.output_router import OutputRouter, OutputStream
from slotdeck.engine.telemetry.frame import Frame, Health, LimitInfo
from slotdeck.engine.telemetry.requests.detail import RequestDetail
from slotdeck.engine.telemetry.requests.lookup import find_request
from slotdeck.engine.telemetry.step_profile import Profile


class EngineClient:
    """Wraps the engine of this process. ``outputs`` is the router that ``loop`` delivers to."""

    def __init__(self, loop: EngineLoop, outputs: OutputRouter) -> None:
        self._loop, self._outputs = loop, outputs

    # -- requests ------------------------------------------------------------------------------------------

    def receive(self, user: str) -> AbstractContextManager[ReceivedCall]:
        """Count a call to a route that generates, and how it ends, unless it ends in the engine.

        Within the context it is prepared and handed over with ``submit``.
        """
        return receive_call(self._loop.telemetry, user)

    def submit(self, call: ReceivedCall, requests: list[Request]) -> OutputStream:
        """Hand the requests of ``call`` to the engine, all or none. Gives the stream of their outputs.

        The caller closes the stream. Raises ApiError: 400 when the prompt is too long by now, 503 when the queue is
        full or the engine takes no requests.
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

    def close(self, outputs: OutputStream) -> None:
        """Nobody reads these outputs any more. Cancels those of their requests that have not ended."""
        self._outputs.close(outputs)

    def finish(self, request_id: str, num_output_tokens: int) -> None:
        """A stop string matched: the request ends as ``stop`` after that many output tokens."""
        self._loop.finish(request_id, num_output_tokens)

    def cancel(self, request_id: str) -> bool:
        """End a request in any state. True if it was alive."""
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
        """Refuse new and waiting requests; running ones go on. Irrevocable."""
        self._loop.drain()

    def end_all(self, error: str) -> None:
        """Cancel every request and send its client ``error``."""
        self._outputs.end_all(error)

    # -- settings ------------------------------------------------------------------------------------------

    @property
    def context_length(self) -> int:
        """Max tokens (prompt + output) of one request, as set."""
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
    def queue_depth(self) -> int:
        """Requests that may wait."""
        return self._loop.limits.queue

    def change(self, changes: dict[str, Any], *, revision: int | None, source: str) -> LimitInfo:
        """Change live settings, all or none. A change of the pool's size waits for the step that runs.

        Raises SettingsError and RevisionConflictError.
        """
        return self._loop.change(changes, revision=revision, source=source)

    # -- what it shows -------------------------------------------------------------------------------------

    @property
    def boot_id(self) -> str:
        """Another one after each start of the engine."""
        return self._loop.boot_id

    @property
    def event_cursor(self) -> int:
        """Number of events ever logged; the cursor of a reader that has seen them all."""
        return self._loop.telemetry.event_cursor

    def health(self) -> tuple[Health, str | None]:
        """State and, unless it is ok, the reason."""
        return self._loop.health()

    def frame(self, sequence: int, event_cursor: int) -> tuple[Frame, int]:
        """A frame with the events after ``event_cursor``, and the new cursor."""
        return self._loop.frame(sequence, event_cursor)

    def current_frame(self) -> Frame:
        """A frame without events."""
        return self._loop.frame(0, self.event_cursor)[0]

    def metrics(self) -> bytes:
        """The page of ``/metrics``."""
        return self._loop.metrics_text()

    def profile(self) -> Profile:
        """Where the time of all steps so far went. Call it in the thread that speaks HTTP."""
        return self._loop.profile()

    def steps(self, after: int) -> tuple[list[Any], int]:
        """Measured steps after the first ``after`` ones, and the cursor for the next call."""
        return self._loop.telemetry.steps.since(after)

    def find_request(self, request_id: str) -> RequestDetail | None:
        """What is known of a request; None if it never was, or ended too long ago. A long answer takes a while."""
        return find_request(self._loop.telemetry.requests, self.current_frame(), request_id)
