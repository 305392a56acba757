// Puts the report together: tabs, theme, and the parts that are lists of words.

const DATA = JSON.parse(byId("data").textContent);
const TABS = [["compare", "Comparison"], ["records", "Records"], ["measured", "How and on what"], ["verdicts", "Verdicts"], ["audit", "Audit"]];

function facts(pairs) {
  return el("ul", {}, pairs.map(([name, value]) => el("li", {}, `${name}: ${value}`)));
}

function makeMeasured() {
  const parts = [el("h2", {}, "How it was measured"), facts(DATA.protocol), el("h2", {}, "On what"), facts(DATA.machine),
    el("h2", {}, "Preflight")];
  if (DATA.preflight) parts.push(el("pre", {}, JSON.stringify(DATA.preflight, null, 1)));
  else parts.push(el("p", { class: "quiet" }, "This campaign has no preflight.json."));
  if (DATA.notes.length) parts.push(el("h2", {}, "Notes of the check"), el("ul", {}, DATA.notes.map((note) => el("li", {}, note))));
  parts.push(el("h2", {}, "Environments"));
  for (const [name, environment] of Object.entries(DATA.environments)) {
    parts.push(el("details", {}, el("summary", {}, name), el("pre", {}, JSON.stringify(environment, null, 1))));
  }
  byId("measured").append(...parts);
}

function makeFiltered(host, title, choices, header, rowsOf) {
  const body = el("div", {});
  const draw = (chosen) => {
    const rows = rowsOf(chosen);
    body.replaceChildren(rows.length ? wordsTable(header, rows) : el("p", { class: "quiet" }, "None."));
  };
  host.append(el("div", { class: "filters" }, select(title, choices, choices[0][0], draw)), body);
  draw(choices[0][0]);
}

function makeVerdicts() {
  const host = byId("verdicts");
  if (!DATA.verdict_summary) {
    host.append(el("p", { class: "quiet" }, "There are no published claims beside this campaign."));
    return;
  }
  host.append(el("p", {}, DATA.verdict_summary));
  const found = [...new Set(DATA.verdicts.map((verdict) => verdict.outcome))].sort();
  const text = (value) => (value === null || value === undefined ? "none" : typeof value === "number" ? digits(value) : value);
  makeFiltered(host, "verdict", [["", "compared"], ...found.map((outcome) => [outcome, outcome])],
    ["claim", "kind", "subject", "seqlen", "phase", "published", "low", "high", "measured", "unit", "verdict", "why"],
    (outcome) => DATA.verdicts.filter((verdict) => (outcome ? verdict.outcome === outcome : ["reproduced", "not_reproduced"].includes(verdict.outcome)))
      .map((verdict) => [verdict.claim, verdict.kind, verdict.subject, verdict.seqlen_global ?? "any", verdict.phase ?? "any", text(verdict.target),
        text(verdict.low), text(verdict.high), text(verdict.measured), text(verdict.unit), verdict.outcome, verdict.reason]));
}

function makeAudit() {
  const host = byId("audit");
  if (!DATA.audit.length) {
    host.append(el("p", { class: "quiet" }, "There are no published claims beside this campaign."));
    return;
  }
  host.append(el("p", {}, "Whether published numbers agree with each other, by arithmetic that can be repeated by hand."));
  const certainties = [...new Set(DATA.audit.map((finding) => finding.certainty))];
  makeFiltered(host, "certainty", [["", "all"], ...certainties.map((certainty) => [certainty, certainty])], ["certainty", "what", "arithmetic", "where"],
    (certainty) => DATA.audit.filter((finding) => !certainty || finding.certainty === certainty)
      .map((finding) => [finding.certainty, finding.what, finding.arithmetic, finding.where.join(", ")]));
}

function showTab(name) {
  for (const [id] of TABS) {
    byId(id).hidden = id !== name;
    byId("tab-" + id).setAttribute("aria-selected", String(id === name));
  }
  if (name === "records") drawRecords();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

byId("title").textContent = DATA.title;
byId("summary").textContent = DATA.summary;
byId("tabs").append(...TABS.map(([id, title]) => el("button", { type: "button", role: "tab", id: "tab-" + id, "aria-controls": id, onclick: () => showTab(id) }, title)));
byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
setTheme(window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
makeCompare(DATA);
const drawRecords = makeRecords(DATA);
makeMeasured();
makeVerdicts();
makeAudit();
showTab("compare");
