"""The waiting queue: requests that hold neither a slot nor a block, in the order in which they will be admitted.

Fair between users: start-time fair queueing over tokens (P. Goyal, H. Vin, H. Cheng, 1996). Each user has a virtual
time that grows with the tokens computed for them; the user with the smallest comes next, and within a user the first
come. Somebody who was away does not save up credit: they come back at the virtual time that is being served.

That time follows the admissions, and beside them creeps on by a share of every token computed. So it also passes those
who had much, when new users keep coming: nobody waits behind newcomers for ever, and what was owed is forgotten.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from slotdeck.engine.core.request import Request


class WaitingQueue:
    """Ordered by what each user has had. Its depth is enforced by the scheduler, which knows who may enter at once."""

    def __init__(self) -> None:
        self._by_user: dict[str, dict[str, Request]] = {}  # per user in order of arrival
        self._ranks: dict[str, int] = {}
        self._arrivals = 0
        self._times: dict[str, float] = {}
        self._served = 0.0  # the virtual time being served; never goes down
        self._in_flight: dict[str, int] = {}  # requests that wait or hold a slot, of each user who has any
        self._max_times = 1024

    def __len__(self) -> int:
        return len(self._ranks)

    def count(self, user: str) -> int:
        """Waiting requests of ``user``."""
        return len(self._by_user.get(user, ()))

    @property
    def num_in_flight(self) -> int:
        """Requests that wait or were admitted and have not ended."""
        return sum(self._in_flight.values())

    def __iter__(self) -> Iterator[Request]:
        """In the order of admission, as far as it is known now: later tokens of those who run may change it."""
        queues = {user: iter(requests.values()) for user, requests in self._by_user.items()}
        heap: list[tuple[float, int, str, Request]] = []

        def push(user: str, time: float) -> None:
            request = next(queues[user], None)
            if request is not None:
                heapq.heappush(heap, (time, self._ranks[request.id], user, request))

        for user in queues:
            push(user, self._times[user])
        while heap:
            time, _, user, request = heapq.heappop(heap)
            yield request
            push(user, time + request.num_prompt_tokens)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ranks

    def push(self, request: Request) -> None:
        user = request.user
        if user not in self._by_user:
            self._by_user[user] = {}
            self._times[user] = max(self._times.get(user, 0.0), self._served)
        self._by_user[user][request.id] = request
        self._ranks[request.id] = self._arrivals
        self._arrivals += 1
        self._in_flight[user] = self._in_flight.get(user, 0) + 1

    def remove(self, request: Request) -> None:
        """Take one out, wherever it stands: it has ended. Raises KeyError."""
        self._take(request)
        self.leave(request.user)

    def admit(self, request: Request) -> None:
        """Take one out because it is admitted: virtual time moves on to its user's. :meth:`leave` follows one day."""
        self._take(request)
        self._served = max(self._served, self._times[request.user])
        self.charge(request.user, request.num_prompt_tokens)

    def leave(self, user: str) -> None:
        """An admitted request of ``user`` has ended."""
        self._in_flight[user] -= 1
        if not self._in_flight[user]:
            del self._in_flight[user]
        if len(self._times) > self._max_times:  # forget those who are gone and owe nothing
            self._times = {
                user: time for user, time in self._times.items() if user in self._in_flight or time > self._served
            }
            self._max_times = 2 * len(self._times) + 1024

    def charge(self, user: str, tokens: int) -> None:
        """``tokens`` were computed for ``user``."""
        self._times[user] = self._times.get(user, self._served) + tokens
        # Less than a fair share, so that it stays behind whoever has just been served.
        self._served += tokens / (len(self._in_flight) + 1)

    def _take(self, request: Request) -> None:
        del self._ranks[request.id]
        requests = self._by_user[request.user]
        del requests[request.id]
        if not requests:
            del self._by_user[request.user]
