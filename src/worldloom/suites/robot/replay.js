// The page of a replay: its stage, its time, its plots. What it shows is in the element "data".

const $ = id => document.getElementById(id);

// Columns of a table of numbers, (steps, columns) row by row.
const columnsOf = (table, columns) => Array.from({length: columns}, (_, i) =>
  Float32Array.from({length: table.length / columns}, (_, t) => table[t * columns + i]));

// What all episodes share, and beside it the episode that is shown: `show` puts another in its place.
const record = JSON.parse($("data").textContent);
let duration = 0;
prepareScene(record);

// An episode's tables as arrays, and what plots read of them. Pushes and forces may be missing.
function unpackedEpisode(given) {
  const episode = {...given, contact: unpack(given.contact, Uint8Array)};
  for (const name of ["angles", "targets", "terms", "velocity", "command"])
    episode[name] = unpack(given[name], Float32Array);
  for (const name of ["positions", "quaternions", "base", "push", "torque", "force", "pressure"])
    episode[name] = given[name] ? unpack(given[name]) : null;
  const joints = record.joints.length, {steps, push, force} = episode;
  const angles = columnsOf(episode.angles, joints), targets = columnsOf(episode.targets, joints);
  const terms = columnsOf(episode.terms, record.names.length), total = new Float32Array(steps);
  for (const values of terms) values.forEach((value, t) => { total[t] += value; });
  const torques = episode.torque ? columnsOf(episode.torque, joints) : [];
  const loads = force ? [0, 1].map(foot => Float32Array.from({length: steps},
    (_, t) => Math.hypot(...force.subarray(6 * t + 3 * foot, 6 * t + 3 * foot + 3)))) : [];
  const pushes = [];  // first and last frame of each
  for (let t = 0; push && t < steps; t++) {
    const same = t && push[2 * t] === push[2 * t - 2] && push[2 * t + 1] === push[2 * t - 1];
    if (!push[2 * t] && !push[2 * t + 1]) continue;
    if (same) pushes.at(-1)[1] = t; else pushes.push([t, t]);
  }
  episode.columns = {angles, targets, terms, total, torques, loads, contacts: columnsOf(episode.contact, 2),
    smooth: averaged(episode.velocity)};
  return {...episode, pushes};
}

// The camera -------------------------------------------------------------------------------------

const VIEWS = {side: [-90, 4], front: [0, 6], corner: [-52, 14]};
const camera = {target: [0, 0, 0]};

function look(name) {
  const [azimuth, elevation] = VIEWS[name];
  camera.azimuth = azimuth * Math.PI / 180;
  camera.elevation = elevation * Math.PI / 180;
  camera.distance = 3.3 * record.height;
}

function orbit(around, up) {
  camera.azimuth += around;
  camera.elevation = Math.min(Math.max(camera.elevation + up, 0.01), 1.5);
  stale = true;
}

function zoom(factor) {
  camera.distance = Math.min(Math.max(camera.distance * factor, 1.1 * record.height), 20 * record.height);
  stale = true;
}

// A second's average of where the base is: a camera on the base itself would bob with each step.
function follow(time) {
  const around = [-0.5, -0.25, 0, 0.25, 0.5].map(gap => basePlace(record, time + gap));
  camera.target = [0, 1].map(i => around.reduce((sum, place) => sum + place[i], 0) / around.length);
  const high = around.reduce((sum, place) => sum + place[2], 0) / around.length;
  camera.target.push(record.uneven ? high - 0.3 * record.height : 0.7 * record.height);
}

// The stage --------------------------------------------------------------------------------------

let canvas, draw, colors = theme(), stale = true;

function setStage(plain) {
  const fresh = made("canvas", {role: "img", "aria-label": "the robot"});
  if (canvas) canvas.replaceWith(fresh); else $("stage").prepend(fresh);
  canvas = fresh;
  try {
    if (plain) throw new Error("asked for");
    draw = webglView(canvas, record.shapes, record.uneven);
    $("note").textContent = record.notes.join(" ");
    document.body.dataset.drawing = "webgl";
    canvas.addEventListener("webglcontextlost", () => setStage(true));
  } catch (error) {
    const second = made("canvas", {role: "img", "aria-label": "the robot"});  // one kind of pen each
    canvas.replaceWith(second);
    canvas = second;
    draw = paperView(canvas, record.shapes, record.uneven);
    document.body.dataset.drawing = "canvas";
    $("note").textContent = ["A plain drawing: there is no WebGL 2.", ...record.notes].join(" ");
  }
  wire(canvas);
  fit();
}

function fit() {
  fitCanvas(canvas);
  stale = true;
}

