// The shell: tabs, requests, and what goes wrong. It knows no suite.
import {showRuns} from "./runs.js";
import {showPlay} from "./play.js";

// An element: h("a", {href: "#"}, "text", child).
export function h(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && name !== "list") node[name] = value;
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined));
  return node;
}

export function complain(error) {
  const line = document.getElementById("problem");
  line.textContent = error ? error.message || String(error) : "";
  line.hidden = !error;
}

async function answered(response) {
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  const error = new Error(answer.detail || `the studio answered ${response.status}`);
  throw Object.assign(error, {status: response.status});
}

export const get = async path => answered(await fetch(path));
export const post = async (path, body = {}) => answered(await fetch(path, {
  method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)}));

export const number = (value, digits = 4) => value === null || value === undefined ? "–"
  : Number(value).toLocaleString("en", {maximumSignificantDigits: digits});

export const about = await get("/api/about").catch(error => { complain(error); throw error; });

// Runs of an action, with what went wrong in sight.
export const guarded = action => async (...values) => {
  try {
    complain(null);
    return await action(...values);
  } catch (error) {
    complain(error);
  }
};

let leave = () => {};

// "#grid" is a suite, "#grid/run=NAME" one with a run that is chosen already.
async function show() {
  const [tab, rest] = location.hash.slice(1).split(/\/(.*)/s);
  const suite = tab in about.suites ? tab : null;
  for (const link of document.querySelectorAll("#tabs a")) {
    if (link.dataset.tab === (suite || "runs")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  leave();
  complain(null);
  const main = document.getElementById("main");
  main.replaceChildren();
  delete document.body.dataset.ready;
  const chosen = new URLSearchParams(rest || "");
  leave = suite ? showPlay(main, suite, chosen) : showRuns(main);
}

const label = name => name.length < 4 ? name.toUpperCase() : name[0].toUpperCase() + name.slice(1);
document.getElementById("tabs").append(...["runs", ...Object.keys(about.suites)].map(name =>
  h("a", {href: `#${name}`, "data-tab": name}, label(name))));
addEventListener("hashchange", show);
show();
