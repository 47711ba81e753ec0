"""What a page says: its words, what a browser would load and run, and the data of its charts."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

from worldloom.report.axes import number


class Reader(HTMLParser):
    """What a browser would load, run and show."""

    VOID = frozenset({"meta", "link", "img", "br", "hr", "input"})

    def __init__(self, html):
        super().__init__()
        self.tags, self.loads, self.handlers, self.open = [], [], [], []
        self.words, self.headings, self.scripts, self.policy = [], [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        given = dict(attrs)
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        if tag == "script":
            self.scripts.append([given.get("type"), ""])
        for name, value in attrs:
            if name in ("src", "href", "srcset", "xlink:href", "data", "action", "poster"):
                self.loads.append(value)
            if name.startswith("on"):
                self.handlers.append(name)
            self.loads += re.findall(r"url\(([^)]*)\)|@import", value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        elif self.open and self.open[-1] == "style":
            self.loads += re.findall(r"url\([^)]*\)|@import[^;]*", data)
        elif data.strip():
            self.words.append(data.strip())
            if self.open and self.open[-1] in ("h1", "h2", "h3"):
                self.headings.append(data.strip())

    @property
    def text(self):
        return " ".join(self.words)


def read(path):
    reader = Reader(path.read_text(encoding="utf-8"))
    assert reader.open == []
    return reader


def assert_self_contained(reader):
    """Nothing is loaded, and only scripts run whose hashes the policy names."""
    assert all(load.startswith("data:") for load in reader.loads), reader.loads
    assert reader.handlers == []
    assert "default-src 'none'" in reader.policy
    allowed = re.findall(r"script-src ([^;]*)", reader.policy)[0].split()
    assert all(source.startswith("'sha256-") for source in allowed)
    for kind, text in reader.scripts:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert kind == "application/json" or f"'sha256-{digest}'" in allowed


def charts(html):
    """Line charts by title: what is given to the script that draws them."""
    data = re.findall(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)
    assert not any("<" in text or ">" in text for text in data)
    found = [json.loads(text) for text in data]
    return {chart["title"]: chart for chart in found}


def drawings(html):
    """SVG pictures by label, as trees; of those that are drawn twice the narrow one."""
    found = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    trees = [ElementTree.fromstring(text) for text in found]
    return {tree.get("aria-label"): tree for tree in trees}


def at(chart, x):
    """What every line of a chart says at x, by name: "130 ± 1.5"."""
    said = {}
    for line in chart["series"]:
        if x in line["x"] and line["y"][i := line["x"].index(x)] is not None:
            known = line["low"] and line["low"][i] is not None
            error = (line["high"][i] - line["low"][i]) / 2 if known else None
            said[line["name"]] = number(line["y"][i], 4)
            said[line["name"]] += "" if error is None else f" ± {number(error, 2)}"
    return said
