// A gridworld: its picture, the seat a person has in it, and the scores.
const ARROWS = {up: "↑", down: "↓", left: "←", right: "→"};

export function mount(root, {about, send, reset, h}) {
  let busy = false, agent = 0;
  const image = h("img", {alt: `the world ${about.name}`, id: "world"});
  image.style.cssText = "display:block;width:100%;height:auto";
  const seat = h("div", {id: "seat"});
  seat.style.cssText = "position:absolute;border:3px solid var(--accent);border-radius:6px;"
    + "pointer-events:none;transition:all .12s";
  const stage = h("div", {className: "stage"}, image, seat);
  const line = h("p", {className: "soft", id: "line"}), scores = h("tbody", {id: "scores"});
  const act = async message => {
    if (busy) return;
    busy = true;
    await send(message);
    busy = false;
  };
  const pads = about.actions.map((name, i) => h("button", {className: "tool", title: name,
    "data-action": i, onclick: () => act({action: i})}, ARROWS[name] || `${i - 3} ${name}`));
  root.append(h("div", {className: "play two"}, stage, h("div", {className: "card"},
    h("h2", {}, about.name), line,
    h("table", {}, h("thead", {}, h("tr", {}, ["agent", "score", ""].map((text, i) =>
      h("th", {className: i ? "n" : ""}, text)))), scores),
    h("p", {}, h("kbd", {}, "w a s d"), " or arrows move",
      about.actions.slice(4).map((name, i) => [", ", h("kbd", {}, `${i + 1}`), ` ${name}`])),
    h("div", {className: "pad"}, pads, h("button", {className: "tool main-tool", id: "again",
      onclick: () => reset()}, "new episode")),
    h("p", {className: "soft"}, `The others are ${about.others}; click an agent to take its seat.`))));

  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input,select")) return;
    const action = about.keys[event.key.replace("Arrow", "").toLowerCase()];
    if (action === undefined) return;
    event.preventDefault();
    if (!event.repeat || !busy) act({action});
  }
  document.addEventListener("keydown", press);
  return {
    show(state) {
      agent = state.agent;
      const [rows, columns] = state.cells, [row, column] = state.own;
      image.src = `data:image/png;base64,${state.picture}`;
      stage.style.maxWidth = `min(100%, calc(76vh * ${columns / rows}))`;
      Object.assign(seat.style, {left: `${100 * column / columns}%`, top: `${100 * row / rows}%`,
        width: `${100 / columns}%`, height: `${100 / rows}%`});
      line.textContent = state.over ? `the end after ${state.turn} turns`
        : `turn ${state.turn + 1}${about.horizon ? ` of ${about.horizon}` : ""}`;
      scores.replaceChildren(...state.scores.map((score, i) => {
        const dot = h("span", {});
        dot.style.cssText = `display:inline-block;width:.8em;height:.8em;border-radius:50%;`
          + `background:${about.colors[i]};margin-right:.5em`;
        const paid = state.paid[i];
        return h("tr", {}, h("td", {}, dot, h("button", {className: "name", onclick: () =>
          act({agent: i})}, i === agent ? `${i}, you` : `${i}`)),
          h("td", {className: "n"}, +score.toFixed(2)),
          h("td", {className: "n soft"}, paid ? (paid > 0 ? "+" : "") + +paid.toFixed(2) : ""));
      }));
      for (const pad of pads) pad.disabled = state.over;
      root.dataset.turn = state.turn;
      root.dataset.over = state.over;
      root.dataset.own = state.own.join(",");
    },
    remove: () => document.removeEventListener("keydown", press),
  };
}
