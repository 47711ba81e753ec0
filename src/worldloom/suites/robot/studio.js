// A robot in 3D, drawn by scene.js as in a replay, from poses that the server streams.
export function mount(root, {about, send, reset, h}) {
  prepareScene(about);
  const record = {shapes: about.shapes, bodies: about.bodies, steps: 1, seconds: 1,
    positions: [], quaternions: [], base: [0, 0, 0]};
  const camera = {target: [0, 0, 0.75 * about.height], azimuth: -52 * Math.PI / 180,
    elevation: 14 * Math.PI / 180, distance: 3.9 * about.height};
  let canvas, draw, colors, stale = false, gone = false, last = null, force = 15;
  const stage = h("div", {className: "stage", id: "stage"});
  stage.style.height = "clamp(280px, 62vh, 640px)";
  const facts = h("dl"), note = h("p", {className: "soft"}, about.note);
  const forces = h("input", {type: "checkbox", id: "forces", checked: true, onchange: () => { stale = true; }});
  const slider = h("input", {type: "range", id: "force", min: 1, max: about.force, value: force,
    oninput: () => { force = Number(slider.value); size.textContent = `${force} N`; }});
  const size = h("span", {}, `${force} N`);
  const speed = by => send(by === null ? {speed: 0} : {faster: by});
  const push = (x, y) => send({push: [x * force, y * force]});
  const button = (text, action, id) => h("button", {className: "tool", id, onclick: action}, text);
  root.append(h("div", {className: "play two"}, stage, h("div", {className: "card"},
    h("h2", {}, about.name), h("p", {className: "soft"}, `In control: ${about.policy}.`), facts,
    h("div", {className: "pad"}, button("↑ faster", () => speed(0.05), "faster"),
      button("↓ slower", () => speed(-0.05), "slower"), button("stop", () => speed(null), "stop"),
      button("← push", () => push(0, 1), "push-left"), button("push →", () => push(0, -1), "push-right"),
      h("button", {className: "tool main-tool", id: "again", onclick: () => reset()}, "stand up again")),
    h("p", {}, h("label", {}, "force of a push ", slider, " ", size)),
    h("p", {}, h("label", {}, forces, " show the forces on the feet")),
    h("p", {className: "soft"}, h("kbd", {}, "↑"), " ", h("kbd", {}, "↓"), " speed, ",
      h("kbd", {}, "←"), " ", h("kbd", {}, "→"), " push it sideways, ", h("kbd", {}, "f"), " from behind, ",
      h("kbd", {}, "b"), " from the front, ", h("kbd", {}, "space"), " stop. Click the robot to poke it; ",
      "drag to look around, wheel to zoom."), note)));

  function setStage(plain) {
    const fresh = () => {
      canvas = h("canvas", {role: "img", "aria-label": "the robot"});
      stage.replaceChildren(canvas);
    };
    fresh();
    try {
      if (plain) throw new Error("asked for");
      draw = webglView(canvas, about.shapes, about.uneven);
      canvas.addEventListener("webglcontextlost", () => setStage(true));
    } catch {
      fresh(); // a canvas has one kind of pen
      draw = paperView(canvas, about.shapes, about.uneven);
      note.textContent = `A plain drawing: there is no WebGL 2. ${about.note}`;
    }
    wire();
    fit();
  }

  function fit() {
    fitCanvas(canvas);
    stale = true;
  }

  function wire() {
    let start = null, at = null;
    canvas.addEventListener("pointerdown", event => {
      canvas.setPointerCapture(event.pointerId);
      start = at = [event.clientX, event.clientY];
    });
    canvas.addEventListener("pointermove", event => {
      if (!at) return;
      camera.azimuth -= (event.clientX - at[0]) * 0.008;
      camera.elevation = Math.min(Math.max(camera.elevation + (event.clientY - at[1]) * 0.006, 0.01), 1.5);
      at = [event.clientX, event.clientY];
      stale = true;
    });
    canvas.addEventListener("pointerup", event => {
      const moved = start && Math.hypot(event.clientX - start[0], event.clientY - start[1]);
      start = at = null;
      if (moved !== null && moved < 4) { // a click pokes it, away from who looks
        const {back} = axesOf(camera), length = Math.hypot(back[0], back[1]) || 1;
        push(-back[0] / length, -back[1] / length);
      }
    });
    canvas.addEventListener("wheel", event => {
      event.preventDefault();
      const factor = Math.exp(Math.min(Math.max(event.deltaY, -200), 200) * 0.0012);
      camera.distance = Math.min(Math.max(camera.distance * factor, 1.1 * about.height), 20 * about.height);
      stale = true;
    }, {passive: false});
  }

  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input:not([type=checkbox]),select")) return;
    if (event.key === " " && event.target.closest("button,a,input")) return;
    const keys = {ArrowUp: () => speed(0.05), w: () => speed(0.05), ArrowDown: () => speed(-0.05),
      s: () => speed(-0.05), " ": () => speed(null), ArrowLeft: () => push(0, 1), a: () => push(0, 1),
      ArrowRight: () => push(0, -1), d: () => push(0, -1), f: () => push(1, 0), b: () => push(-1, 0)};
    if (!(event.key in keys)) return;
    event.preventDefault();
    if (!event.repeat) keys[event.key]();
  }

  function frame() {
    if (gone) return;
    if (stale && last) {
      const arrows = forceArrows(about, last.base, last.push, forces.checked ? last.feet : [], colors);
      draw(shapePoses(record, 0), camera, colors, arrows);
      root.dataset.arrows = arrows.length;
      stale = false;
    }
    requestAnimationFrame(frame);
  }

  const paint = () => { colors = theme(); stale = true; };
  const dark = matchMedia("(prefers-color-scheme: dark)"), watcher = new ResizeObserver(fit);
  paint();
  setStage(false);
  watcher.observe(stage);
  dark.addEventListener("change", paint);
  document.addEventListener("keydown", press);
  requestAnimationFrame(frame);
  return {
    show(state) {
      // On the base itself the camera would bob with each step; a new episode begins elsewhere.
      const share = last && state.step >= last.step ? 0.1 : 1;
      if (about.uneven) camera.target[2] += share * (state.base[2] - 0.25 * about.height - camera.target[2]);
      for (const i of [0, 1]) camera.target[i] += share * (state.base[i] - camera.target[i]);
      last = state;
      Object.assign(record, {positions: state.positions, quaternions: state.quaternions, base: state.base});
      stale = true;
      const fact = (name, value, kind) => [h("dt", {}, name), h("dd", {}, h("span", {className: kind || ""}, value))];
      facts.replaceChildren(...fact("asked for", `${state.asked.toFixed(2)} m/s`),
        ...fact("goes", `${state.speed.toFixed(2)} m/s`),
        ...fact("walked", `${state.base[0].toFixed(2)} m in ${(state.step * about.period).toFixed(1)} s`),
        ...fact("feet", state.contact.map((down, i) => `${["left", "right"][i]} ${down ? "down" : "up"}`).join(", ")),
        ...fact("state", state.fell ? "fell" : state.push ? "is pushed" : "on its feet",
          state.fell ? "badge bad" : state.push ? "badge warn" : "badge running"));
      Object.assign(root.dataset, {step: state.step, asked: state.asked, fell: state.fell,
        pushed: state.push ? "yes" : root.dataset.pushed || "", height: state.base[2]});
    },
    remove() {
      gone = true;
      watcher.disconnect();
      dark.removeEventListener("change", paint);
      document.removeEventListener("keydown", press);
    },
  };
}
