// A world of one agent: what it sees as numbers, and buttons or sliders for what it does.
const BACK = 120; // steps of the past that are drawn

export function mount(root, {about, send, reset, h, lineChart, palette}) {
  let busy = false, chart = null, past = [];
  const act = async message => {
    if (busy) return;
    busy = true;
    await send(message);
    busy = false;
  };
  const line = h("p", {className: "soft", id: "line"}), values = h("tbody", {id: "values"});
  const more = h("p", {className: "soft"}), plot = h("div", {className: "chart"});
  const sliders = Array.from({length: about.inputs || 0}, (_, i) => h("input", {type: "range",
    min: "-1", max: "1", step: "0.01", value: "0", "aria-label": `input ${i}`}));
  const moves = about.choices
    ? Array.from({length: about.choices}, (_, i) => h("button", {className: "tool",
      "data-action": i, onclick: () => act({action: i})}, `${i}`))
    : [h("button", {className: "tool", id: "step",
      onclick: () => act({action: sliders.map(slider => Number(slider.value))})}, "step")];
  const learned = about.policy ? [1, 10].map(n => h("button", {className: "tool",
    "data-policy": n, onclick: () => act({policy: n})}, n === 1 ? "as the policy" : `${n} steps of it`)) : [];
  const would = h("p", {className: "soft", id: "would"});
  root.append(h("div", {className: "play two"},
    h("div", {className: "card"}, h("h2", {}, about.name), line, plot, h("table", {}, h("thead", {},
      h("tr", {}, h("th", {}, "observation"), h("th", {className: "n"}, "now"),
        h("th", {className: "n"}, "change"))), values), more),
    h("div", {className: "card"}, h("h2", {}, about.choices ? "actions" : "inputs, from −1 to 1"),
      h("div", {className: "pad"}, sliders, moves, learned),
      would, about.choices ? h("p", {}, h("kbd", {}, "0"), " … ", h("kbd", {}, "9"), " act, too") : null,
      h("button", {className: "tool main-tool", id: "again", onclick: () => reset()}, "new episode"))));

  const words = action => Array.isArray(action) ? action.map(x => +x.toFixed(2)).join(", ") : `${action}`;

  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input,select")) return;
    const action = /^[0-9]$/.test(event.key) ? Number(event.key) : -1;
    if (!about.choices || action < 0 || action >= about.choices || event.repeat && busy) return;
    event.preventDefault();
    act({action});
  }
  document.addEventListener("keydown", press);

  function draw() { // the first few values over time
    const shown = past[0].values.slice(0, palette.length).map((_, i) => ({label: `${i}`, color: palette[i],
      x: past.map(state => state.turn), y: past.map(state => state.values[i])}));
    if (chart) chart.update(shown);
    else chart = lineChart(plot, {lines: shown, xLabel: "step", yLabel: "observation", height: 220});
  }

  return {
    show(state) {
      const before = past.at(-1);
      if (before && state.turn <= before.turn) past = [];
      past = [...past, state].slice(-BACK);
      line.textContent = `${state.over ? "the end after" : "step"} ${state.turn}`
        + `${about.horizon ? ` of ${about.horizon}` : ""}; paid ${state.reward ?? "–"} now, ${state.total ?? "–"} in all`;
      values.replaceChildren(...state.values.map((value, i) => {
        const old = past.length > 1 ? past.at(-2).values[i] : null;
        const change = value !== null && old !== null ? +(value - old).toPrecision(3) : 0;
        return h("tr", {}, h("td", {}, `${i}`), h("td", {className: "n"}, value ?? "–"),
          h("td", {className: "n soft"}, change ? (change > 0 ? "+" : "") + change : ""));
      }));
      more.textContent = state.left_out ? `and ${state.left_out} more values` : "";
      would.textContent = state.would === null ? "" : `the policy would do ${words(state.would)}`;
      for (const move of [...moves, ...learned]) move.disabled = state.over;
      root.dataset.turn = state.turn;
      root.dataset.over = state.over;
      draw();
    },
    remove() {
      document.removeEventListener("keydown", press);
      if (chart) chart.remove();
    },
  };
}
