"use strict";
// Charts by uPlot from the JSON beside them, and tables that sort. No part of a page needs it: the
// words that a chart replaces say what it shows.
(() => {
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const ink = color => color.startsWith("--") ? css(color) : color;
const FONT = '12.5px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif';
const make = (tag, parent, props = {}) => parent.appendChild(Object.assign(document.createElement(tag), props));

// As worldloom.report.axes writes numbers.
function number(value, digits = 4) {
  if (value == null || !isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e7 || size < 1e-4
    ? value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e")
    : value.toLocaleString("en", {maximumFractionDigits: Math.max(0, digits - 1 - Math.floor(Math.log10(size)))});
  return text.replace(/-/g, "−");
}
function short(value, largest) {
  const [unit, size] = largest >= 1e9 ? ["G", 1e9] : largest >= 1e6 ? ["M", 1e6] : largest >= 1e4 ? ["k", 1e3] : ["", 1];
  return unit && Math.abs(value) >= 1e3 ? number(value / size) + unit : number(value, 6);
}
const labels = (u, splits) => {
  const largest = Math.max(...splits.map(v => Math.abs(v ?? 0)));
  return splits.map(v => v == null ? "" : short(v, largest));
};
const mono = values => 12 + 7.2 * Math.max(...(values ?? ["0000"]).map(v => v.length));

// Bands, errors and shades lie under the lines, named values over them.
function band(u, line) {
  const {ctx} = u, {low, high, x} = line;
  if (!low || !high) return;
  const at = (value, scale) => u.valToPos(value, scale, true);
  const floor = value => value ?? (u.scales.y.distr === 3 ? u.scales.y.min : null);
  ctx.fillStyle = ctx.strokeStyle = ink(line.color);
  ctx.lineWidth = 1.4 * uPlot.pxRatio;
  for (let i = 0; i < x.length; i++) {
    if (high[i] == null || floor(low[i]) == null) continue;
    const top = at(high[i], "y"), bottom = at(floor(low[i]), "y"), left = at(x[i], "x");
    if (line.dots && x.length <= 60) {
      ctx.globalAlpha = 0.8;
      ctx.beginPath();
      ctx.moveTo(left, top);
      ctx.lineTo(left, bottom);
      ctx.stroke();
    }
    if (i + 1 == x.length || high[i + 1] == null || floor(low[i + 1]) == null) continue;
    ctx.globalAlpha = 0.18;
    ctx.beginPath();
    ctx.moveTo(left, top);
    ctx.lineTo(at(x[i + 1], "x"), at(high[i + 1], "y"));
    ctx.lineTo(at(x[i + 1], "x"), at(floor(low[i + 1]), "y"));
    ctx.lineTo(left, bottom);
    ctx.fill();
  }
}
function clipped(u, draw) {
  const {ctx, bbox} = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  draw(ctx, bbox);
  ctx.restore();
}
function under(u, spec) {
  clipped(u, (ctx, box) => {
    const most = Math.max(...(spec.cells ?? []).map(cell => cell[4]));
    for (const [x0, x1, y0, y1, count] of spec.cells ?? []) {
      const left = u.valToPos(x0, "x", true), top = u.valToPos(y1, "y", true);
      ctx.fillStyle = ink(spec.shades[0].color);
      ctx.globalAlpha = 0.08 + 0.92 * Math.sqrt(count / most);  // rare places stay visible
      ctx.fillRect(left, top, u.valToPos(x1, "x", true) - left, u.valToPos(y0, "y", true) - top);
    }
    spec.shades.forEach((shade, i) => {
      if (!u.series[1 + spec.series.length + i].show) return;
      ctx.fillStyle = ink(shade.color);
      ctx.globalAlpha = 0.22;
      for (const [start, end] of shade.spans) {
        const left = u.valToPos(start, "x", true);
        ctx.fillRect(left, box.top, Math.max(1, u.valToPos(end, "x", true) - left), box.height);
      }
    });
    spec.series.forEach((line, i) => u.series[1 + i].show && band(u, line));
  });
}
function over(u, spec) {
  clipped(u, (ctx, box) => {
    const px = uPlot.pxRatio;
    ctx.strokeStyle = ctx.fillStyle = css("--soft");
    ctx.font = FONT.replace(/^[\d.]+/, size => size * px);
    ctx.lineWidth = px;
    ctx.setLineDash([5 * px, 4 * px]);
    (spec.marks ?? []).forEach(([name, value]) => {
      const x = u.valToPos(value, "x", true), left = x < box.left + box.width / 2;
      ctx.beginPath();
      ctx.moveTo(x, box.top);
      ctx.lineTo(x, box.top + box.height);
      ctx.stroke();
      ctx.textAlign = left ? "left" : "right";
      ctx.fillText(`${name} ${number(value, 3)}`, x + (left ? 5 : -5) * px, box.top + 11 * px);
    });
    // One that lies beyond the axis is named at its edge.
    const {min, max} = u.scales.y, at = value => u.valToPos(Math.min(max, Math.max(min, value)), "y", true);
    const drawn = spec.references.filter(([, value]) => value >= min && value <= max).map(([, value]) => at(value));
    for (const y of drawn) {
      ctx.beginPath();
      ctx.moveTo(box.left, y);
      ctx.lineTo(box.left + box.width, y);
      ctx.stroke();
    }
    ctx.setLineDash([]);
    ctx.textAlign = "left";
    ctx.lineWidth = 3 * px;
    ctx.strokeStyle = css("--paper");
    const named = [];  // where names stand already: left, right, bottom
    // What a name would lie over: other names, other references, segments of lines.
    const covered = (left, right, up) => {
      const top = up - 12 * px, bottom = up + 3 * px, within = y => y > top && y < bottom;
      const names = named.filter(([a, b, y]) => left < b && a < right && Math.abs(y - up) < 14 * px).length;
      let lines = 0;
      spec.series.forEach(({x, y}, i) => u.series[1 + i].show && x.forEach((_, n) => {
        if (y[n] == null || y[n + 1] == null || u.valToPos(x[n + 1], "x", true) < left || u.valToPos(x[n], "x", true) > right) return;
        const ends = [at(y[n]), at(y[n + 1])];
        if (Math.max(...ends) > top && Math.min(...ends) < bottom) lines++;
      }));
      const cut = top < box.top || bottom > box.top + box.height;
      return 1000 * names + 500 * cut + 20 * drawn.filter(within).length + Math.min(lines, 10);
    };
    spec.references.forEach(([name, value], i) => {
      const words = `${value > max ? "↑ " : value < min ? "↓ " : ""}${name} ${number(value, 3)}`;
      const y = at(value), wide = ctx.measureText(words).width;
      const sides = [box.left + box.width - 4 * px - wide, box.left + 4 * px];
      // Every other name stands at the left, each above its line, unless something is there.
      const places = [0, 1, 2, 3].flatMap(far => [y - (6 + 15 * far) * px, y + (14 + 15 * far) * px].flatMap(
        (up, below) => [sides[i % 2], sides[(i + 1) % 2]].map((left, other) =>
          [covered(left, left + wide, up) + 12 * far + 2 * below + other, left, up])));
      const [, left, up] = places.reduce((best, place) => place[0] < best[0] ? place : best);
      named.push([left, left + wide, up]);
      ctx.strokeText(words, left, up);
      ctx.fillText(words, left, up);
    });
  });
}

function plot(box) {
  const spec = JSON.parse(box.querySelector("script").textContent), summary = box.querySelector("p").textContent;
  box.setAttribute("aria-label", `${summary} Arrow keys read values, plus and minus zoom, escape shows all.`);
  box.replaceChildren();
  const top = make("div", box, {className: "label"});
  make("span", top, {textContent: spec.y_label});
  const whole = make("button", top, {className: "whole", type: "button", textContent: "show all", hidden: true});
  const said = make("span", box, {className: "said"});
  said.setAttribute("role", "status");
  const lines = spec.series, none = lines.every(line => !line.x.length);
  const data = none ? [spec.span ?? [0, 1], ...lines.map(() => [null, null])] : uPlot.join(lines.map(line => [line.x, line.y]));
  const all = data[0], rows = lines.map(line => new Map(line.x.map((x, i) => [x, i])));
  let [first, last] = [all[0], all[all.length - 1]];
  if (first === last) [first, last] = spec.log[0] ? [first / 2, first * 2] : first > 0 ? [0, 2 * first] : [first - 1, last + 1];
  spec.shades.forEach(() => data.push(all.map(() => null)));
  const zoomed = ({scales: {x}}) => x.min != null && (x.min > first || x.max < last);
  const finite = column => column.flatMap((v, i) => v == null ? [] : [i]);
  const says = (line, i) => {
    if (spec.bars) return `${number(line.y[i], 6)} (${(100 * line.y[i] / spec.bars).toFixed(1)} %)`;
    const low = line.low?.[i], high = line.high?.[i], y = line.y[i];
    if (low == null || high == null) return number(y);
    // Only what lies evenly around its line is an error; other bands are told by their ends.
    const even = Math.abs(high + low - 2 * y) <= 1e-3 * (high - low) + 1e-5 * Math.abs(y);
    return number(y) + (even ? ` ± ${number((high - low) / 2, 2)}` : ` (${number(low, 3)} to ${number(high, 3)})`);
  };
  const value = (line, n) => (u, v, s, i) => {
    const known = finite(line.y), at = i == null ? known[known.length - 1] : rows[n].get(all[i]);
    return at == null || line.y[at] == null ? "–" : says(line, at);
  };
  // The nearest point of each line: evaluations are rarer than iterations.
  const nearest = (u, s, i) => {
    const column = data[s], line = lines[s - 1];
    if (s === 0 || !line || column[i] != null) return i;
    if (rows[s - 1].has(all[i])) return i;
    for (let step = 1; step < all.length; step++)
      for (const at of [i - step, i + step])
        if (rows[s - 1].has(all[at])) return at;
    return i;
  };
  const axis = {stroke: () => css("--soft"), font: FONT, labelFont: FONT, values: labels};
  const lonely = line => finite(line.y).filter(i => line.y[i - 1] == null && line.y[i + 1] == null)
    .map(i => all.indexOf(line.x[i]));
  const group = box.closest(".pairs");
  const u = new uPlot({
    width: box.clientWidth, height: spec.height - 50, padding: [8, 22, 0, 0],
    legend: {show: !spec.cells, markers: {width: 0, fill: (u, s) => ink((lines[s - 1] ?? spec.shades[s - 1 - lines.length]).color)}},
    cursor: {
      dataIdx: nearest, drag: {x: true, y: false}, points: {size: 8},
      ...(group && spec.x_label && !spec.cells ? {sync: {key: `${[...document.querySelectorAll(".pairs")].indexOf(group)} ${spec.x_label}`}} : {}),
      bind: {dblclick: () => () => reset()},
    },
    scales: {
      x: {time: false, distr: spec.log[0] ? 3 : 1, range: (u, low, high) => low == null || low === high ? [first, last] : [low, high]},
      y: {distr: spec.log[1] ? 3 : 1, range: (u, low, high) => {
        if (low == null || !zoomed(u) || spec.log[1]) return spec.range;
        const room = Math.max((high - low) * 0.1, (spec.noise - (high - low)) / 2);
        return [low - room, high + room];
      }},
      on: {range: [0, 1]},
    },
    axes: [
      {...axis, label: spec.x_label, labelSize: spec.x_label ? 20 : 0, labelGap: 0, size: 34, space: 70,
        grid: {show: false}, ticks: {stroke: () => css("--soft"), size: 4}},
      {...axis, size: (u, values) => mono(values), space: 36, gap: 4, grid: {stroke: () => css("--line"), width: 1}, ticks: {show: false}},
    ],
    series: [
      {label: spec.x_label || (spec.bars ? "from" : "x"), value: (u, v) => number(v ?? all[all.length - (spec.bars ? 2 : 1)], 6)},
      ...lines.map((line, n) => ({
        label: line.name, stroke: () => ink(line.color), width: line.faint ? 1.2 : 2, alpha: line.faint ? 0.75 : 1,
        value: value(line, n),
        ...(spec.bars ? {width: 0, fill: () => ink(line.color), paths: uPlot.paths.bars({align: 1, size: [1, Infinity], gap: 1})} : {}),
        points: {show: line.dots, size: 6, fill: () => ink(line.color), filter: () => line.dots || spec.bars ? null : lonely(line)},
      })),
      ...spec.shades.map(shade => ({
        label: shade.name, scale: "on", stroke: () => ink(shade.color), fill: () => ink(shade.color), paths: () => null,
        points: {show: false},
        value: (u, v, s, i) => i == null ? "" : shade.spans.some(([a, b]) => a <= all[i] && all[i] <= b) ? "yes" : "no",
      })),
    ],
    hooks: {
      drawAxes: [u => under(u, spec)],
      draw: [u => over(u, spec)],
      setScale: [(u, key) => key === "x" && (whole.hidden = !zoomed(u))],
    },
  }, data, box);
  function reset() { u.setScale("x", {min: first, max: last}); }
  reset();
  whole.onclick = reset;
  // Legend entries are switches, for keys as well.
  u.root.querySelectorAll(".u-legend .u-series").forEach((row, i) => {
    const head = row.querySelector("th");
    if (i === 0) return;
    head.tabIndex = 0;
    head.setAttribute("role", "switch");
    const tell = () => head.setAttribute("aria-checked", String(!row.classList.contains("u-off")));
    head.addEventListener("click", () => requestAnimationFrame(tell));
    head.addEventListener("keydown", event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      head.click();
    });
    tell();
  });
  let at = null;
  const look = i => {
    at = Math.min(all.length - 1, Math.max(0, i));
    u.setCursor({left: u.valToPos(all[at], "x"), top: u.over.clientHeight / 2});
    said.textContent = [`${spec.x_label || "x"} ${number(all[at], 6)}`,
      ...lines.map((line, n) => [line, rows[n].get(all[nearest(u, n + 1, at)])])
        .filter(([line, i]) => i != null && line.y[i] != null).map(([line, i]) => `${line.name}: ${says(line, i)}`)].join("\n");
  };
  const zoom = factor => {
    const {min, max} = u.scales.x, middle = at == null ? (min + max) / 2 : all[at], half = factor * (max - min) / 2;
    u.setScale("x", {min: Math.max(first, middle - half), max: Math.min(last, middle + half)});
  };
  const keys = {
    ArrowRight: () => look(at == null ? 0 : at + 1), ArrowLeft: () => look(at == null ? all.length - 1 : at - 1),
    Home: () => look(0), End: () => look(all.length - 1), "+": () => zoom(0.5), "-": () => zoom(2), Escape: reset,
  };
  box.addEventListener("keydown", event => {
    if (event.target !== box || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  new ResizeObserver(() => {
    if (box.clientWidth && box.clientWidth !== u.width) u.setSize({width: box.clientWidth, height: u.height});
  }).observe(box);
  for (const media of ["(prefers-color-scheme: dark)", "print"])
    matchMedia(media).addEventListener("change", () => u.redraw(false, true));
}

// A cell that starts with a number is in the order of numbers, a dash comes last.
function sortable(table) {
  const heads = [...table.querySelectorAll("thead th")], body = table.tBodies[0];
  if (!heads.length || body.rows.length < 3) return;
  const key = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const value = parseFloat(text.replace(/,/g, "").replace(/−/g, "-"));
    return text === "–" ? null : isNaN(value) ? text : value;
  };
  heads.forEach((head, column) => {
    const button = make("button", head, {type: "button"});
    button.append(...[...head.childNodes].filter(node => node !== button));
    button.onclick = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = (a, b) => a === b ? 0 : a === null ? 1 : b === null ? -1
        : (typeof a === typeof b ? (a < b ? -1 : 1) : typeof a === "number" ? -1 : 1) * (down ? -1 : 1);
      body.append(...[...body.rows].map(row => [key(row, column), row]).sort((a, b) => order(a[0], b[0])).map(pair => pair[1]));
    };
  });
}

addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".plot").forEach(plot);
  document.querySelectorAll("table").forEach(sortable);
  document.querySelectorAll(".scroll").forEach(box => {
    // Reachable for keys that scroll, as soon as a screen is too narrow for it.
    new ResizeObserver(() => {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }).observe(box);
  });
});
})();
