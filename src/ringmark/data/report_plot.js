// The plot of one group: a line for each method, hover for the figures, crosses for what did not pass.

const SHAPES = ["circle", "square", "triangle", "diamond", "plus"];
const DASHES = ["", "8 3", "3 2", "8 3 2 3", "2 2"];

function marker(shape, x, y, colour) {
  const paint = { fill: colour, stroke: "var(--paper)", "stroke-width": 1 };
  if (shape === "circle") return svg("circle", { cx: x, cy: y, r: 4.5, ...paint });
  if (shape === "square") return svg("rect", { x: x - 4, y: y - 4, width: 8, height: 8, ...paint });
  const paths = {
    triangle: `M${x} ${y - 5.5}L${x + 5} ${y + 4}L${x - 5} ${y + 4}Z`,
    diamond: `M${x} ${y - 6}L${x + 5} ${y}L${x} ${y + 6}L${x - 5} ${y}Z`,
    plus: `M${x - 2} ${y - 5}h4v3h3v4h-3v3h-4v-3h-3v-4h3Z`,
  };
  return svg("path", { d: paths[shape], ...paint });
}

function tick(value) {
  return String(Number(digits(value, 3)));
}

function niceTicks(top) {
  const step = Math.pow(10, Math.floor(Math.log10(top / 4)));
  const size = [1, 2, 2.5, 5, 10].map((n) => n * step).find((n) => top / n <= 6);
  const ticks = [];
  for (let value = 0; value <= top; value += size) ticks.push(value);
  return ticks;
}

// lines: [{label, colour, shape, dash, bound, points: [{seqlen, value, low, high, tip}], failed: [{seqlen, word, tip}]}]
function drawPlot(host, title, lines, hidden, toggle) {
  const failed = lines.filter((line) => line.failed.length);
  const width = 920, left = 70, right = 250, top = 30, height = 300, strip = 18 * failed.length + (failed.length ? 10 : 0);
  const all = lines.flatMap((line) => [...line.points, ...line.failed].map((point) => point.seqlen));
  const lengths = [...new Set(all)].sort((a, b) => a - b);
  const first = Math.log2(lengths[0] ?? 1), last = Math.log2(lengths[lengths.length - 1] ?? 2);
  const x = (seqlen) => left + 20 + ((Math.log2(seqlen) - first) / Math.max(last - first, 1)) * (width - left - right - 70);
  const peak = Math.max(...lines.flatMap((line) => line.points.map((point) => point.high)), 1e-9);
  const y = (value) => top + height - (value / (peak * 1.06)) * height;
  const page = svg("svg", { viewBox: `0 0 ${width} ${top + height + strip + 42}`, width, role: "img", "aria-label": title });
  page.append(svg("text", { x: left, y: 16, "font-weight": 600 }, title));
  for (const value of niceTicks(peak * 1.06)) {
    page.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    page.append(svg("text", { class: "axis", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, tick(value)));
  }
  const floor = top + height + strip;
  for (const seqlen of lengths) page.append(svg("text", { class: "axis", x: x(seqlen), y: floor + 18, "text-anchor": "middle" }, length(seqlen)));
  page.append(svg("text", { class: "axis", x: (left + width - right) / 2, y: floor + 36, "text-anchor": "middle" }, "seqlen_global (tokens)"));
  lines.forEach((line, i) => page.append(drawLine(line, x, y, hidden.has(line.label))));
  failed.forEach((line, i) => page.append(drawFailed(line, x, top + height + 14 + 18 * i, width - right, hidden.has(line.label))));
  lines.forEach((line, i) => page.append(drawKey(line, width - right + 14, top + 6 + 20 * i, hidden.has(line.label), () => toggle(line.label))));
  host.replaceChildren(page);
}

function drawLine(line, x, y, off) {
  const group = svg("g", { class: off ? "off" : "" });
  const path = line.points.map((point, i) => `${i ? "L" : "M"}${x(point.seqlen).toFixed(1)} ${y(point.value).toFixed(1)}`).join("");
  if (!path) return group;
  if (line.bound) group.append(svg("path", { class: "bound", d: path }));
  else group.append(svg("path", { d: path, fill: "none", stroke: line.colour, "stroke-width": 1.8, "stroke-dasharray": line.dash }));
  for (const point of line.points) {
    const px = x(point.seqlen), mark = svg("g", { class: "mark", "data-tip": point.tip,
      onmousemove: (event) => showTip(event, point.tip), onmouseleave: hideTip });
    if (!line.bound) {
      mark.append(svg("path", { d: `M${px} ${y(point.low)}V${y(point.high)}`, stroke: line.colour, "stroke-width": 1 }));
      mark.append(marker(line.shape, px, y(point.value), line.colour));
    }
    mark.append(svg("circle", { cx: px, cy: y(point.value), r: 10, fill: "transparent" }));
    group.append(mark);
  }
  return group;
}

function drawFailed(line, x, y, right, off) {
  const group = svg("g", { class: off ? "off" : "" });
  for (const point of line.failed) {
    const px = x(point.seqlen);
    group.append(svg("g", { class: "mark", onmousemove: (event) => showTip(event, point.tip), onmouseleave: hideTip },
      svg("path", { d: `M${px - 4} ${y - 4}l8 8m0 -8l-8 8`, stroke: line.colour, "stroke-width": 2 }),
      svg("text", { class: "axis", x: px + 8, y: y + 4, "font-size": 10 }, point.word)));
  }
  return group;
}

function drawKey(line, x, y, off, toggle) {
  const key = svg("g", { class: "key" + (off ? " off" : ""), role: "button", tabindex: 0, "aria-pressed": String(!off),
    onclick: toggle, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); } } });
  key.append(svg("rect", { x: x - 4, y: y - 10, width: 230, height: 20, fill: "transparent" }));
  if (line.bound) key.append(svg("path", { class: "bound", d: `M${x} ${y}h28` }));
  else key.append(svg("path", { d: `M${x} ${y}h28`, stroke: line.colour, "stroke-width": 1.8, "stroke-dasharray": line.dash }), marker(line.shape, x + 14, y, line.colour));
  key.append(svg("text", { x: x + 36, y: y + 4, "font-size": 11 }, line.label.length > 34 ? line.label.slice(0, 33) + "…" : line.label));
  return key;
}
