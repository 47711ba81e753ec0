// A game: its frame of 64 x 64 pixels, keys and clicks for what it can be told.
const KEYS = {ArrowUp: 1, ArrowDown: 2, ArrowLeft: 3, ArrowRight: 4, " ": 5, z: 7};
const SCALE = 8, SIDE = 64;

export function mountGame(root, {about, send, reset, h}) {
  let busy = false, over = false;
  const act = async message => {
    if (busy || over && !message.save) return;
    busy = true;
    await send(message);
    busy = false;
  };
  const line = h("p", {className: "soft", id: "line"}), saved = h("p", {className: "soft", id: "saved"});
  const canvas = h("canvas", {id: "frame", width: SIDE * SCALE, height: SIDE * SCALE});
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `the board of ${about.game}`);
  canvas.style.maxWidth = "100%";
  canvas.addEventListener("click", event => {
    const box = canvas.getBoundingClientRect(), at = (x, size) => Math.min(SIDE - 1, Math.floor(SIDE * x / size));
    if ("6" in about.actions) {
      act({action: 6, pixel: [at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width)]});
    }
  });
  const buttons = Object.entries(about.actions).filter(([id]) => id !== "6").map(([id, name]) =>
    h("button", {className: "tool", "data-action": id, onclick: () => act({action: Number(id)})}, name));
  root.append(h("div", {className: "play two"},
    h("div", {className: "card"}, h("h2", {}, about.game), h("p", {}, about.about), line, canvas),
    h("div", {className: "card"}, h("h2", {}, "actions"), h("div", {className: "pad"}, buttons),
      h("p", {}, "6" in about.actions ? "Click on the board." : "Arrows go, z takes back."),
      h("button", {className: "tool", id: "save", onclick: () => act({save: true})}, "save the episode"), saved,
      h("button", {className: "tool main-tool", id: "again", onclick: () => reset()}, "new episode"))));

  function press(event) {
    const action = KEYS[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || !(action in about.actions)) return;
    event.preventDefault();
    act({action});
  }
  document.addEventListener("keydown", press);

  return {
    show(state) {
      const pen = canvas.getContext("2d");
      state.frame.forEach((row, y) => [...row].forEach((colour, x) => {
        pen.fillStyle = about.palette[parseInt(colour, 16)];
        pen.fillRect(x * SCALE, y * SCALE, SCALE, SCALE);
      }));
      over = state.over;
      line.textContent = over ? `${state.end}: ${state.solved} of ${about.levels} levels in ${state.actions} actions`
        : `level ${state.level} of ${about.levels}, ${state.lives} lives, ${state.actions} of ${about.most} actions`;
      saved.textContent = state.saved ? `saved to ${state.saved}; learn from it with --algo bc --dataset` : "";
      for (const button of buttons) button.disabled = over;
      Object.assign(root.dataset, {level: state.level, actions: state.actions, over: state.over});
    },
    remove: () => document.removeEventListener("keydown", press),
  };
}
