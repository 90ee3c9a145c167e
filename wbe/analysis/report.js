"use strict";
// The script of a report's page: themes, tables, values on hover, and the table of questions.
const $ = id => document.getElementById(id);
const make = (tag, options = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), options);
  element.append(...children);
  return element;
};
const reportError = text => $("questions-state") && ($("questions-state").textContent = text);

// ---- Theme: as the system has it, light, or dark
const THEMES = ["auto", "light", "dark"];
const setTheme = name => {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = `Theme: ${name}`;
  try { localStorage.setItem("wbe-theme", name); } catch { /* pages of files may have no storage */ }
};
const storedTheme = () => { try { return localStorage.getItem("wbe-theme"); } catch { return null; } };
$("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % 3]));
setTheme(THEMES.includes(storedTheme()) ? storedTheme() : "auto");

// ---- Tables: a click on a heading sorts, a second one turns the order round; rows without a value stay at the end
const textOf = cell => cell.textContent.trim();
const valueOf = cell => cell.dataset.value !== undefined ? Number(cell.dataset.value) : textOf(cell) || null;
const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
const sortBy = (table, column, down) => {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows).map((row, place) => ({ row, place, value: valueOf(row.cells[column]) }));
  rows.sort((a, b) => a.value === null || b.value === null ? (a.value === null) - (b.value === null) || a.place - b.place
    : (down ? -1 : 1) * compare(a.value, b.value) || a.place - b.place);
  body.append(...rows.map(r => r.row));
  Array.from(table.tHead.rows[0].cells).forEach((th, i) => i === column ? th.setAttribute("aria-sort", down ? "descending" : "ascending") : th.removeAttribute("aria-sort"));
};
const csvLine = cells => cells.map(c => /[",\n\r]/.test(c) ? `"${c.replaceAll('"', '""')}"` : c).join(",");
const saveFile = (name, text, kind = "text/csv") => {
  const link = make("a", { download: name, href: URL.createObjectURL(new Blob([text], { type: `${kind};charset=utf-8` })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
const tableCsv = table => [table.tHead.rows[0], ...table.tBodies[0].rows]
  .map(row => csvLine(Array.from(row.cells, c => c.dataset.value ?? textOf(c)))).join("\r\n") + "\r\n";
document.querySelectorAll("table.sortable").forEach((table, n) => {
  Array.from(table.tHead.rows[0].cells).forEach((th, column) => {
    const button = make("button", { type: "button" }, ...th.childNodes);
    button.title = "Sort by " + button.textContent;
    button.addEventListener("click", () => sortBy(table, column, th.getAttribute("aria-sort") === "descending" ? false
      : th.getAttribute("aria-sort") === "ascending" ? true : th.classList.contains("number")));
    th.append(button);
  });
  const name = `${table.dataset.name || `table-${n + 1}`}.csv`;
  const save = make("button", { type: "button", className: "csv", textContent: "CSV", title: `Save this table as ${name}` });
  save.addEventListener("click", () => saveFile(name, tableCsv(table)));
  table.closest(".wide").after(save);
});

// ---- Figures: the nearest point shows its value; a click or Enter leads to its questions, arrow keys step through the points
const tip = $("tip");
const NEAR = 18; // pixels
const showTip = (figure, point) => {
  const box = figure.image.getBoundingClientRect(), [left, top, text, to] = point;
  const x = box.left + left * box.width, y = box.top + top * box.height;
  tip.replaceChildren(text, ...(to ? [make("small", { textContent: "click for the questions" })] : []));
  tip.hidden = false;
  tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8)) + scrollX}px`;
  tip.style.top = `${Math.max(4, y - tip.offsetHeight - 10) + scrollY}px`;
  figure.mark.hidden = false;
  figure.mark.style.left = `${x - box.left + figure.image.offsetLeft}px`;
  figure.mark.style.top = `${y - box.top + figure.image.offsetTop}px`;
  figure.image.style.cursor = to ? "pointer" : "";
  figure.now = point;
};
const hideTip = figure => { tip.hidden = figure.mark.hidden = true; figure.image.style.cursor = ""; figure.now = null; };
const nearest = (figure, event) => {
  const box = figure.image.getBoundingClientRect();
  let best = null, least = NEAR ** 2;
  for (const p of figure.points) {
    const d = (event.clientX - box.left - p[0] * box.width) ** 2 + (event.clientY - box.top - p[1] * box.height) ** 2;
    if (d < least) { least = d; best = p; }
  }
  return best;
};
const follow = figure => { if (figure.now?.[3]) location.hash = figure.now[3]; };
document.querySelectorAll("script.points").forEach(data => {
  const holder = data.closest("figure"), room = holder.querySelector(".wide");
  const figure = { points: JSON.parse(data.textContent), image: holder.querySelector("img"), mark: make("span", { className: "mark", hidden: true }), now: null };
  room.append(figure.mark);
  figure.image.addEventListener("mousemove", e => { const p = nearest(figure, e); p ? showTip(figure, p) : hideTip(figure); });
  figure.image.addEventListener("mouseleave", () => hideTip(figure));
  figure.image.addEventListener("click", () => follow(figure));
  room.addEventListener("blur", () => hideTip(figure));
  room.addEventListener("keydown", e => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (step && figure.points.length) {
      const n = figure.points.length, at = figure.points.indexOf(figure.now);
      showTip(figure, figure.points[at < 0 ? (step > 0 ? 0 : n - 1) : (at + step + n) % n]);
      e.preventDefault();
    } else if (e.key === "Enter") follow(figure);
    else if (e.key === "Escape") hideTip(figure);
  });
});

// ---- Printing: everything that is folded is shown
let opened = [];
addEventListener("beforeprint", () => { opened = [...document.querySelectorAll("details.table:not([open])")]; opened.forEach(d => d.open = true); });
addEventListener("afterprint", () => { opened.forEach(d => d.open = false); opened = []; });

// ---- The questions: unpacked when they are first needed
const unpack = async id => {
  const bytes = Uint8Array.from(atob($(id).textContent.trim()), c => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
};
const MOMENTS = { before: "before any edit", current: "right after its edits", past: "after a later timestep", curve: "in between",
  ahead: "before its edits, after earlier ones", after: "right after the edit" };
const CHANGES = ["wrong → right", "right → wrong", "right → right", "wrong → wrong"];
const SEVERAL = ["axis", "moment", "edits_done", "change"]; // of these an address may hold several values, with commas between
const severalOf = (field, text) => SEVERAL.includes(field) ? text.split(",") : [text]; // the name of a run may hold commas
const percent = v => v < 0 ? "" : `${v}%`;

class Answers {
  constructor(data) {
    this.data = data;
    this.texts = data.texts;
    this.asked = data.questions;
    const n = data.parts.reduce((sum, p) => sum + p.questions.length, 0);
    this.size = n;
    this.run = new Uint16Array(n); this.part = new Uint32Array(n); this.question = new Uint32Array(n);
    this.before = new Int16Array(n).fill(-1);
    this.answer = new Int32Array(n).fill(-1); this.retrieved = new Int32Array(n).fill(-1);
    this.measures = Object.fromEntries(data.measures.map(([key]) => [key, new Int16Array(n).fill(-1)]));
    this.fill();
  }
  fill() {
    let at = 0;
    const was = this.data.runs.map(() => new Map());
    this.data.parts.forEach((part, p) => {
      let q = 0;
      part.questions.forEach((step, i) => {
        q += step;
        this.run[at + i] = part.run; this.part[at + i] = p; this.question[at + i] = q;
        if (part.moment === "before" && part.exact_match) was[part.run].set(q, part.exact_match[i]);
      });
      for (const [key, column] of Object.entries(this.measures)) if (part[key]) column.set(part[key], at);
      if (part.answer) this.answer.set(part.answer, at);
      if (part.retrieved) this.retrieved.set(part.retrieved, at);
      at += part.questions.length;
    });
    for (let i = 0; i < this.size; i++) this.before[i] = was[this.run[i]].get(this.question[i]) ?? -1;
  }
  text(number) { return number < 0 ? "" : this.texts[number]; }
  field(name, i) { // the value of a row as a number or a text
    const part = this.data.parts[this.part[i]];
    if (name === "run") return this.data.runs[this.run[i]].name;
    if (name === "model") return this.data.runs[this.run[i]].model;
    if (name === "moment" || name === "scored_at" || name === "edits_done") return part[name];
    if (name === "change") return this.change(i);
    if (name === "answer" || name === "retrieved") return this.text(this[name][i]);
    if (name in this.measures) return this.measures[name][i];
    const value = this.asked[name]?.[this.question[i]];
    return value === undefined ? "" : name === "asked_of" || name === "probe" ? (value < 0 ? "" : value) : this.text(value);
  }
  change(i) {
    const now = this.measures.exact_match[i], was = this.before[i];
    return now < 0 || was < 0 || this.data.parts[this.part[i]].moment === "before" ? "" : `${was === 100 ? "right" : "wrong"} → ${now === 100 ? "right" : "wrong"}`;
  }
  select(query) { // the numbers of the rows that fit
    const wanted = Object.entries(query).filter(([k, v]) => k !== "text" && v).map(([k, v]) => [k, new Set(severalOf(k, String(v)))]);
    const ofPart = wanted.filter(([k]) => ["run", "moment", "scored_at", "edits_done"].includes(k));
    const ofQuestion = wanted.filter(([k]) => k in this.asked);
    const others = wanted.filter(([k]) => !ofPart.some(([p]) => p === k) && !ofQuestion.some(([p]) => p === k));
    const parts = this.data.parts.map(p => ofPart.every(([k, v]) => v.has(String(k === "run" ? this.data.runs[p.run].name : p[k]))));
    const count = Object.values(this.asked)[0].length;
    const fits = Array.from({ length: count }, (_, q) => ofQuestion.every(([k, v]) => v.has(String(k === "asked_of" || k === "probe" ? this.asked[k][q] : this.text(this.asked[k][q])))));
    const words = (query.text || "").toLocaleLowerCase().split(/\s+/).filter(Boolean);
    const holds = words.length ? this.texts.map(t => t.toLocaleLowerCase()) : null;
    const rows = [];
    for (let i = 0; i < this.size; i++) {
      if (!parts[this.part[i]] || !fits[this.question[i]]) continue;
      if (!others.every(([k, v]) => v.has(String(this.field(k, i))))) continue;
      if (holds) {
        const ids = ["question", "expected", "edit"].map(f => this.asked[f]?.[this.question[i]] ?? -1).concat(this.answer[i]);
        if (!words.every(w => ids.some(id => id >= 0 && holds[id].includes(w)))) continue;
      }
      rows.push(i);
    }
    return rows;
  }
  sorted(rows, sorters) {
    if (!sorters.length) return rows;
    const { field, dir } = sorters[0], sign = dir === "desc" ? -1 : 1;
    const keyed = rows.map((i, at) => [this.field(field, i), i, at]);
    const empty = v => v === "" || v === -1;
    const order = new Intl.Collator("en", { numeric: true }).compare;
    keyed.sort(([a, , m], [b, , n]) => empty(a) || empty(b) ? empty(a) - empty(b) || m - n
      : sign * (typeof a === "number" ? a - b : order(a, b)) || m - n);
    return keyed.map(k => k[1]);
  }
  mean(rows, measure) {
    const values = rows.map(i => this.measures[measure][i]).filter(v => v >= 0);
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
  }
}

const COLUMNS = [ // field, title, what it means, order in which columns are folded away in a narrow window
  ["run", "editor", "The run, by its editor", 0], ["model", "model", "The edited model", 6], ["axis", "axis", "What the question is about", 0],
  ["form", "form", "The form in which the fact is asked", 4], ["question", "question", "What was asked", 0],
  ["expected", "expected", "The expected answer", 0], ["answer", "answer", "The generated answer, where it was recorded", 0],
  ["change", "before → now", "Right or wrong before any edit, and now", 2], ["edit", "edit", "The update question of the edit and its new answer", 5],
  ["previous", "replaces", "The answer that the edit replaces", 7], ["retrieved", "retrieved", "What was retrieved for the question", 5],
  ["moment", "asked", "When it was asked", 6], ["asked_of", "edited at", "The timestep of the edit", 6], ["scored_at", "asked after", "The timestep after which it was asked", 6],
  ["edits_done", "edits made", "Edits made until then", 8], ["tag", "tag", "Whether the fact is new or an update", 8],
  ["relation", "property", "The property of the edited fact", 7], ["probe", "wording", "Which wording of the question", 9],
];
const FILTERS = [["run", "editor"], ["axis", "axis"], ["change", "before → now"], ["moment", "asked"], ["relation", "property"], ["tag", "tag"],
  ["form", "form"], ["kind", "kind of answer"], ["dates", "fact began"], ["asked_of", "edited at"], ["scored_at", "asked after"],
  ["edits_done", "edits made"], ["model", "model"]];
let answers = null, table = null, rows = [], query = {}, loading = null;

const readAddress = () => {
  const [place, text] = location.hash.split("?");
  return place === "#questions" ? Object.fromEntries(new URLSearchParams(text || "")) : null;
};
const valuesOf = field => {
  if (field === "run" || field === "model") return [...new Set(answers.data.runs.map(r => field === "run" ? r.name : r.model))];
  if (field === "change") return CHANGES;
  if (["moment", "scored_at", "edits_done"].includes(field)) return [...new Set(answers.data.parts.map(p => p[field]))].sort((a, b) => a - b);
  const known = [...new Set(answers.asked[field] ?? [])];
  return field === "asked_of" ? known.filter(t => t >= 0).sort((a, b) => a - b) : known.filter(t => t >= 0).map(t => answers.text(t)).sort(compare);
};
const buildFilters = () => {
  const form = $("filters");
  const search = make("input", { type: "search", id: "filter-text", name: "text", placeholder: "question, answer, edit …" });
  form.append(make("label", { htmlFor: search.id }, "search", search));
  for (const [field, title] of FILTERS) {
    const values = valuesOf(field);
    if (values.length < 2) continue;
    const select = make("select", { id: `filter-${field}`, name: field }, make("option", { value: "", textContent: "all" }));
    select.append(...values.map(v => make("option", { value: v, textContent: field === "moment" ? MOMENTS[v] ?? v : v })));
    form.append(make("label", { htmlFor: select.id }, title, select));
  }
  form.append(make("button", { type: "reset", textContent: "Clear" }), make("button", { type: "button", id: "questions-csv", textContent: "CSV" }));
  let wait = 0;
  const changed = () => {
    const given = Object.fromEntries([...new FormData(form)].filter(([, v]) => v));
    const text = new URLSearchParams(given).toString();
    history.replaceState(null, "", `#questions${text ? `?${text}` : ""}`);
    apply(given);
  };
  form.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(changed, 150); });
  form.addEventListener("reset", () => setTimeout(changed));
  form.addEventListener("submit", e => e.preventDefault());
  $("questions-csv").addEventListener("click", () => saveFile("questions.csv", questionsCsv()));
};
const shownFields = () => [...COLUMNS.filter(([f]) => f === "model" ? valuesOf("model").length > 1
  : f === "retrieved" ? answers.data.parts.some(p => p.retrieved) : f === "probe" ? valuesOf("probe").length > 1
  : !["form", "tag", "previous", "relation"].includes(f) || answers.asked[f]), ...answers.data.measures.map(([k, name]) => [k, name, name, 3])];
