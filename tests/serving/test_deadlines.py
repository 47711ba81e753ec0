"""One timer for the deadlines of all requests."""

import asyncio
from dataclasses import dataclass

from worldloom.serving.deadlines import Deadlines


@dataclass(eq=False)
class Waiting:
    expires: float
    taken: bool = False


def test_who_nobody_took_expires_when_its_time_is_up_and_not_before():
    async def story():
        loop, expired = asyncio.get_running_loop(), []
        deadlines = Deadlines(lambda asked: expired.append((asked, loop.time())))
        now = loop.time()
        first, taken, last = (Waiting(now + after) for after in (0.01, 0.02, 0.05))
        for asked in (first, taken, last):
            deadlines.add(asked)
        behind = Waiting(now + 0.03)  # it waited for its turn: others came before it
        deadlines.add(behind)
        taken.taken = True
        while len(expired) < 3:
            await asyncio.sleep(0.005)
        again = Waiting(loop.time() + 0.01)  # after all others are gone
        deadlines.add(again)
        while len(expired) < 4:
            await asyncio.sleep(0.005)
        assert {asked for asked, _ in expired} == {first, last, behind, again}
        assert all(at >= asked.expires - 0.002 for asked, at in expired)

    asyncio.run(story())


def test_a_failure_costs_the_others_nothing():
    async def story():
        loop, expired = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda *_: None)

        def expire(asked):
            expired.append(asked)
            if len(expired) == 1:
                raise RuntimeError("the first goes wrong")

        deadlines = Deadlines(expire)
        both = [Waiting(loop.time() + 0.01) for _ in range(2)]
        for asked in both:
            deadlines.add(asked)
        while len(expired) < 2:
            await asyncio.sleep(0.005)
        assert expired == both

    asyncio.run(story())


def test_requests_that_were_taken_are_let_go_of_before_their_time():
    async def story():
        deadlines = Deadlines(lambda asked: None)
        waiting = [Waiting(asyncio.get_running_loop().time() + 60.0) for _ in range(3)]
        for asked in waiting:
            deadlines.add(asked)
        for asked in waiting[:2]:
            asked.taken = True
        deadlines.forget()
        assert list(deadlines._running) == waiting[2:]

    asyncio.run(story())
