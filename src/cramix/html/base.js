/** The data that Python wrote into this page. */
function pageData() { return JSON.parse(document.getElementById("data").textContent); }

/** The value of a colour of the style sheet, such as colour("--c0"). */
function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

/** Whether the reader has asked for little motion. */
function reducedMotion() { return matchMedia("(prefers-reduced-motion: reduce)").matches; }

/** Call redraw when the colour scheme or the width of the window changes. */
function onAppearance(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", redraw);
}

/** Fit a canvas to its size on the screen; return its 2-D context in CSS pixels, cleared, with width and height. */
function prepare(canvas) {
  const { width, height } = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** A number with so many significant digits and no needless zeros. */
function format(x, digits = 4) {
  if (x === null || !Number.isFinite(x)) return "–";
  return x === 0 ? "0" : String(Number(x.toPrecision(digits)));
}
