// All runs of the folder: a table, curves of those that are ticked, and one in detail.
import {about, complain, get, guarded, h, number} from "./studio.js";
import {lineChart, style} from "./charts.js";

const REFRESH = 4000; // ms
const when = seconds => new Date(seconds * 1000).toLocaleString([],
  {month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23"});
const drawable = row => row.status !== "damaged" && row.status !== "sweep";
const file = (run, name) => "/files/" + `${run}/${name}`.split("/").map(encodeURIComponent).join("/")
  .replace("%3Fv%3D", "?v=");

// Whether a run has what is typed: each word is a part of a name, or setting=value, setting>number.
export function matches(row, typed) {
  return typed.trim().split(/\s+/).filter(Boolean).every(word => {
    const [, name, sign, value] = word.match(/^([\w.]+)(=|>|<)(.+)$/) || [];
    if (!sign) return [row.run, row.env, row.algo, row.suite, row.status].join(" ").includes(word);
    const own = name in row.settings ? row.settings[name] : row[name];
    if (own === undefined || own === null) return false;
    const [left, right] = [own, value].map(x => Number(String(x).replaceAll(",", "").replaceAll("−", "-")));
    return sign === "=" ? String(own) === value || left === right
      : sign === ">" ? left > right : left < right;
  });
}

// What is shown unless somebody chooses, of known metrics; scores: the figure that is each run's
// score, another than the mean where one agent wins what another loses and the sum is a constant.
export function usualMetric(known, scores) {
  const rivals = scores.length && new Set(scores).size === 1 && scores[0] !== "mean";
  const wanted = [rivals && `evaluation: ${scores[0]}`, "return", "evaluation: mean", ...known];
  return wanted.find(name => known.has(name)) || "";
}

export function showRuns(main) {
  let rows = [], open = null, chart = null, source = null, gone = false, chosen = null;
  const ticked = new Map(), curves = new Map(); // run -> colour, run -> columns
  const filter = h("input", {className: "grow", id: "filter", type: "search", list: "settings",
    placeholder: "filter: a word, algo=ppo, seed=1, score>100", oninput: () => table()});
  const names = h("datalist", {id: "settings"});
  const metric = h("select", {id: "metric", onchange: () => { chosen = metric.value; draw(); }});
  const over = h("select", {id: "over", onchange: () => draw()},
    h("option", {value: "steps"}, "steps"), h("option", {value: "seconds"}, "seconds"));
  const plot = h("div", {className: "chart", id: "curves"});
  const body = h("tbody"), details = h("aside", {className: "card details", hidden: true});
  const head = [["", ""], ["run", ""], ["world", "wide"], ["algorithm", "wide"], ["steps", "n wide"],
    ["score", "n"], ["when", "n wide"], ["", ""]];
  const layout = h("div", {className: "runs"},
    h("div", {className: "left"},
      h("section", {className: "card"},
        h("div", {className: "bar"}, h("label", {}, "metric", metric), h("label", {}, "over", over)),
        plot),
      h("section", {className: "card"},
        h("div", {className: "bar"}, filter, names, h("button", {className: "tool", id: "best",
          onclick: () => tickShown()}, "tick all shown")),
        h("div", {className: "table", tabIndex: 0, role: "region", ariaLabel: "runs"}, h("table", {},
          h("thead", {}, h("tr", {}, head.map(([text, kind]) => h("th", {className: kind}, text)))),
          body)))),
    details);
  main.append(layout);

  const shown = () => rows.filter(row => matches(row, filter.value));

  function color() {
    const used = new Set(ticked.values());
    return about.palette.find(one => !used.has(one)) || about.palette[ticked.size % about.palette.length];
  }

  const load = async run => curves.set(run, await get(`/api/curves?run=${encodeURIComponent(run)}`));

  const tick = guarded(async (run, on) => {
    if (on) {
      await load(run);
      if (gone) return;
      if (!ticked.has(run)) ticked.set(run, color());
    } else ticked.delete(run);
    draw();
    table();
  });

  const tickShown = guarded(async () => {
    for (const row of shown().filter(drawable).slice(0, 24)) {
      if (ticked.has(row.run)) continue;
      await load(row.run);
      if (gone) return;
      if (!ticked.has(row.run)) ticked.set(row.run, color());
    }
    draw();
    table();
  });

  let drawn = "";

  function table() {
    const now = JSON.stringify([shown(), [...ticked], open]);
    if (now === drawn) return; // whoever is on a button there stays on it
    drawn = now;
    body.replaceChildren(...shown().map(row => {
      const box = h("input", {type: "checkbox", className: "swatch", checked: ticked.has(row.run),
        disabled: !drawable(row), "aria-label": `curve of ${row.run}`,
        onchange: event => tick(row.run, event.target.checked)});
      if (ticked.has(row.run)) box.style.accentColor = ticked.get(row.run);
      const damaged = row.status === "damaged", name = row.run === "." ? row.name : row.run;
      const page = row.pages.includes("sweep.html") && {href: file(row.run, "sweep.html"),
        target: "_blank", rel: "noopener"};
      return h("tr", {className: row.run === open ? "open" : "", "data-run": row.run},
        h("td", {}, box),
        h("td", {}, drawable(row) ? h("button", {className: "name", onclick: () => show(row.run)}, name)
          : page ? h("a", page, name) : name, drawable(row) ? null : h("small", {}, row.problem)),
        h("td", {className: "wide"}, row.env || "–"), h("td", {className: "wide"}, row.algo || "–"),
        h("td", {className: "n wide"}, damaged ? "–" : number(row.steps, 6)),
        h("td", {className: "n"}, `${number(row.score)}${row.stderr ? ` ± ${number(row.stderr, 2)}` : ""}`),
        h("td", {className: "n wide"}, when(row.when)),
        h("td", {}, h("span", {className: `badge ${row.status}`}, row.status)));
    }));
    if (!rows.length) body.append(h("tr", {}, h("td", {colSpan: 8, className: "empty"},
      `No runs in ${about.folder} yet: worldloom train treasurehunt --out FOLDER writes one.`)));
  }

  // "return" of the training, "evaluation: mean" of the evaluations.
  const column = (run, name) => {
    const [kind, key] = name.startsWith("evaluation: ") ? ["evaluation", name.slice(12)]
      : ["training", name];
    const of = (curves.get(run) || {})[kind] || {};
    return {x: of[over.value], y: of[key], error: of[key === "mean" ? "stderr" : `${key}_stderr`]};
  };

  function draw() {
    const known = new Set();
    for (const run of ticked.keys()) {
      for (const kind of ["training", "evaluation"]) {
        for (const name of Object.keys(curves.get(run)?.[kind] || {})) {
          if (!["iteration", "steps", "seconds"].includes(name) && !name.endsWith("stderr")) {
            known.add(kind === "training" ? name : `evaluation: ${name}`);
          }
        }
      }
    }
    metric.replaceChildren(...[...known].map(name => h("option", {value: name}, name)));
    const scores = [...ticked.keys()].flatMap(run => Object.keys(curves.get(run)?.references || {}));
    metric.value = known.has(chosen) ? chosen : usualMetric(known, scores);
    const lines = [...ticked].map(([run, ink]) => {
      const {x = [], y = [], error} = column(run, metric.value);
      const at = x.map((_, i) => i).filter(i => x[i] !== null && y[i] !== undefined && y[i] !== null);
      return {label: run, color: ink, x: at.map(i => x[i]), y: at.map(i => y[i]),
        error: error && at.map(i => error[i])};
    }).filter(line => line.x.length);
    const marks = references(lines.map(line => line.label), metric.value.replace("evaluation: ", ""));
    plot.dataset.errors = lines.filter(line => line.error?.some(Boolean)).length;
    plot.dataset.marks = marks.map(mark => mark.label).join("|");
    plot.dataset.lines = lines.length;
    plot.dataset.points = Math.max(0, ...lines.map(line => line.x.length));
    if (chart && lines.length && plot.dataset.labels === `${metric.value}|${over.value}`) {
      chart.update(lines, marks);
      return;
    }
    if (chart) chart.remove();
    plot.replaceChildren();
    chart = null;
    plot.dataset.labels = `${metric.value}|${over.value}`;
    if (!lines.length) plot.append(h("p", {className: "empty"}, "Tick runs to lay their curves over each other."));
    else chart = lineChart(plot, {lines, marks, xLabel: over.value, yLabel: metric.value});
  }

  // What agents that learned nothing came to in the worlds of these runs, each figure once.
  function references(runs, figure) {
    const known = new Map();
    for (const run of runs) {
      const world = rows.find(row => row.run === run)?.env;
      for (const [name, y] of Object.entries(curves.get(run)?.references[figure] || {})) {
        known.set(`${name} ${y}`, {y, color: style("--soft"), label: `${world}: ${name} ${number(y)}`});
      }
    }
    return [...known.values()];
  }

  function listen(row) {
    if (source) source.close();
    source = null;
    if (!row || row.status !== "running") return;
    const last = kind => Math.max(0, ...(curves.get(row.run)?.[kind]?.iteration || []).slice(-1));
    source = new EventSource(`/api/live?run=${encodeURIComponent(row.run)}`
      + `&metrics=${Math.floor(last("training"))}&evals=${Math.floor(last("evaluation"))}`);
    source.onmessage = event => {
      const news = JSON.parse(event.data), of = curves.get(row.run);
      for (const kind of ["training", "evaluation"]) {
        for (const one of news[kind]) {
          const length = (of[kind].iteration || []).length;
          for (const name of new Set([...Object.keys(of[kind]), ...Object.keys(one)])) {
            const values = of[kind][name] ||= Array(length).fill(null);
            values.push(one[name] ?? null);
          }
        }
      }
      rows = rows.map(old => old.run === row.run ? news.row : old);
      draw();
      table();
      tell(news.row);
      if (news.row.status !== "running") listen(null);
    };
    source.addEventListener("problem", event => { listen(null); complain(JSON.parse(event.data)); });
    source.onerror = () => { listen(null); }; // the next look at the table begins again
  }

  let panel = "";

  function tell(row) {
    const now = JSON.stringify(row);
    if (now === panel) return; // as in the table
    panel = now;
    const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
    const film = details.querySelector("img");
    const source = row.film ? file(row.run, row.film) : null;
    const image = film && film.getAttribute("src") === source ? film
      : source ? h("img", {src: source, alt: `the newest film of ${row.run}`}) : null;
    const unfolded = details.querySelector("details")?.open || false;
    const played = row.suite in about.suites && row.trained;
    details.hidden = false;
    layout.classList.add("with-details");
    details.replaceChildren(
      h("div", {className: "bar"}, h("h2", {className: "grow"}, row.name),
        h("button", {className: "tool", "aria-label": "close", onclick: () => show(null)}, "×")),
      ...(image ? [image] : []),
      h("dl", {}, fact("state", h("span", {className: `badge ${row.status}`}, row.status)),
        fact("world", row.env), fact("algorithm", row.algo),
        fact("steps", `${number(row.steps, 9)}${row.planned ? ` of ${number(row.planned, 9)}` : ""}`),
        fact("score", row.score === null ? "not evaluated yet"
          : `${number(row.score)}${row.stderr === null ? "" : ` ± ${number(row.stderr, 2)}`}`),
        fact("training time", row.seconds === null ? "–" : `${number(row.seconds, 3)} s`),
        row.problem ? fact("problem", row.problem) : []),
      h("div", {className: "links"},
        row.pages.map(page => h("a", {className: "tool", href: file(row.run, page), target: "_blank",
          rel: "noopener"}, page.replace(".html", ""))),
        played ? h("a", {className: "tool main-tool",
          href: `#${row.suite}/${new URLSearchParams({run: row.run})}`}, "play") : null),
      h("details", {open: unfolded}, h("summary", {}, "settings"),
        h("dl", {}, Object.entries(row.settings).map(([name, value]) => fact(name, value)))));
  }

  const show = guarded(async run => {
    open = run;
    listen(null);
    const row = rows.find(one => one.run === run);
    if (!row) {
      panel = "";
      details.hidden = true;
      layout.classList.remove("with-details");
      return table();
    }
    tell(row);
    await tick(run, true);
    if (gone || open !== run) return;
    listen(row);
  });

  async function refresh() {
    const before = new Map(rows.map(row => [row.run, row.steps]));
    rows = await get("/api/runs");
    if (gone) return;
    const known = new Set(rows.flatMap(row => Object.keys(row.settings)));
    names.replaceChildren(...[...known].map(name => h("option", {value: `${name}=`})));
    for (const row of rows) {
      const streamed = source && row.run === open;
      if (ticked.has(row.run) && !streamed && row.steps !== before.get(row.run)) await load(row.run);
    }
    if (gone) return;
    table();
    draw();
    const current = rows.find(row => row.run === open);
    if (current && !source && curves.has(open)) { tell(current); listen(current); }
    document.body.dataset.ready = "runs";
  }

  const timer = setInterval(() => document.hidden || refresh().catch(complain), REFRESH);
  refresh().then(() => {
    const first = rows.find(row => row.status === "running") || rows.find(row => drawable(row) && Number.isFinite(row.score));
    if (first && !gone) return first.status === "running" ? show(first.run) : tick(first.run, true);
  }).catch(complain);
  return () => {
    gone = true;
    clearInterval(timer);
    if (source) source.close();
    if (chart) chart.remove();
  };
}
