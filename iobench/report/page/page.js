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
// The contents stand beside the report on a wide screen, and are folded on a narrow one.
const contents = document.getElementById("contents");
const desk = matchMedia("(min-width: 75rem)");
const place = () => { contents.open = desk.matches; };
desk.addEventListener("change", place);
place();
// What a link goes to is opened.
const parts = [...document.querySelectorAll("details.part")];
const reveal = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
  if (target && !desk.matches) contents.open = false;
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", reveal);
const unfold = document.getElementById("unfold");
unfold.hidden = !parts.length;
unfold.addEventListener("click", () => {
  const open = parts.some((each) => !each.open);
  for (const each of parts) each.open = open;
  unfold.textContent = open ? "Close all" : "Open all";
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
// What is wider than its box can be scrolled by keyboard, and only that is a stop of the tab key.
const wide = new ResizeObserver((seen) => {
  for (const { target } of seen) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
document.querySelectorAll(".wide, .figure-box").forEach((each) => wide.observe(each));
const zoomed = 0.5;
const dashes = [undefined, [6, 4], [2, 3], [10, 3, 2, 3]];
const powers = [...Array(60).keys()].map((power) => 2 ** power);
const bytes = (value) => {
  const power = value < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${+(value / 1024 ** power).toPrecision(3)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
};
const rates = (value) => {
  const power = value < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(value) / 3 + 1e-9));
  return `${+(value / 1000 ** power).toPrecision(3)} ${["B", "kB", "MB", "GB", "TB"][power]}/s`;
};
const shows = {
  s: (s) => s === 0 ? "0" : s < 1e-3 ? `${+(s * 1e6).toPrecision(3)} \u00b5s`
    : s < 1 ? `${+(s * 1e3).toPrecision(3)} ms` : `${+s.toPrecision(3)} s`,
  share: (share) => `${+(share * 100).toPrecision(3)} %`,
  bytes,
  "bytes/s": rates,
};
const plain = (value) => `${+value.toPrecision(3)}`;
function timeline(box) {
  const data = JSON.parse(document.getElementById(box.dataset.of).textContent);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = () => ({ stroke: color("--soft"), grid: { stroke: color("--edge") } });
  const marks = (named) => (plot) => {
    const { ctx, bbox } = plot, end = bbox.left + bbox.width, room = 4 * devicePixelRatio;
    const taken = [];
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = color("--soft");
    ctx.setLineDash([5, 4]);
    ctx.textAlign = "left";
    for (const mark of data.marks) {
      const x = plot.valToPos(mark.at, "x", true);
      if (x < bbox.left || x > end) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      if (!named) continue;
      const width = ctx.measureText(mark.label).width;
      const start = x + room + width > end ? x - room - width : x + room;
      // A label that would cover an earlier one is left out; epochs come first.
      if (taken.some(([from, to]) => start < to + room && start + width > from - room)) continue;
      taken.push([start, start + width]);
      ctx.fillText(mark.label, start, bbox.top + 10 * devicePixelRatio);
    }
    ctx.restore();
  };
  const made = [];
  let all, moving = false;
  const together = (plot, key) => {
    if (key !== "x" || moving || !all) return;
    moving = true;
    const { min, max } = plot.scales.x;
    for (const other of made) if (other !== plot) other.setScale("x", { min, max });
    moving = false;
  };
  [...box.querySelectorAll(".plot")].forEach((place, pane) => {
    const { title, unit, tracks } = data.panes[pane], show = shows[unit] || plain;
    const tables = [], series = [{ label: "seconds" }], bands = [];
    tracks.forEach((track, number) => {
      const stroke = color(`--c${number % 8}`), dash = dashes[(number + Math.floor(number / 8)) % dashes.length];
      tables.push([track.at, track.high]);
      series.push({ label: track.label, stroke, width: 1.5, dash, spanGaps: true });
      if (track.low.some((low, at) => low !== track.high[at])) {
        tables.push([track.at, track.low]);
        series.push({ label: `${track.label}, least`, stroke, width: 0.5, spanGaps: true });
        bands.push({ series: [series.length - 2, series.length - 1], fill: `${stroke}30` });
      }
    });
    for (const each of series.slice(1)) each.value = (_, value) => value == null ? "" : show(value);
    const last = pane === data.panes.length - 1;
    const plot = new uPlot({
      width: Math.max(320, place.clientWidth), height: pane ? 150 : 300, series, bands,
      cursor: { sync: { key: box.dataset.of } },
      scales: {
        x: { time: false },
        y: { range: (_, low, high) => [Math.min(0, low), unit === "share" ? 1 : high * 1.05 || 1] },
      },
      axes: [
        { ...axis(), ...(last ? { label: "seconds since the repetition began", size: 44, labelSize: 20 }
          : { size: 26 }) },
        { ...axis(), size: 84, values: (_, ticks) => ticks.map(show), space: pane ? 24 : 30,
          ...(unit === "bytes" ? { incrs: powers } : {}) },
      ],
      hooks: { draw: [marks(!pane)], setScale: [together] },
    }, uPlot.join(tables), place);
    const canvas = place.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${title}; the figures are in the table below`);
    made.push(plot);
  });
  const [main] = made;
  // uPlot knows its scales only later, so they are taken from the data.
  const tracks = data.panes.flatMap((pane) => pane.tracks).filter((track) => track.at.length);
  all = [Math.min(...tracks.map((track) => track.at[0])),
    Math.max(...tracks.map((track) => track.at[track.at.length - 1]))];
  if (!(all[0] < all[1])) return made;  // one instant: there is nothing to zoom into
  moving = true;
  for (const plot of made) plot.setScale("x", { min: all[0], max: all[1] });
  moving = false;
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
      const [min, max] = moves[button.dataset.move](main.scales.x.min, main.scales.x.max);
      // At an end of the data the part that is shown keeps its width.
      const width = Math.min(max - min, all[1] - all[0]);
      const start = Math.min(Math.max(all[0], min), all[1] - width);
      main.setScale("x", { min: start, max: start + width });
    };
  }
  return made;
}
const plots = [];
function draw() {
  const before = plots.splice(0);
  const shown = before.map(({ scales: { x } }) => ({ min: x.min, max: x.max }));
  for (const plot of before) plot.destroy();
  const open = [...document.querySelectorAll(".timeline")].filter((box) => box.clientWidth);
  for (const box of open) plots.push(...timeline(box));
  shown.forEach(({ min, max }, number) => {  // what was zoomed into stays
    if (min < max && plots[number]) plots[number].setScale("x", { min, max });
  });
}
if (typeof uPlot !== "undefined") {
  draw();
  theme.addEventListener("click", draw);
  // A timeline that was folded has no width before it is opened.
  for (const part of parts) if (part.querySelector(".timeline")) part.addEventListener("toggle", draw);
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 150); });
}
// On paper all parts and tables are open but for specifications, and timelines have the light colours and the width of a sheet.
const sheet = 640;
let before = null;
addEventListener("beforeprint", () => {
  if (before) return;
  const root = document.documentElement;
  const closed = [...document.querySelectorAll("main details:not([open]):not(.source)")];
  before = { closed, theme: root.dataset.theme };
  closed.forEach((each) => { each.open = true; });
  root.dataset.theme = "light";
  if (typeof uPlot === "undefined") return;
  draw();
  for (const plot of plots) {
    plot.setSize({ width: Math.min(sheet, plot.width), height: plot.height });
  }
});
addEventListener("afterprint", () => {
  if (!before) return;
  before.closed.forEach((each) => { each.open = false; });
  if (before.theme) document.documentElement.dataset.theme = before.theme;
  else delete document.documentElement.dataset.theme;
  before = null;
  if (typeof uPlot !== "undefined") draw();
});