const questionsCsv = () => {
  const fields = shownFields();
  const lines = answers.sorted(rows, table.getSorters().map(s => ({ field: s.field, dir: s.dir })))
    .map(i => csvLine(fields.map(([f]) => { const v = answers.field(f, i); return v === -1 ? "" : String(v); })));
  return [csvLine(fields.map(([, title]) => title)), ...lines].join("\r\n") + "\r\n";
};
const buildTable = () => new Promise(done => {
  const measured = new Set(answers.data.measures.map(([k]) => k));
  const columns = shownFields().map(([field, title, meaning, fold]) => ({
    field, title, headerTooltip: meaning, responsive: fold, minWidth: ["question", "edit"].includes(field) ? 220 : ["expected", "answer", "change"].includes(field) || measured.has(field) ? 110 : 84,
    widthGrow: ["question", "edit"].includes(field) ? 3 : 1, hozAlign: measured.has(field) ? "right" : "left",
    cssClass: field, formatter: cell => {
      const v = cell.getValue();
      const shown = measured.has(field) ? percent(v) : field === "moment" ? MOMENTS[v] ?? v : String(v);
      return document.createTextNode(shown === "" ? "–" : shown);
    },
  }));
  const made = new Tabulator("#questions-table", {
    columns: [{ formatter: "responsiveCollapse", title: "", width: 36, minWidth: 36, headerSort: false, resizable: false, responsive: 0 }, ...columns],
    columnDefaults: { resizable: "header", vertAlign: "top" }, layout: "fitColumns", responsiveLayout: "collapse", responsiveLayoutCollapseStartOpen: false,
    pagination: true, paginationMode: "remote", paginationSize: 20, paginationSizeSelector: [20, 50, 200], paginationCounter: "rows", sortMode: "remote",
    placeholder: "No question fits these filters.", ajaxURL: "memory",
    ajaxRequestFunc: async (url, config, p) => {
      const found = answers.sorted(rows, p.sort || []), from = (p.page - 1) * p.size;
      const data = found.slice(from, from + p.size).map(i => Object.fromEntries(shownFields().map(([f]) => [f, answers.field(f, i)])));
      return { data, last_page: Math.max(1, Math.ceil(found.length / p.size)), last_row: found.length };
    },
  });
  made.on("tableBuilt", () => done(made));
});
const apply = async given => {
  query = given;
  rows = answers.select(query);
  const means = answers.data.measures.map(([k, name]) => [name, answers.mean(rows, k)]).filter(([, v]) => v !== null);
  const known = rows.map(i => answers.before[i]).filter(v => v >= 0);
  $("questions-state").textContent = `${rows.length.toLocaleString("en")} of ${answers.size.toLocaleString("en")} answers`
    + means.map(([name, v]) => `; ${name} ${v.toFixed(1)}%`).join("") + (known.length ? `; right before any edit ${(known.filter(v => v === 100).length / known.length * 100).toFixed(1)}%` : "");
  if (table) await table.setPage(1);
};
const load = () => loading ??= (async () => {
  $("questions-state").textContent = "Unpacking the questions …";
  if (!("DecompressionStream" in window)) throw Error("This browser is too old to unpack the questions (it has no DecompressionStream).");
  const [code, data] = await Promise.all([unpack("tabulator-code"), unpack("questions-data")]);
  document.head.append(make("script", { textContent: code.replace(/\/\/# sourceMappingURL.*\s*$/, "") }));
  answers = new Answers(JSON.parse(data));
  buildFilters();
  rows = answers.select({});
  $("questions-body").hidden = false;
  table = await buildTable();
})();
const openQuestions = async given => { // null: right after the edits, where anything was asked then
  try {
    await load();
    given ??= valuesOf("moment").includes("current") ? { moment: "current" } : {};
    for (const control of $("filters").elements) {
      if (!control.name) continue;
      const v = given[control.name] ?? "";
      if (control.tagName === "SELECT" && v && ![...control.options].some(o => o.value === v)) // several values at once
        control.append(make("option", { value: v, textContent: severalOf(control.name, v).map(x => MOMENTS[x] ?? x).join(" or ") }));
      control.value = v;
    }
    await apply(given);
  } catch (e) {
    console.error(e);
    reportError(`The questions could not be shown: ${e.message}`);
  }
};
if ($("questions-data")) {
  const arrive = async () => {
    const given = readAddress();
    if (given === null) return;
    $("questions").scrollIntoView();
    await openQuestions(given);
    $("questions").scrollIntoView();
    $("questions-title").focus({ preventScroll: true });
  };
  addEventListener("hashchange", arrive);
  if (readAddress() !== null) arrive();
  else new IntersectionObserver((seen, watch) => {
    if (seen.some(s => s.isIntersecting)) { watch.disconnect(); if (!loading) openQuestions(null); }
  }, { rootMargin: "200px" }).observe($("questions"));
  addEventListener("keydown", e => {
    if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || /^(input|select|textarea)$/i.test(e.target.tagName)) return;
    e.preventDefault();
    $("questions").scrollIntoView();
    (loading ? load() : openQuestions(null)).then(() => $("filter-text")?.focus());
  });
}
