"""What a person sees of a page, and reaches by keys: desk and phone, day and night."""

from pathlib import Path

SETTLES = 20  # looks, a tenth of a second apart: pages lay themselves out anew, or get news
PHONE, DESK = {"width": 390, "height": 740}, {"width": 1280, "height": 900}
LOOK = (Path(__file__).parent / "look.js").read_text()
REACH = (Path(__file__).parent / "reach.js").read_text()


def screens(view):
    """Shows a page on every screen and in both colour schemes; yields (viewport, scheme)."""
    for viewport in (DESK, PHONE):
        view.set_viewport_size(viewport)
        for scheme in ("light", "dark"):
            view.emulate_media(color_scheme=scheme)
            yield viewport, scheme


def assert_legible(view, *where, ignored=""):
    """Nothing is cut, off the screen, over other words, or fainter than 4.5 to 1; what was seen.

    ignored: a selector of what is not looked at.
    """
    faults = ("outside", "cut", "faint", "overlaps")
    for _ in range(SETTLES):
        seen = view.evaluate(LOOK, ignored)
        if not any(seen[fault] for fault in faults):
            break
        view.wait_for_timeout(100)
    for fault in faults:
        assert seen[fault] == [], (*where, fault, seen[fault])
    return seen


def assert_reachable(view, *where, ignored=""):
    """The tab key comes to everything that can be clicked or scrolled; each says what it is.

    ignored: a selector of what is reached in another way.
    """
    for _ in range(SETTLES):
        known, missing = _walk(view, ignored)
        if not (known["wrong"] or missing):
            break
        view.wait_for_timeout(100)
    assert known["wrong"] == [], (*where, known["wrong"])
    assert missing == [], (*where, missing)
    return known["count"]


def _walk(view, ignored):
    """What there is to reach, and what the tab key does not come to."""
    known = view.evaluate(REACH, ignored)
    view.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    reached = set()
    for _ in range(known["count"] + 10):
        view.keyboard.press("Tab")
        number = view.evaluate("() => document.activeElement?.dataset.reach ?? null")
        if number in reached and len(reached) >= known["count"]:
            break
        reached |= {number} - {None}
    return known, [name for n, name in enumerate(known["names"]) if str(n) not in reached]
