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
