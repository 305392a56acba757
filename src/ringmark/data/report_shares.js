// Where the time goes: a bar for each profiled method at the longest profiled length; hover tells the shares.

function drawShares(host, lines, phase, parts) {
  const profiled = lines.flatMap((line) => line.points
    .filter((point) => point.phase === phase && point.shares).map((point) => ({ line, point })));
  if (!profiled.length) {
    host.replaceChildren();
    return;
  }
  const seqlen = Math.max(...profiled.map(({ point }) => point.seqlen));
  const bars = profiled.filter(({ point }) => point.seqlen === seqlen);
  const left = 260, wide = 560, high = 22, top = 56, names = Object.entries(parts);
  const page = svg("svg", { viewBox: `0 0 920 ${top + high * bars.length + 12}`, width: 920, role: "img",
    "aria-label": "where the time goes" });
  page.append(svg("text", { x: 70, y: 16, "font-weight": 600 }, `${PHASES[phase]} at ${length(seqlen)}: where the time of one profiled iteration goes`));
  names.forEach(([, title], i) => page.append(
    svg("rect", { x: 70 + 165 * i, y: 27, width: 12, height: 12, fill: `var(--c${i})` }),
    svg("text", { x: 87 + 165 * i, y: 37, "font-size": 11 }, title)));
  bars.forEach(({ line, point }, n) => {
    const y = top + high * n, told = names.map(([name, title]) => `${title}: ${point.shares[name].toFixed(3)}`);
    page.append(svg("text", { x: left - 8, y: y + 13, "text-anchor": "end", "font-size": 11 }, line.label));
    let x = left;
    names.forEach(([name], i) => {
      const width = Math.max(point.shares[name], 0) * wide;
      page.append(svg("rect", { class: "part mark", x, y, width, height: high - 5, fill: `var(--c${i})`,
        onmousemove: (event) => showTip(event, [line.label, ...told].join("\n")), onmouseleave: hideTip }));
      x += width;
    });
  });
  host.replaceChildren(page);
}
