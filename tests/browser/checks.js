// What is wrong with how a page is laid out, as a list of lines. Evaluated in the page.
() => {
  const found = [];
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) found.push(`the page is ${root.scrollWidth} px wide`);

  // WCAG 2, "relative luminance" and "contrast ratio".
  const numbers = (color) => color.match(/[\d.]+/g).map(Number);
  const luminance = (color) => {
    const [r, g, b] = numbers(color).map((each) => {
      const share = each / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const paper = getComputedStyle(document.body).backgroundColor;
  const inside = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1
    && a.bottom <= b.bottom + 1;

  for (const svg of document.querySelectorAll("svg.chart")) {
    if (!svg.checkVisibility()) continue;
    const name = svg.querySelector("title").textContent.slice(0, 40), box = svg.getBoundingClientRect();
    const shapes = [...svg.querySelectorAll("rect, path.ground")].map((each) => [each, each.getBoundingClientRect()]);
    const texts = [...svg.querySelectorAll("text")].filter((each) => each.textContent.trim())
      .map((each) => [each, each.textContent.slice(0, 40), each.getBoundingClientRect()]);
    texts.forEach(([text, told, at], number) => {
      if (!inside(at, box)) found.push(`${name}: "${told}" is cut off`);
      for (const [, other, there] of texts.slice(0, number)) {
        const wide = Math.min(at.right, there.right) - Math.max(at.left, there.left);
        const high = Math.min(at.bottom, there.bottom) - Math.max(at.top, there.top);
        if (wide > 1 && high > 2) found.push(`${name}: "${told}" is over "${other}"`);
      }
      // The shape that the text is on, the last one drawn, or the page.
      const below = shapes.filter(([each, there]) => inside(at, there)
        && getComputedStyle(each).fill.startsWith("rgb")).pop();
      const ground = below ? getComputedStyle(below[0]).fill : paper;
      const ratio = contrast(getComputedStyle(text).fill, ground);
      if (ratio < 4.5) found.push(`${name}: "${told}" has a contrast of ${ratio.toFixed(2)}`);
    });
  }
  // A box that hides what is too long for it, in place of scrolling.
  for (const each of document.querySelectorAll("main *:not(svg *)")) {
    const style = getComputedStyle(each);
    if (style.overflowX === "hidden" && each.scrollWidth > each.clientWidth + 1)
      found.push(`${each.className || each.tagName} is cut off`);
    if (style.overflowX === "auto" && each.scrollWidth > each.clientWidth + 1 && each.tabIndex < 0)
      found.push(`${each.className || each.tagName} scrolls, but not by keyboard`);
  }
  return found;
}
