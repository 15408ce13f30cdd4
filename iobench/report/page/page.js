"use strict";
// The page is complete without this script, which adds downloads and the choice of a theme.
const theme = document.getElementById("theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
for (const button of document.querySelectorAll("button[data-of]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const source = JSON.parse(document.getElementById(button.dataset.of).textContent);
    const text = typeof source === "string" ? source : JSON.stringify(source, null, 2);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: button.dataset.type }));
    link.download = button.dataset.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
}
const details = document.querySelectorAll("details");
addEventListener("beforeprint", () => details.forEach((each) => { each.open = true; }));
const zoomed = 0.5;
function timeline(box) {
  const data = JSON.parse(document.getElementById(box.dataset.of).textContent);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const tables = [], series = [{ label: "seconds" }], bands = [];
  data.tracks.forEach((track, number) => {
    const stroke = color(`--c${number % 8}`), dash = number % 2 ? [6, 4] : undefined;
    tables.push([track.at, track.high]);
    series.push({ label: track.label, stroke, width: 1.5, dash, spanGaps: true });
    if (track.low.some((low, at) => low !== track.high[at])) {
      tables.push([track.at, track.low]);
      series.push({ label: `${track.label}, least`, stroke, width: 0.5, spanGaps: true });
      bands.push({ series: [series.length - 2, series.length - 1], fill: `${stroke}30` });
    }
  });
  const axis = () => ({ stroke: color("--soft"), grid: { stroke: color("--edge") } });
  const time = (s) => s === 0 ? "0" : s < 1e-3 ? `${+(s * 1e6).toPrecision(3)} \u00b5s`
    : s < 1 ? `${+(s * 1e3).toPrecision(3)} ms` : `${+s.toPrecision(3)} s`;
  const marks = (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = color("--soft");
    ctx.setLineDash([5, 4]);
    for (const mark of data.marks) {
      const x = plot.valToPos(mark.at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText(mark.label, x + 4, bbox.top + 10);
    }
    ctx.restore();
  };
  const place = box.querySelector(".plot");
  const plot = new uPlot({
    width: Math.max(320, place.clientWidth), height: 300, series, bands,
    scales: { x: { time: false } },
    axes: [
      { ...axis(), label: "seconds since the repetition began", size: 44, labelSize: 20 },
      { ...axis(), size: 72, values: (_, ticks) => ticks.map(time) },
    ],
    hooks: { draw: [marks] },
  }, uPlot.join(tables), place);
  for (const each of series.slice(1)) each.value = (_, value) => value == null ? "" : time(value);
  const canvas = place.querySelector("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${data.title}; the figures are in the table below`);
  const all = [plot.scales.x.min, plot.scales.x.max];
  const moves = {
    in: (low, high) => [low + (high - low) * zoomed / 2, high - (high - low) * zoomed / 2],
    out: (low, high) => [low - (high - low) * zoomed, high + (high - low) * zoomed],
    left: (low, high) => [low - (high - low) * zoomed, high - (high - low) * zoomed],
    right: (low, high) => [low + (high - low) * zoomed, high + (high - low) * zoomed],
    all: () => all,
  };
  for (const button of box.querySelectorAll("button[data-move]")) {
    button.hidden = false;
    button.onclick = () => {
      const [min, max] = moves[button.dataset.move](plot.scales.x.min, plot.scales.x.max);
      plot.setScale("x", { min: Math.max(all[0], min), max: Math.min(all[1], max) });
    };
  }
  return plot;
}
const plots = [];
function draw() {
  for (const plot of plots.splice(0)) plot.destroy();
  for (const box of document.querySelectorAll(".timeline")) plots.push(timeline(box));
}
if (typeof uPlot !== "undefined") {
  draw();
  theme.addEventListener("click", draw);
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 150); });
}
