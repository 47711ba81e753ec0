// Line charts in the colours of the page.
export const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// An axis shows at least this part of its values' size: less is rounding, and would look like news.
const ROUNDING = 1e-4;

// Both ends of an axis that shows these values, nulls left out.
export function span(values) {
  const known = values.filter(value => Number.isFinite(value));
  if (!known.length) return [0, 1];
  let low = Math.min(...known), high = Math.max(...known);
  if (high - low < ROUNDING * Math.max(-low, high)) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  return uPlot.rangeNum(low, high, 0.05, true);
}

// lines: [{label, color, x, y, error}], the last, if there is one, drawn as bars; marks: horizontal
// lines [{y, color, label}], of which named ones are always in sight; range: what is shown at
// least; plain: without labels and legend. Returns {update, remove}.
export function lineChart(root, {lines, xLabel, yLabel, height = 300, marks = [], range = null,
  plain = false}) {
  let plot = null, shown = lines;
  const least = ({min, max}) => [...(range || []), ...marks.filter(mark => mark.label).map(mark => mark.y),
    ...shown.flatMap(({x, y, error}) => error ? y.flatMap((value, i) => x[i] >= min && x[i] <= max
      ? [value - (error[i] ?? 0), value + (error[i] ?? 0)] : []) : [])];
  const data = () => shown.length ? uPlot.join(shown.map(line => [line.x, line.y])) : [[]];

  function draw() {
    if (plot) plot.destroy();
    const axis = {stroke: style("--soft"), grid: {stroke: style("--line"), width: 1},
      ticks: {stroke: style("--line"), width: 1}};
    const values = (_, ticks) => ticks.map(tick => Math.abs(tick) >= 1e4
      ? Intl.NumberFormat("en", {notation: "compact"}).format(tick) : +tick.toPrecision(6));
    plot = new uPlot({
      width: Math.max(200, root.clientWidth), height,
      legend: {show: !plain},
      scales: {x: {time: false}, y: {range: (u, low, high) => span([low, high, ...least(u.series[0])])}},
      axes: [{...axis, ...(plain ? {size: 28} : {label: xLabel, labelSize: 22}), values},
        {...axis, ...(plain ? {} : {label: yLabel, labelSize: 22}), size: 58, values}],
      series: [{label: xLabel}, ...shown.map(line => ({label: line.label, stroke: line.color,
        width: 2, spanGaps: true, points: {show: !plain && line.x.length < 40, size: 5},
        value: (_, value) => value === null || value === undefined ? "–" : +value.toPrecision(5)}))],
      hooks: {draw: [u => {
        const pen = u.ctx;
        for (const mark of marks) {
          const y = u.valToPos(mark.y, "y", true);
          if (!(y >= u.bbox.top && y <= u.bbox.top + u.bbox.height)) continue;
          pen.save();
          pen.strokeStyle = mark.color || style("--bad");
          pen.lineWidth = 1.5 * devicePixelRatio;
          pen.setLineDash([6, 4]);
          pen.beginPath();
          pen.moveTo(u.bbox.left, y);
          pen.lineTo(u.bbox.left + u.bbox.width, y);
          pen.stroke();
          pen.setLineDash([]);
          pen.fillStyle = style("--soft");
          pen.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
          pen.textAlign = "right";
          if (mark.label) pen.fillText(mark.label, u.bbox.left + u.bbox.width - 4, y - 5 * devicePixelRatio);
          pen.restore();
        }
        for (const line of shown) {
          pen.save();
          pen.strokeStyle = line.color;
          pen.lineWidth = devicePixelRatio;
          pen.beginPath();
          line.x.forEach((at, i) => {
            if (!line.error?.[i]) return;
            const x = u.valToPos(at, "x", true);
            for (const side of [-1, 1]) {
              const y = u.valToPos(line.y[i] + side * line.error[i], "y", true);
              pen.moveTo(x, u.valToPos(line.y[i], "y", true));
              pen.lineTo(x, y);
              pen.moveTo(x - 3 * devicePixelRatio, y);
              pen.lineTo(x + 3 * devicePixelRatio, y);
            }
          });
          pen.stroke();
          pen.restore();
        }
      }]},
    }, data(), root);
  }

  const watcher = new ResizeObserver(() => plot && plot.width !== root.clientWidth
    && root.clientWidth > 0 && plot.setSize({width: root.clientWidth, height}));
  const theme = matchMedia("(prefers-color-scheme: dark)");
  draw();
  watcher.observe(root);
  theme.addEventListener("change", draw);
  return {
    update(next, nextMarks = marks) {
      const same = next.length === shown.length && next.every((line, i) =>
        line.label === shown[i].label && line.color === shown[i].color
        && (line.x.length < 40) === (shown[i].x.length < 40));
      shown = next;
      marks = nextMarks;
      if (same) plot.setData(data());
      else draw();
    },
    remove() {
      watcher.disconnect();
      theme.removeEventListener("change", draw);
      plot.destroy();
    },
  };
}
