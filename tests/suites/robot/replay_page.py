"""A replay opened in a real browser, and what is read off it."""

import base64
import io

import numpy as np
from PIL import Image

DESK, PHONE = {"width": 1100, "height": 860}, {"width": 390, "height": 740}


def open_page(browser, path, wrong, viewport=DESK, hash="", init="", stopped=False, **options):
    """The page, from its file; what goes wrong in it, and what it loads, is listed in `wrong`.

    stopped: its clock stands still, but for what `view.clock.run_for(milliseconds)` lets pass.
    """

    def complain(text):
        if "GPU stall due to ReadPixels" not in text:  # a renderer in software, asked for pixels
            wrong.append(text)

    view = browser.new_page(viewport=viewport, **options)
    view.on("console", lambda message: complain(f"{message.type}: {message.text}"))
    view.on("pageerror", lambda error: complain(str(error)))
    view.on(
        "request",
        lambda request: (
            None if request.url.startswith(("data:", "file:")) else complain(f"loads {request.url}")
        ),
    )
    if init:
        view.add_init_script(init)
    if stopped:
        view.clock.install(time=0)
    view.goto(path.as_uri() + hash)
    view.wait_for_selector("body[data-ready]")
    if stopped:
        view.clock.pause_at(3_600_000)
    return view


def frame(view):
    return int(view.locator("body").get_attribute("data-frame"))


def cursors(view):
    """The places of the cursors of all plots, as shares of the time axis."""
    return view.evaluate(
        """() => [...document.querySelectorAll('figure svg')].map(svg => {
            const x = +svg.querySelector('.cursor').getAttribute('x1');
            return (x - MARGIN.left) / (svg.clientWidth - MARGIN.left - MARGIN.right);
        })"""
    )


def pixels(view):
    """What the canvas shows, (h, w, 3)."""
    text = view.evaluate(
        """() => {
            draw(shapePoses(record, time), camera, colors, arrowsNow());
            return canvas.toDataURL('image/png');
        }"""
    )
    image = Image.open(io.BytesIO(base64.b64decode(text.partition(",")[2])))
    return np.asarray(image.convert("RGB"), int)


def blue(image):
    """How many pixels are of the robot's left, and where they are on average, x."""
    there = (image[..., 2] - image[..., 0] > 60) & (image[..., 2] > 90)
    return there.sum(), np.nonzero(there)[1].mean()


def orange(image):
    there = image[..., 0] - image[..., 2] > 90
    return there.sum(), np.nonzero(there)[1].mean()


def legend(view, figure):
    return view.evaluate(
        """id => Object.fromEntries([...document.querySelectorAll(`#${id} .legend button`)].map(
            chip => [chip.dataset.line, chip.querySelector('output').textContent]))""",
        figure,
    )


def number(text):
    return float(text.replace("\u2212", "-"))
