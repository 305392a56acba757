// All records: filtered, sorted, and drawn only where they are seen, so that ten thousand scroll like ten.

const ROW_PX = 28;
const SHOWN = [
  ["row", "method"], ["seqlen_global", "seqlen"], ["phase", "phase"], ["nodes", "mesh"], ["kernel_asked", "kernel"],
  ["status", "status"], ["median_ms", "ms"], ["tflops_per_gpu", "TFLOP/s"], ["fraction_of_bound", "of bound"],
];

function makeTable(packed) {
  const columns = packed.columns;
  const get = (name, i) => {
    const column = columns[name];
    return column.known ? column.known[column.at[i]] : column.values[i];
  };
  const choices = (name) => [...new Set(columns[name].known ?? columns[name].values)].filter((value) => value !== null).map(String).sort();
  return { count: packed.count, names: Object.keys(columns), get, choices };
}

function recordKey(table, i) {
  const get = (name) => table.get(name, i);
  const shape = `b${get("batch")}-hq${get("num_heads_q")}-hkv${get("num_heads_kv")}-d${get("head_dim")}-${get("dtype")}-${get("mask")}`;
  return `${get("row")}/${shape}/${get("nodes")}x${get("gpus")}/${get("kernel_asked")}/S${get("seqlen_global")}_${get("phase")}`;
}

function makeRecords(data) {
  const table = makeTable(data.records);
  const state = { text: "", status: "", phase: "", kernel_asked: "", sort: null, down: false, chosen: null, order: [] };
  const nodes = new Map(); // the rows that are on the page, by record
  const texts = [];
  for (let i = 0; i < table.count; i++) texts.push((recordKey(table, i) + " " + table.get("label", i) + " " + (table.get("reason", i) ?? "")).toLowerCase());

  const list = byId("record-list");
  const head = el("div", { class: "head" });
  const body = el("div", { style: "position:relative" });
  list.append(head, body);

  function update() {
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    const order = [];
    for (let i = 0; i < table.count; i++) {
      if (["status", "phase", "kernel_asked"].some((name) => state[name] && table.get(name, i) !== state[name])) continue;
      if (words.every((word) => texts[i].includes(word))) order.push(i);
    }
    if (state.sort) {
      const way = state.down ? -1 : 1;
      order.sort((a, b) => {
        const [one, two] = [table.get(state.sort, a), table.get(state.sort, b)];
        if (one === null || two === null) return (one === null) - (two === null); // what has no figure comes last
        return way * (one < two ? -1 : one > two ? 1 : 0);
      });
    }
    state.order = order;
    byId("record-count").textContent = `${order.length} of ${table.count} records.`;
    body.style.height = order.length * ROW_PX + "px";
    drawHead();
    draw();
  }

  function drawHead() {
    head.replaceChildren(...SHOWN.map(([name, title]) => el("button", { type: "button",
      "aria-sort": state.sort === name ? (state.down ? "descending" : "ascending") : "none",
      onclick: () => { state.down = state.sort === name ? !state.down : false; state.sort = name; update(); } },
      title + (state.sort === name ? (state.down ? " ↓" : " ↑") : ""))));
  }

  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW_PX) - 5);
    const last = Math.min(state.order.length, first + Math.ceil(list.clientHeight / ROW_PX) + 12);
    const wanted = new Map(state.order.slice(first, last).map((i, n) => [i, first + n]));
    for (const [i, node] of nodes) {
      if (!wanted.has(i)) { node.remove(); nodes.delete(i); }
    }
    let next = body.firstChild;
    for (const [i, place] of wanted) { // a row that stays keeps its node and is not moved: no click on it is lost
      if (!nodes.has(i)) nodes.set(i, item(i));
      const node = nodes.get(i);
      if (node === next) next = next.nextSibling;
      else body.insertBefore(node, next);
      node.style.top = place * ROW_PX + "px";
      node.setAttribute("aria-selected", String(state.chosen === i));
    }
  }

  function item(i) {
    const figure = (name, count) => { const value = table.get(name, i); return value === null ? table.get("status", i) : digits(value, count); };
    const cells = [table.get("row", i), table.get("seqlen_global", i), table.get("phase", i), `${table.get("nodes", i)}x${table.get("gpus", i)}`,
      table.get("kernel_asked", i), table.get("status", i), figure("median_ms", 4), figure("tflops_per_gpu", 4),
      table.get("fraction_of_bound", i) === null ? (table.get("median_ms", i) === null ? table.get("status", i) : "no bound") : figure("fraction_of_bound", 3)];
    return el("div", { class: "item", "data-record": i,
      onclick: () => { state.chosen = i; draw(); detail(i); } },
      cells.map((cell, n) => el("span", { class: n === 5 ? (cell === "passed" ? "passed" : "failed") : "", title: cell }, cell)));
  }

  function detail(i) {
    const path = `records/${recordKey(table, i)}.r${table.get("repeat", i)}.json`;
    const rows = table.names.filter((name) => table.get(name, i) !== null).map((name) => [name, String(table.get(name, i))]);
    byId("record-detail").replaceChildren(
      el("h2", {}, recordKey(table, i)),
      el("p", {}, el("a", { href: path.split("/").map(encodeURIComponent).join("/") }, "the record itself, with every sample")),
      wordsTable(["field", "value"], rows),
      el("details", {}, el("summary", {}, "environment"), el("pre", {}, JSON.stringify(data.environments[table.get("environment_id", i)], null, 1))));
    byId("record-detail").scrollTop = 0;
  }

  const choose = (name, title) => select(title, [["", "all"], ...table.choices(name).map((value) => [value, value])], "", (value) => { state[name] = value; list.scrollTop = 0; update(); });
  byId("record-filters").replaceChildren(
    el("label", {}, "text", el("input", { id: "record-text", placeholder: "burst 4x8 S131072", oninput: (event) => { state.text = event.target.value; list.scrollTop = 0; update(); } })),
    choose("status", "status"), choose("phase", "record phase"), choose("kernel_asked", "kernel"));
  list.addEventListener("scroll", () => requestAnimationFrame(draw));
  byId("record-detail").append(el("p", { class: "quiet" }, "No record is chosen."));
  update();
  return draw;
}
