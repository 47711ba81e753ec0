// ARC: a set and a task to choose, above the page of `worldloom arc play`; or a game.
import {mountGame} from "./game.js";

export function mount(root, tools) {
  return tools.about.game ? mountGame(root, tools) : mountTasks(root, tools);
}

function mountTasks(root, {about, ask, send, h}) {
  const set = h("select", {id: "set", onchange: () => send({set: set.value})},
    about.sets.map(name => h("option", {value: name}, name)));
  let all = [];
  const task = h("input", {id: "task", list: "tasks", onchange: () => send({task: task.value})});
  const ids = h("datalist", {id: "tasks"});
  const step = by => {
    const at = all.indexOf(root.dataset.task);
    return send({task: all[(at + by + all.length) % all.length]});
  };
  const frame = h("iframe", {title: "the task", id: "frame"});
  frame.style.height = "max(640px, calc(100vh - 180px))";
  root.append(h("div", {className: "bar"}, h("label", {}, "tasks", set), h("label", {}, "task", task, ids),
    h("button", {className: "tool", id: "previous", onclick: () => step(-1)}, "← previous"),
    h("button", {className: "tool main-tool", id: "next", onclick: () => step(1)}, "next task →")),
  h("div", {className: "stage"}, frame));
  // What the page in the frame asks instead of a server of its own.
  window.askSession = (method, path, body) => ask({ask: [method, path], body});
  return {
    show(state) {
      set.value = state.set;
      task.value = state.task;
      all = state.tasks;
      ids.replaceChildren(...all.map(id => h("option", {value: id})));
      root.dataset.task = state.task;
      frame.src = "/static/arc/play.html";
    },
    remove: () => { delete window.askSession; },
  };
}
