"""The waiting queue: requests that hold neither a slot nor a block, in the order in which they will be admitted.

Fair between users: start-time fair queueing over tokens (P. Goyal, H. Vin, H. Cheng, 1996). Each user has a virtual
time that grows with the tokens computed for them; the user with the smallest comes next, and within a user the first
come. Somebody who was away does not save up credit: they come back at the virtual time that is being served.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from engine.core.request import Request


class WaitingQueue:
    """Ordered by what each user has had. Its depth is enforced by the scheduler, which knows who may enter at once."""

    def __init__(self) -> None:
        self._by_user: dict[str, dict[str, Request]] = {}  # per user in order of arrival
        self._ranks: dict[str, int] = {}
        self._arrivals = 0
        self._times: dict[str, float] = {}
        self._served = 0.0  # virtual time of the last admission; never goes down

    def __len__(self) -> int:
        return len(self._ranks)

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
        if request.user not in self._by_user:
            self._by_user[request.user] = {}
            self._times[request.user] = max(self._times.get(request.user, 0.0), self._served)
        self._by_user[request.user][request.id] = request
        self._ranks[request.id] = self._arrivals
        self._arrivals += 1

    def remove(self, request: Request) -> None:
        """Take one out, wherever it stands. Raises KeyError."""
        del self._ranks[request.id]
        requests = self._by_user[request.user]
        del requests[request.id]
        if not requests:
            del self._by_user[request.user]

    def admit(self, request: Request) -> None:
        """Take one out because it is admitted: virtual time moves on to its user's."""
        self.remove(request)
        self._served = max(self._served, self._times[request.user])
        self.charge(request.user, request.num_prompt_tokens)
        if len(self._times) > 2 * len(self._by_user) + 1024:  # forget those who are gone and have no debt left
            self._times = {
                user: time for user, time in self._times.items() if user in self._by_user or time > self._served
            }

    def charge(self, user: str, tokens: int) -> None:
        """``tokens`` were computed for ``user``."""
        self._times[user] = self._times.get(user, self._served) + tokens
