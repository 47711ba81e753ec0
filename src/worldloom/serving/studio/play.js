// A suite's tab: a run or a world to play in, and what the suite's own script makes of it.
import {about, complain, get, guarded, h, post} from "./studio.js";
import {lineChart} from "./charts.js";

const loaded = new Map();
const MOVED = 409; // another tab of the browser plays the session now

function script(path) { // scripts that are no modules, once each
  if (!loaded.has(path)) {
    loaded.set(path, new Promise((resolve, reject) => document.head.append(h("script", {src: path,
      onload: resolve, onerror: () => reject(new Error(`${path} cannot be loaded`))}))));
  }
  return loaded.get(path);
}

export function showPlay(main, suite, chosen) {
  let end = () => {}, gone = false;
  const target = h("select", {id: "target", className: "grow"});
  const seed = h("input", {id: "seed", type: "number", value: "0", min: "0", step: "1"});
  seed.style.width = "6rem";
  const start = h("button", {className: "tool main-tool", id: "start"}, "start");
  const said = h("span", {className: "soft", id: "said"});
  const root = h("div", {id: "session"});
  const back = h("button", {className: "tool main-tool", id: "take-back"}, "play on here");
  const moved = h("p", {id: "moved", role: "status", hidden: true},
    "This session goes on in another tab of the browser. ", back);
  main.append(h("div", {className: "bar"}, h("label", {className: "grow"}, "play in", target),
    h("label", {}, "seed", seed), start, said), moved, root);

  // ask(): a session of the server's, begun or joined.
  const enter = guarded(async ask => {
    end();
    end = () => {};
    root.replaceChildren();
    moved.hidden = true;
    delete document.body.dataset.ready;
    start.disabled = true;
    said.textContent = "getting ready; the first time takes a while …";
    try {
      const {id, tab, about: facts, state} = await ask();
      for (const file of facts.scripts || []) await script(`/static/${suite}/${file}`);
      const {mount} = await import(`/static/${suite}/studio.js`);
      if (gone) return;
      // Who loads this page again, or opens its address in another tab, plays on there.
      history.replaceState(null, "", `#${suite}/${new URLSearchParams({session: id})}`);
      const path = `/api/sessions/${id}`;
      let view = null, source = null;
      const leave = () => {
        end();
        end = () => {};
        moved.hidden = false;
        root.inert = true;
        back.onclick = () => enter(() => post(`${path}/join`));
        document.body.dataset.ready = "moved";
      };
      const tell = async (what, message) => {
        try {
          return await post(`${path}/${what}?tab=${tab}`, message);
        } catch (error) {
          if (error.status === MOVED) leave();
          throw error;
        }
      };
      const say = message => tell("act", message);
      const send = guarded(async message => {
        const next = await say(message);
        view.show(next);
        return next;
      });
      const reset = guarded(async () => {
        seed.value = Number(seed.value) + 1;
        view.show(await tell("reset", {seed: Number(seed.value)}));
      });
      root.inert = false;
      view = mount(root, {about: facts, state, ask: say, send, reset, h, lineChart,
        palette: about.palette});
      view.show(state);
      const listen = on => {
        if (source) source.close();
        source = null;
        if (!on || !facts.period) return;
        source = new EventSource(`${path}/stream?tab=${tab}`);
        source.onmessage = event => view.show(JSON.parse(event.data));
        source.onerror = event => { // a stream that only broke off is opened again by the browser
          if (event.target.readyState !== EventSource.CLOSED) return;
          listen(false);
          complain("this session has ended; start another");
        };
        source.addEventListener("moved", leave);
        source.addEventListener("problem", event => {
          listen(false);
          guarded(() => { throw new Error(JSON.parse(event.data)); })();
        });
      };
      listen(true);
      document.activeElement?.blur(); // keys are for the world now
      const hidden = () => listen(!document.hidden); // a world nobody looks at stands still
      document.addEventListener("visibilitychange", hidden);
      end = () => {
        listen(false);
        document.removeEventListener("visibilitychange", hidden);
        if (view.remove) view.remove();
      };
      said.textContent = "";
      document.body.dataset.ready = "session";
    } finally {
      start.disabled = false;
      if (said.textContent.startsWith("getting")) said.textContent = "";
    }
  });
  const begin = () => enter(() => {
    const [kind, name] = target.value.split(/:(.*)/s);
    return post("/api/sessions", {suite, [kind]: name, seed: Number(seed.value)});
  });
  start.addEventListener("click", begin);

  guarded(async () => {
    const runs = (await get("/api/runs")).filter(row => row.suite === suite && row.trained);
    const option = (value, text) => h("option", {value}, text);
    if (runs.length) target.append(h("optgroup", {label: "runs, with what they learned"},
      runs.map(row => option(`run:${row.run}`, `${row.run === "." ? row.name : row.run} (${row.env})`))));
    const worlds = Object.entries(about.suites[suite]);
    if (worlds.length) target.append(h("optgroup", {label: "worlds"}, worlds.map(
      ([name, text]) => option(`world:${name}`, text ? `${name}: ${text}` : name))));
    if (!target.options.length) {
      start.disabled = true;
      said.textContent = "There is nothing to play here yet: train in a world first.";
    }
    if (chosen.get("run")) {
      target.value = `run:${chosen.get("run")}`;
      if (target.value) await begin();
      else throw new Error(`${chosen.get("run")} is no run that can be played here`);
    }
    if (chosen.get("session")) await enter(() => post(`/api/sessions/${chosen.get("session")}/join`));
    document.body.dataset.ready ||= "play";
  })();
  return () => { gone = true; end(); };
}
