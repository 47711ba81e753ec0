"""A plant at one moment: a gauge for each signal, with its limits."""

from typing import TYPE_CHECKING

import numpy as np

from worldloom.report.axes import number
from worldloom.suites.plant.types import EnvironmentState, PlantParams, Signal

if TYPE_CHECKING:
    from worldloom.suites.plant.plant import PlantWorld

WIDTH, ROW = 560, 26  # pixels
_START, _END = 200, 430  # of a gauge
_INK, _SOFT, _LINE = (32, 36, 46), (93, 100, 114), (227, 230, 236)
_VALUE, _LIMIT = (21, 96, 242), (192, 57, 43)


def pixels(world: "PlantWorld", state: EnvironmentState, params: PlantParams) -> np.ndarray:
    """What is measured and what was done last, uint8 (height, width, 3); limits are red."""
    from PIL import Image, ImageDraw, ImageFont

    plant = world.plant
    seen, done = plant.observe(state.x, params), world.control(state.action)
    signals = (*plant.observation, *plant.action)
    values = [float(v) for v in (*np.asarray(seen), *np.asarray(done))]
    sheet = Image.new("RGB", (WIDTH, ROW * (len(signals) + 1)), (255, 255, 255))
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)

    def across(signal: Signal, value: float) -> float:
        share = (value - signal.low) / (signal.high - signal.low)
        return _START + (_END - _START) * min(1.0, max(0.0, share))

    pen.text((12, 6), f"{plant.name}, step {int(state.step)}", _SOFT, font)
    for row, (signal, value) in enumerate(zip(signals, values, strict=True), 1):
        y = row * ROW + ROW // 2
        unit = "" if signal.unit == "1" else f" {signal.unit}"
        pen.text((12, y - 8), signal.name.replace("_", " "), _INK, font)
        pen.rectangle((_START, y - 4, _END, y + 4), _LINE)
        pen.rectangle((_START, y - 4, across(signal, value), y + 4), _VALUE)
        for limit, bound in zip(plant.limits, np.asarray(params.bounds), strict=True):
            if limit.signal == signal.name and limit.kind != "rate":
                x = across(signal, float(bound))
                pen.line((x, y - 9, x, y + 9), _LIMIT, 2)
        pen.text((_END + 12, y - 8), f"{number(value)}{unit}", _INK, font)
    return np.asarray(sheet)