function wire(canvas) {
  const fingers = new Map();
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a[0] - b[0], a[1] - b[1]);
  };
  canvas.addEventListener("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
  });
  canvas.addEventListener("pointermove", event => {
    const last = fingers.get(event.pointerId);
    if (!last) return;
    const before = fingers.size === 2 ? spread() : 0;
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    if (fingers.size === 2) return zoom(before / Math.max(spread(), 1));
    orbit((last[0] - event.clientX) * 0.008, (event.clientY - last[1]) * 0.006);
  });
  for (const end of ["pointerup", "pointercancel"])
    canvas.addEventListener(end, event => fingers.delete(event.pointerId));
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    zoom(Math.exp(Math.min(Math.max(event.deltaY, -200), 200) * 0.0012));
  }, {passive: false});
  canvas.addEventListener("dblclick", () => { look("corner"); stale = true; });
}

// Time -------------------------------------------------------------------------------------------

let time = 0, playing = false, last = 0, plots = [];

// What acts on the robot in a frame, as arrows.
function arrowsNow() {
  const {push, force, pressure} = record, frame = Math.round(time / record.seconds);
  const cell = (table, start, count) => table && [...table.subarray(start, start + count)];
  const feet = [0, 3].map(i => ({force: cell(force, 6 * frame + i, 3), at: cell(pressure, 6 * frame + i, 3)}));
  return forceArrows(record, basePlace(record, time), cell(push, 2 * frame, 2),
    force && $("forces").checked ? feet : [], colors);
}

function seek(to) {
  time = Math.min(Math.max(to, 0), duration);
  const frame = Math.round(time / record.seconds);
  const {push} = record, newtons = push ? Math.hypot(push[2 * frame], push[2 * frame + 1]) : 0;
  $("pushing").textContent = newtons ? `pushed by ${written(newtons, 1)} N` : "";
  $("scrub").value = frame;
  $("clock").textContent = `${written(time)} of ${written(duration)} s`;
  document.body.dataset.frame = frame;
  for (const plot of plots) plot.moveTo(time);
  stale = true;
}

function play(on) {
  if (on && time >= duration) seek(0);
  playing = on;
  $("play").textContent = on ? "❚❚ pause" : "▶ play";
  $("play").setAttribute("aria-label", on ? "pause" : "play");
  document.body.dataset.playing = on ? "yes" : "no";
}

function tick(now) {
  // A page in the background gets no frames: it does not jump when it is back.
  const passed = Math.min((now - last) / 1000, 0.25);
  last = now;
  if (playing) {
    seek(time + passed * Number($("speed").value));
    if (time >= duration) play(false);
  }
  if (stale) {
    if ($("follow").checked) follow(time);
    draw(shapePoses(record, time), camera, colors, arrowsNow());
    stale = false;
  }
  requestAnimationFrame(tick);
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return;
  const step = event.shiftKey ? 0.5 : record.seconds;
  const frame = Math.round(time / record.seconds) * record.seconds;
  const moves = {ArrowLeft: frame - step, ArrowRight: frame + step, Home: 0, End: duration};
  const looks = {a: () => orbit(-0.15, 0), d: () => orbit(0.15, 0), w: () => orbit(0, 0.1),
    s: () => orbit(0, -0.1), "+": () => zoom(0.9), "-": () => zoom(1 / 0.9)};
  if (event.key in looks) looks[event.key]();
  else if (event.key === " " && !event.target.closest("button,input[type=checkbox]")) play(!playing);
  else if (event.key in moves) {
    play(false);
    seek(moves[event.key]);
  } else return;
  event.preventDefault();
}

// The page ---------------------------------------------------------------------------------------

function about() {
  const facts = [record.about, `${written(duration, 1)} s`, `return ${written(record.total, 1)}`];
  const mean = values => values.reduce((sum, x) => sum + x, 0) / values.length;
  if (record.command.some(x => x !== 0)) facts.push(
    `asked for ${written(mean(record.command))} m/s, went ${written(mean(record.velocity))} m/s`);
  if (record.pushes.length) {
    const sizes = record.pushes.map(([t]) => Math.hypot(record.push[2 * t], record.push[2 * t + 1]));
    const [low, high] = [Math.min(...sizes), Math.max(...sizes)].map(x => written(x, 1));
    facts.push(`${sizes.length} ${sizes.length > 1 ? "pushes" : "push"} of ${low === high ? low : `${low} to ${high}`} N`);
  }
  $("facts").replaceChildren(...facts.filter(Boolean).map(text => made("span", {}, text)));
  const end = record.diverged ? "the simulation diverged" : record.fell ? "fell" : "";
  if (end) $("facts").append(made("span", {class: "warn"}, `${end} after ${written(duration, 1)} s`));
}

