"""A controller for the length of a test."""

import asyncio
import time

from worldloom.serving.controller import Controller, Limits
from worldloom.serving.journal import Journal

KNOWN = ("a", "b", "x", "busy", *(f"p{i}" for i in range(13)))


def run(bundle, log, story, known=KNOWN, loop_factory=None, shadow=False, **limits):
    """Runs `story(controller)`, a coroutine, with a controller that is open.

    known: plants whose actuators are known to be where the emergency action puts them.
    """

    async def whole():
        allowed = Limits(**({"deadline": 5.0} | limits))
        controller = Controller(bundle, Journal(log, "none"), allowed, shadow)
        for name in known:
            controller.plants.find(name, time.monotonic()).known = True
        await controller.open()
        try:
            return await story(controller)
        finally:
            await controller.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(whole())
