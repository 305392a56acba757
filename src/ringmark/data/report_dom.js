// Small pieces of page, made of text only: nothing in a record can become markup.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined).map(asNode));
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().map(asNode));
  return node;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

function byId(id) {
  return document.getElementById(id);
}

function select(label, choices, chosen, change) {
  const options = choices.map(([value, text]) => el("option", { value, selected: value === chosen }, text));
  const id = "choose-" + label.replace(/\W+/g, "-");
  return el("label", {}, label, el("select", { id, onchange: (event) => change(event.target.value) }, options));
}

// Four digits, as many decimals as they need; a table's own rule is finer, its figures are in paper_tables/.
function digits(value, count = 4) {
  if (value === null || value === undefined) return "none";
  if (value === 0) return "0";
  const places = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(places, 9));
}

function length(seqlen) {
  if (seqlen >= 1048576 && seqlen % 1048576 === 0) return seqlen / 1048576 + "M";
  if (seqlen >= 1024 && seqlen % 1024 === 0) return seqlen / 1024 + "k";
  return String(seqlen);
}

function showTip(event, text) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8) + "px";
  tip.style.top = Math.min(event.clientY + 14, window.innerHeight - box.height - 8) + "px";
}

function hideTip() {
  byId("tip").hidden = true;
}

function wordsTable(header, rows) {
  return el("div", { class: "scroll" }, el("table", { class: "words" },
    el("thead", {}, el("tr", {}, header.map((head) => el("th", {}, head)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell ?? "none")))))));
}
