// A plant as its operator sees it: trends with limits, set points, actuators, and the filter's alarms.
const KEPT = 240; // steps of a trend
const words = name => name.replaceAll("_", " ").replaceAll(":", ": ");
const unit = signal => signal.unit === "1" ? "" : ` ${signal.unit}`;
const short = value => value === null ? "–" : String(+value.toPrecision(4));

export function mount(root, {about, send, reset, h, lineChart, palette}) {
  const steps = [], trends = new Map(), charts = new Map(), log = [];
  let last = null, touched = 0;
  const status = h("div", {className: "bar", id: "status"});
  const events = h("ol", {id: "alarms", reversed: true});
  events.style.cssText = "max-height:11rem;overflow:auto;padding-left:2.2rem;margin:.4rem 0";
  const grid = h("div", {id: "trends"});
  grid.style.cssText = "display:grid;gap:.8rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr))";
  const marks = {loops: "the plant's loops", policy: "the policy", hand: "by hand"};
  const who = about.controls.map(name => h("button", {className: "tool", "data-control": name,
    onclick: () => send({control: name})}, marks[name]));
  const pace = [[0, "❚❚"], [1, "1×"], [5, "5×"], [20, "20×"]].map(([speed, text]) => h("button",
    {className: "tool", "data-speed": speed, onclick: () => send({speed})}, text));

  // A number that a person may change: an actuator or a set point.
  function knob(id, label, signal, change) {
    const [low, high] = [signal.low ?? -1, signal.high ?? 1];
    const shown = h("output", {});
    const slider = h("input", {type: "range", id, min: low, max: high, step: (high - low) / 400,
      oninput: () => { touched = Date.now(); shown.textContent = short(+slider.value) + unit(signal); },
      onchange: () => change()});
    slider.style.width = "100%";
    const set = value => {
      if (document.activeElement === slider && Date.now() - touched < 1500) return;
      slider.value = value;
      shown.textContent = short(value) + unit(signal);
    };
    return {node: h("label", {}, h("span", {className: "soft"}, `${words(label)} `), shown, slider), set,
      value: () => Number(slider.value)};
  }
  const hands = about.action.map((signal, i) => knob(`hand-${i}`, signal.name, signal,
    () => send({hand: hands.map(one => one.value())})));
  const points = about.loops.map((loop, i) => knob(`setpoint-${i}`,
    `${loop.signal}, by the ${loop.actuator}`,
    about.observation.find(signal => signal.name === loop.signal),
    () => send({setpoints: points.map(one => one.value())})));
  const column = nodes => { const box = h("div", {}, nodes); box.style.cssText = "display:grid;gap:.5rem"; return box; };
  root.append(h("div", {className: "play two"}, grid, h("div", {className: "card"},
    h("h2", {}, about.name), status,
    h("p", {className: "soft"}, "in control"), h("div", {className: "pad"}, who),
    h("p", {className: "soft"}, "actuators: move one to take over"), column(hands.map(one => one.node)),
    points.length ? h("p", {className: "soft"}, "set points of the loops") : null,
    column(points.map(one => one.node)),
    h("p", {className: "soft"}, "pace"),
    h("div", {className: "pad"}, pace, h("button", {className: "tool", id: "again",
      onclick: () => reset()}, "new episode")),
    h("p", {className: "soft"}, "safety filter: what it did, and rows that are crossed"), events)));

  function card(signal, color, limits) {
    const plot = h("div", {className: "chart"}), value = h("strong", {className: "n"});
    const box = h("div", {className: "card", "data-signal": signal.name},
      h("div", {className: "bar"}, h("span", {className: "grow"}, words(signal.name)), value), plot);
    box.style.padding = ".6rem .7rem .2rem";
    box.firstChild.style.cssText = "flex-wrap:nowrap;margin:0";
    grid.append(box);
    trends.set(signal.name, []);
    charts.set(signal.name, {signal, color, limits, plot, value, box, chart: null});
  }
  about.observation.forEach(signal => card(signal, palette[0],
    about.limits.filter(limit => limit.signal === signal.name && limit.kind !== "rate")));
  about.action.forEach(signal => card(signal, palette[4], []));

  function draw(one, name) {
    const values = trends.get(name), now = values.at(-1);
    const lines = [{label: name, color: one.color, x: steps.slice(), y: values.slice()}];
    const lined = one.limits.map(limit => ({y: limit.bound}));
    about.loops.forEach((loop, i) => {
      if (loop.signal === name) lined.push({y: last.setpoints[i], color: palette[2]});
    });
    one.value.textContent = short(now) + unit(one.signal);
    const crossed = one.limits.some(limit => limit.kind === "at_most" ? now > limit.bound : now < limit.bound);
    one.box.style.borderColor = crossed ? "var(--bad)" : "";
    if (one.chart) return one.chart.update(lines, lined);
    const near = lined.map(mark => mark.y).filter(y => Math.abs(y) < 1e5);
    const ends = [one.signal.low, one.signal.high, ...near].filter(y => y !== null);
    one.chart = lineChart(one.plot, {lines, marks: lined, height: 150, plain: true,
      range: ends.length > 1 ? [Math.min(...ends), Math.max(...ends)] : null});
  }

  function note(state) {
    const text = state.emergency ? "emergency action" : state.intervened ? "changed the action" : "";
    const crossed = state.alarms.join(", ");
    const line = [text, state.causes.length ? `because of ${words(state.causes.join(", "))}` : "",
      crossed ? `crossed: ${words(crossed)}` : ""].filter(Boolean).join("; ");
    if (!line || log[0]?.line === line) { if (!line && log[0]) log[0].line = ""; return; }
    log.unshift({line});
    const item = h("li", {}, h("span", {className: "soft"}, `step ${state.step} `), line);
    if (state.emergency) item.style.color = "var(--bad)";
    events.prepend(item);
    while (events.children.length > 60) events.lastChild.remove();
  }

  return {
    show(state) {
      if (last && state.step < last.step) {
        steps.length = log.length = 0;
        events.replaceChildren();
        trends.forEach(values => { values.length = 0; });
      }
      const fresh = !steps.length || state.step > steps.at(-1);
      last = state;
      if (fresh) {
        steps.push(state.step);
        about.observation.forEach((signal, i) => trends.get(signal.name).push(state.signals[i]));
        about.action.forEach((signal, i) => trends.get(signal.name).push(state.actuators[i]));
        if (steps.length > KEPT) [steps, ...trends.values()].forEach(values => values.shift());
        note(state);
      }
      charts.forEach(draw);
      hands.forEach((one, i) => one.set(state.actuators[i]));
      points.forEach((one, i) => one.set(state.setpoints[i]));
      for (const button of who) button.setAttribute("aria-pressed", button.dataset.control === state.control);
      for (const button of pace) button.setAttribute("aria-pressed", +button.dataset.speed === state.speed);
      const badge = state.stopped ? ["bad", "stopped by the filter"] : state.emergency ? ["bad", "emergency"]
        : state.alarms.length ? ["warn", "alarm"] : state.intervened ? ["warn", "filter acts"] : ["running", "normal"];
      status.replaceChildren(h("span", {className: `badge ${badge[0]}`}, state.over ? "the episode is over" : badge[1]),
        h("span", {className: "soft"}, `step ${state.step} of ${about.horizon}, return ${short(state.total)}`),
        ...(state.stopped ? [h("button", {className: "tool", id: "reset-stop",
          onclick: () => send({reset_stop: true})}, "lift the stop")] : []));
      Object.assign(root.dataset, {step: state.step, control: state.control, over: state.over,
        acts: state.intervened || state.emergency ? "yes" : root.dataset.acts || ""});
    },
    remove: () => charts.forEach(one => one.chart && one.chart.remove()),
  };
}
