// The comparison: one group, phase and figure at a time, as a plot and as a table. Figures come ready made.

const FIGURES = {
  tflops: { title: "TFLOP/s per GPU", of: (point) => point.tflops, more: true, ranked: true },
  ms: { title: "ms", of: (point) => point.ms, more: false, ranked: true },
  fraction: { title: "fraction of the bound", of: (point) => flat(point.fraction), more: true },
  memory: { title: "peak memory above the inputs, MiB", of: (point) => flat(point.memory), more: false },
};
const PHASES = { fwd_bwd: "forward + backward", fwd: "forward", bwd: "backward (derived)" };

function flat(value) {
  return value === null || value === undefined ? null : [value, value, value];
}

function makeCompare(data) {
  const open = data.groups.findIndex((group) => group.open); // the widest comparison first, where there is one
  const state = { group: Math.max(open, 0), phase: data.groups[Math.max(open, 0)]?.phases[0], figure: "tflops", text: "", hidden: new Set() };

  function filters() {
    const group = data.groups[state.group];
    if (!group.phases.includes(state.phase)) state.phase = group.phases[0];
    const change = (name) => (value) => { state[name] = name === "group" ? Number(value) : value; filters(); draw(); };
    byId("compare-filters").replaceChildren(
      select("problem", data.groups.map((each, i) => [String(i), each.title]), String(state.group), change("group")),
      select("phase", group.phases.map((phase) => [phase, PHASES[phase]]), state.phase, change("phase")),
      select("figure", Object.entries(FIGURES).map(([name, figure]) => [name, figure.title]), state.figure, change("figure")),
      el("label", {}, "methods with", el("input", { id: "method-text", value: state.text, placeholder: "burst",
        oninput: (event) => { state.text = event.target.value; draw(); } })));
  }

  function shown() {
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    return data.groups[state.group].lines.filter((line) =>
      words.every((word) => (line.label + " " + line.row).toLowerCase().includes(word)));
  }

  function draw() {
    const group = data.groups[state.group], figure = FIGURES[state.figure], lines = shown();
    byId("group-kind").textContent = group.kind;
    const toggle = (label) => { if (!state.hidden.delete(label)) state.hidden.add(label); draw(); };
    drawPlot(byId("plot"), `${PHASES[state.phase]}: ${figure.title}`, lines.map((line) => plotLine(line, state.phase, figure)), state.hidden, toggle);
    drawTable(lines, state.phase, figure);
    drawShares(byId("shares"), lines, state.phase, data.parts);
  }

  filters();
  draw();
}

function plotLine(line, phase, figure) {
  const here = line.points.filter((point) => point.phase === phase);
  const timed = here.filter((point) => point.status === "passed" && figure.of(point));
  return {
    label: line.label,
    bound: line.bound,
    colour: line.bound ? "var(--ink)" : `var(--c${line.look % 8})`,
    shape: SHAPES[Math.max(line.look, 0) % SHAPES.length],
    dash: DASHES[Math.max(line.look, 0) % DASHES.length],
    points: timed.map((point) => {
      const [value, low, high] = figure.of(point);
      return { seqlen: point.seqlen, value, low, high, tip: tipOf(line, point) };
    }).sort((a, b) => a.seqlen - b.seqlen),
    failed: here.filter((point) => point.status !== "passed").map((point) => (
      { seqlen: point.seqlen, word: point.status, tip: [`${line.label}, ${point.seqlen}`, ...point.notes].join("\n") })),
  };
}

function tipOf(line, point) {
  const [ms, low, high] = point.ms;
  const said = [`${line.label}, ${point.seqlen} tokens`, `${digits(ms)} ms [${digits(low)}, ${digits(high)}]`,
    `${digits(point.tflops[0])} TFLOP/s per GPU`];
  if (point.fraction !== null && point.fraction !== undefined) said.push(`${point.fraction.toFixed(3)} of the bound`);
  if (point.repeats > 1) said.push(`${point.repeats} repeats`);
  return [...said, ...point.notes].join("\n");
}

function drawTable(lines, phase, figure) {
  const lengths = [...new Set(lines.flatMap((line) => line.points.filter((point) => point.phase === phase).map((point) => point.seqlen)))].sort((a, b) => a - b);
  const notes = [];
  const best = lengths.map((seqlen) => clearBest(lines, phase, seqlen, figure));
  const rows = lines.map((line) => el("tr", { class: line.bound ? "bound" : "" },
    el("td", { title: line.row }, line.label),
    lengths.map((seqlen, i) => tableCell(line, line.points.find((point) => point.phase === phase && point.seqlen === seqlen), figure, best[i], notes))));
  byId("comparison").replaceChildren(
    el("thead", {}, el("tr", {}, el("th", {}, "method"), lengths.map((seqlen) => el("th", {}, String(seqlen))))),
    el("tbody", {}, rows));
  byId("comparison-notes").replaceChildren(...notes.map((note) => el("li", {}, note)));
}

function tableCell(line, point, figure, best, notes) {
  if (!point) return el("td", {}, el("span", { class: "quiet" }, "not run"));
  const marks = point.notes.map((note) => { if (!notes.includes(note)) notes.push(note); return notes.indexOf(note) + 1; });
  const raised = marks.length ? el("sup", {}, marks.join(",")) : null;
  if (point.status !== "passed") return el("td", {}, el("span", { class: "word" }, point.status), raised);
  const span = figure.of(point);
  if (!span) return el("td", {}, el("span", { class: "quiet" }, "none"), raised);
  const wide = span[1] !== span[2] ? el("small", {}, `[${digits(span[1])}, ${digits(span[2])}]`) : null;
  return el("td", {}, el("span", { class: line === best ? "best" : "" }, digits(span[0])), raised, wide);
}

// Bold as in the tables: only where the best one's interval is clear of every other's and its median ahead by what
// launches differ by, all measured in one run; the bound does not compete.
function clearBest(lines, phase, seqlen, figure) {
  if (!figure.ranked) return null; // without an interval nothing is clear
  const spans = [];
  for (const line of lines) {
    const point = line.points.find((each) => each.phase === phase && each.seqlen === seqlen);
    if (!line.bound && point && point.status === "passed" && figure.of(point)) spans.push([line, figure.of(point), point]);
  }
  if (spans.length < 2) return null;
  spans.sort((a, b) => (figure.more ? b[1][1] - a[1][1] : a[1][2] - b[1][2]));
  const [[winner, [value, low, high], first], ...others] = spans;
  const behind = ([, span, other]) => {
    const lead = Math.max(first.lead, other.lead);
    return first.runs.some((run) => other.runs.includes(run)) && (figure.more
      ? span[2] < low && span[0] * lead < value
      : span[1] > high && span[0] > value * lead);
  };
  return others.every(behind) ? winner : null;
}