// Shows one of the episodes, from its start.
function show(number) {
  play(false);
  Object.assign(record, unpackedEpisode(record.episodes[number]));
  duration = (record.steps - 1) * record.seconds;
  $("scrub").max = record.steps - 1;
  for (const id of ["forced", "loads", "loaded"]) $(id).hidden = !record.force;
  for (const id of ["torqued", "torque", "twisted"]) $(id).hidden = !record.torque;
  about();
  for (const plot of plots) plot.draw();
  seek(0);
  follow(0);
}

// The average of what came before, over half a second.
function averaged(values) {
  const width = Math.max(1, Math.round(0.5 / record.seconds)), sums = new Float32Array(values.length);
  let sum = 0;
  values.forEach((value, t) => {
    sum += value - (t >= width ? values[t - width] : 0);
    sums[t] = sum / Math.min(t + 1, width);
  });
  return sums;
}

function fillPlots() {
  const [blue, brick] = record.palette, names = record.joints.map(name => name.replaceAll("_", " "));
  names.forEach((name, i) => $("joint").append(made("option", {value: i}, name)));
  $("joint").value = Math.max(0, names.findIndex(name => name.includes("knee")));
  const seekStill = to => { play(false); seek(to); };
  const plot = (id, options) => plotOver(record, $(id), options, seekStill);
  const joint = () => Number($("joint").value), columns = () => record.columns;
  const constant = value => new Float32Array(record.steps).fill(value);
  const choose = i => {
    $("joint").value = i;
    for (const chart of ofJoint) chart.draw();
    torques.moveTo(time);
  };
  const ofJoint = [
    plot("joints", {height: 190, lines: () => [
      {name: "target", color: brick, values: columns().targets[joint()], dash: "5 3"},
      {name: "angle", color: blue, values: columns().angles[joint()], wide: 2}]}),
    plot("torque", {height: 150, lines: () => {
      const limit = record.limits[joint()];
      return [{name: "torque", color: record.palette[2], values: columns().torques[joint()] || []},
        ...(limit === null ? [] : [limit, -limit].map(most => ({name: "limit", color: "var(--soft)",
          values: constant(most), dash: "2 4", wide: 1, quiet: most < 0})))];
    }})];
  const torques = barsOver(record, $("torques"), {color: record.palette[2], unit: "Nm", choose, current: joint,
    rows: () => columns().torques.map((values, i) => ({name: names[i], values, limit: record.limits[i]}))});
  plots = [
    plot("speeds", {height: 170, lines: () => [
      {name: "now", color: "#86b0e2", values: record.velocity, wide: 1.2},
      {name: "over half a second", color: blue, values: columns().smooth, wide: 2.2},
      {name: "command", color: brick, values: record.command, dash: "6 4"}]}),
    plot("feet", {height: 92, bars: () => ["left", "right"].map((name, i) =>
      ({name, color: record.feet[i], values: columns().contacts[i]}))}),
    plot("loads", {height: 150, digits: 0, lines: () => [...columns().loads.map((values, i) =>
      ({name: ["left", "right"][i], color: record.feet[i], values})),
    {name: "weight", color: "var(--soft)", values: constant(record.weight), dash: "2 4", wide: 1}]}),
    torques,
    ...ofJoint,
    plot("terms", {height: 240, choose: true, hidden: ["total"], lines: () => [
      ...columns().terms.map((values, i) => ({name: record.names[i], color: record.palette[i], values})),
      {name: "total", color: "var(--plain)", values: columns().total, wide: 2.2}]})];
  $("joint").addEventListener("change", () => choose(joint()));
}

look("corner");
for (const [i, {name, total}] of record.episodes.entries())
  $("episode").append(made("option", {value: i}, `${name}: return ${written(total, 1)}`));
$("chosen").hidden = record.episodes.length < 2;
show(0);
setStage(location.hash === "#plain");
fillPlots();
seek(0);
$("play").addEventListener("click", () => play(!playing));
$("scrub").addEventListener("input", () => { play(false); seek($("scrub").value * record.seconds); });
for (const box of ["follow", "forces"]) $(box).addEventListener("change", () => { stale = true; });
$("episode").addEventListener("change", () => show(Number($("episode").value)));
for (const button of document.querySelectorAll("[data-view]"))
  button.addEventListener("click", () => { look(button.dataset.view); stale = true; });
document.addEventListener("keydown", press);
new ResizeObserver(fit).observe($("stage"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colors = theme();
  stale = true;
});
requestAnimationFrame(now => {
  last = now;
  tick(now);
  document.body.dataset.ready = "yes";
});
