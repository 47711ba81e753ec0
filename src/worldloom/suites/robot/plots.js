// Plots over time that share one cursor. Each is an SVG that is drawn anew when its width changes.

const SVG_SPACE = "http://www.w3.org/2000/svg";
const MARGIN = {left: 46, right: 10, top: 8, bottom: 20};

function drawn(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG_SPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function made(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Round numbers in equal steps, about `count` of them between low and high.
function ticksBetween(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw * 0.999);
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) ticks.push(n * step);
  return {ticks, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9))};
}

// As wide as a digit, unlike a hyphen; and no minus before a nought.
const written = (x, digits = 2) => x.toFixed(digits).replace(/^-(?=0*\.?0*$)/, "").replace("-", "\u2212");

// record: the episode that is shown, which may change between calls of draw(): its `steps` of
// `seconds` each, and `pushes` [[first frame, last frame], ...], shaded in every plot.
// options: height, digits, lines() -> [{name, color, values, dash, wide, quiet}] or bars() -> [{name,
// color, values}] of 0 and 1; what is quiet is not in the legend; seek(time) is called where the reader points.
function plotOver(record, figure, options, seek) {
  const svg = drawn("svg", {role: "img", "aria-label": figure.dataset.about || ""});
  const legend = made("div", {class: "legend"}), tip = made("div", {class: "tip"});
  const holder = made("div", {class: "holder"}, svg, tip);
  figure.append(legend, holder);
  const length = () => Math.max(record.steps - 1, 1) * record.seconds;
  const frameAt = time => Math.min(record.steps - 1, Math.max(0, Math.round(time / record.seconds)));
  const hidden = new Set(options.hidden || []);
  let width = 0, now = 0, cursor, hover;

  const series = () => options.bars ? options.bars() : options.lines();
  const told = () => series().filter(line => !line.quiet);
  const x = time => MARGIN.left + (width - MARGIN.left - MARGIN.right) * time / length();
  const timeOf = event => {
    const gap = event.clientX - svg.getBoundingClientRect().left - MARGIN.left;
    return Math.min(1, Math.max(0, gap / (width - MARGIN.left - MARGIN.right))) * length();
  };
  const said = (line, frame) => options.bars ? (line.values[frame] ? "down" : "up")
    : `${written(line.values[frame], options.digits ?? 2)}`;

  function drawLegend() {
    legend.replaceChildren(...told().map(line => {
      const mark = made("i", {style: `--c:${line.color}`, class: line.dash ? "dash" : ""});
      const chip = made("button", {type: "button", "data-line": line.name,
        "aria-pressed": String(!hidden.has(line.name))}, mark, line.name, made("output"));
      chip.disabled = !options.choose;
      chip.addEventListener("click", () => {
        if (!hidden.delete(line.name)) hidden.add(line.name);
        draw();
      });
      return chip;
    }));
  }

  function drawTime(bottom) {
    for (const [first, last] of record.pushes) {
      const [from, to] = [first, Math.min(last + 1, record.steps - 1)].map(t => x(t * record.seconds));
      svg.append(drawn("rect", {class: "pushed", x: from, width: Math.max(to - from, 1), y: MARGIN.top,
        height: bottom - MARGIN.top}));
    }
    const {ticks, digits} = ticksBetween(0, length(), Math.max(3, Math.min(10, width / 80)));
    for (const tick of ticks) svg.append(
      drawn("line", {class: "grid", x1: x(tick), x2: x(tick), y1: MARGIN.top, y2: bottom}),
      drawn("text", {x: x(tick), y: bottom + 15, "text-anchor": "middle"},
        `${written(tick, digits)}${tick === ticks.at(-1) ? " s" : ""}`));
  }

  function drawLines(lines, bottom) {
    const shown = lines.filter(line => !hidden.has(line.name));
    let low = Infinity, high = -Infinity;
    for (const {values} of shown) for (const value of values) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    if (!(high >= low)) [low, high] = [0, 1];
    const room = Math.max((high - low) * 0.06, 1e-3 + 0.02 * Math.abs(high));
    low -= room;
    high += room;
    const y = value => bottom - (bottom - MARGIN.top) * (value - low) / (high - low);
    const {ticks, digits} = ticksBetween(low, high, 4);
    for (const tick of ticks) svg.append(
      drawn("line", {class: Math.abs(tick) < 1e-9 ? "zero" : "grid", x1: MARGIN.left,
        x2: width - MARGIN.right, y1: y(tick), y2: y(tick)}),
      drawn("text", {x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end"}, written(tick, digits)));
    for (const {name, color, values, dash, wide} of shown) {
      let path = "";
      for (let t = 0; t < record.steps; t++)
        path += `${t ? "L" : "M"}${x(t * record.seconds).toFixed(1)} ${y(values[t]).toFixed(1)}`;
      svg.append(drawn("path", {d: path, "data-line": name, stroke: color,
        "stroke-width": wide || 1.6, "stroke-dasharray": dash || "none"}));
    }
  }

  function drawBars(rows, bottom) {
    const high = (bottom - MARGIN.top) / rows.length;
    rows.forEach(({name, color, values}, row) => {
      const top = MARGIN.top + row * high + high * 0.16;
      svg.append(drawn("text", {x: MARGIN.left - 6, y: top + high * 0.34 + 4, "text-anchor": "end"}, name));
      for (let t = 0; t < record.steps; t++) {
        if (!values[t]) continue;
        const start = t;
        while (t + 1 < record.steps && values[t + 1]) t++;
        // A row stands for the time until the next one.
        const from = x(start * record.seconds), to = x(Math.min((t + 1) * record.seconds, length()));
        svg.append(drawn("rect", {x: from, y: top, width: Math.max(to - from, 1), height: high * 0.68,
          rx: 2, fill: color, "data-line": name}));
      }
    });
  }

  function draw() {
    width = holder.clientWidth;
    if (!width) return void (cursor = null);  // it is hidden
    const height = options.height, bottom = height - MARGIN.bottom;
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.replaceChildren();
    drawTime(bottom);
    if (options.bars) drawBars(series(), bottom); else drawLines(series(), bottom);
    hover = drawn("line", {class: "hover", y1: MARGIN.top, y2: bottom, visibility: "hidden"});
    cursor = drawn("line", {class: "cursor", y1: MARGIN.top, y2: bottom});
    svg.append(hover, cursor);
    drawLegend();
    moveTo(now);
  }

  function moveTo(time) {
    now = time;
    if (!cursor) return;
    cursor.setAttribute("x1", x(time));
    cursor.setAttribute("x2", x(time));
    const frame = frameAt(time);
    told().forEach((line, i) => {
      legend.children[i].lastChild.textContent = hidden.has(line.name) ? "" : said(line, frame);
    });
  }

  function point(event) {
    const time = timeOf(event), frame = frameAt(time), place = x(frame * record.seconds);
    hover.setAttribute("x1", place);
    hover.setAttribute("x2", place);
    hover.setAttribute("visibility", "visible");
    tip.replaceChildren(made("b", {}, `${written(frame * record.seconds)} s`),
      ...told().filter(line => !hidden.has(line.name)).flatMap(line => [
        made("span", {}, made("i", {style: `--c:${line.color}`}), line.name),
        made("span", {class: "n"}, said(line, frame))]));
    tip.classList.add("on");
    const left = place + 14 + tip.offsetWidth < width ? place + 14 : place - 14 - tip.offsetWidth;
    tip.style.left = `${Math.max(0, left)}px`;
  }

  svg.addEventListener("pointerdown", event => {
    if (event.button) return;
    svg.setPointerCapture(event.pointerId);
    seek(timeOf(event));
  });
  svg.addEventListener("pointermove", event => {
    point(event);
    if (event.buttons & 1) seek(timeOf(event));
  });
  for (const end of ["pointerleave", "pointercancel"]) svg.addEventListener(end, () => {
    hover.setAttribute("visibility", "hidden");
    tip.classList.remove("on");
  });
  new ResizeObserver(() => { if (holder.clientWidth !== width) draw(); }).observe(holder);
  draw();
  return {draw, moveTo};
}

// Rows of bars that follow the cursor: between -limit and limit, with the range over the episode
// behind them. rows() -> [{name, values, limit}]; current() is the row that is marked, and choose(i)
// is called where another is clicked.
function barsOver(record, figure, {color, unit, rows, current, choose}) {
  const list = made("div", {class: "rows"});
  figure.append(list);
  let now = 0, bars = [];

  function draw() {
    bars = rows().map(({name, values, limit}, i) => {
      let [low, high] = [0, 0];
      for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
      const reach = limit ?? Math.max(-low, high, 1e-6), share = value => 50 + 50 * value / reach;
      const range = made("i", {class: "range", style: `left:${share(low)}%;right:${100 - share(high)}%`});
      const bar = made("i", {style: `--c:${color}`}), value = made("output");
      const row = made("button", {type: "button", "data-row": name, title: limit === null
        ? `${name}: no limit` : `${name}: at most ${written(limit, 1)} ${unit}`},
      made("span", {}, name), made("span", {class: "track"}, range, bar), value);
      row.addEventListener("click", () => choose(i));
      return {row, bar, value, values, share, limit};
    });
    list.replaceChildren(...bars.map(({row}) => row));
    moveTo(now);
  }

  function moveTo(time) {
    now = time;
    const frame = Math.min(record.steps - 1, Math.max(0, Math.round(time / record.seconds)));
    bars.forEach(({row, bar, value, values, share, limit}, i) => {
      row.setAttribute("aria-current", i === current());
      const at = share(values[frame]);
      bar.style.left = `${Math.min(50, at)}%`;
      bar.style.right = `${100 - Math.max(50, at)}%`;
      bar.classList.toggle("full", limit !== null && Math.abs(values[frame]) > 0.99 * limit);
      value.textContent = written(values[frame]);
    });
  }

  draw();
  return {draw, moveTo};
}
