"""The colours of agents and of chart lines: agent 3 is the same colour in picture and chart."""

import colorsys

RGB = tuple[int, int, int]
# Of a line or bar: a place in the palette, or "ink" and "soft", which belong to no agent or run.
Color = int | str

# Any two stay apart for people with protanopia, deuteranopia and tritanopia (tests/report
# measures it), and each is legible on a white and on a dark page.
PALETTE: tuple[str, ...] = (
    "#1560f2",  # blue
    "#cb3a22",  # brick
    "#17b58a",  # mint
    "#a83c8e",  # magenta
    "#dca310",  # amber
    "#86b0e2",  # sky
    "#8a63d2",  # violet
    "#7f6258",  # umber
)


def series_color(i: int) -> str:
    """The colour of line or agent `i` as #rrggbb; beyond the palette, hues a golden angle apart."""
    if i < len(PALETTE):
        return PALETTE[i]
    hue = (0.12 + 0.618034 * (i - len(PALETTE))) % 1.0
    red, green, blue = colorsys.hls_to_rgb(hue, (0.42, 0.56, 0.49)[i % 3], 0.55)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def rgb(color: str) -> RGB:
    """#rrggbb as numbers."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def mix(a: RGB, b: RGB, share: float) -> RGB:
    """`a` with `share` of `b` in it."""
    red, green, blue = (round(x + (y - x) * share) for x, y in zip(a, b, strict=True))
    return red, green, blue


def lighter(color: RGB, share: float) -> RGB:
    return mix(color, (255, 255, 255), share)


def darker(color: RGB, share: float) -> RGB:
    """Towards a deep blue, which keeps shadows friendlier than black does."""
    return mix(color, (22, 20, 44), share)


def css_color(color: Color) -> str:
    """The CSS variable of a colour, or what it is where the palette has no such place."""
    if isinstance(color, str):
        if color not in ("ink", "soft"):
            raise ValueError(f"colour {color!r}: use a place in the palette, 'ink' or 'soft'")
        return f"--{color}"
    return f"--wl-{color + 1}" if color < len(PALETTE) else series_color(color)


def palette_css() -> str:
    """The palette as CSS variables; in dark mode, on paper never, a little lighter."""
    day = "".join(f"--wl-{i + 1}:{color};" for i, color in enumerate(PALETTE))
    light = (lighter(rgb(color), 0.22) for color in PALETTE)
    night = "".join("--wl-{}:#{:02x}{:02x}{:02x};".format(i + 1, *c) for i, c in enumerate(light))
    return f":root{{{day}}}@media screen and (prefers-color-scheme:dark){{:root{{{night}}}}}"
