// Charts in SVG. A scale maps numbers to pixels.

/** Make an SVG element with attributes, in a parent if one is given. */
function svg(name, attributes = {}, parent = null) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  set(element, attributes);
  if (parent) parent.append(element);
  return element;
}

/** Set attributes of an element; `text` is its text. */
function set(element, { text, ...attributes }) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
}

/** Fit an SVG element to its size on the screen, so that its units are pixels; return that size. */
function measure(root) {
  const { width, height } = root.getBoundingClientRect();
  set(root, { viewBox: `0 0 ${width} ${height}` });
  return { width, height };
}

/** A linear map of [low, high] to [from, to]. */
function linear(low, high, from, to) {
  const slope = (to - from) / (high - low || 1);
  const scale = x => from + (x - low) * slope;
  return Object.assign(scale, { low, high, from, to, inverse: pixel => low + (pixel - from) / slope });
}

/** About `count` round numbers between low and high. */
function ticks(low, high, count = 6) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(x => x * power >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

/** The `d` of a line through points [x, y]; points that are not finite interrupt it. */
function path(points) {
  let pen = "M";
  return points.map(([x, y]) => {
    if (!Number.isFinite(x) || !Number.isFinite(y)) { pen = "M"; return ""; }
    const part = `${pen}${x.toFixed(2)} ${y.toFixed(2)}`;
    pen = "L";
    return part;
  }).join("");
}

/** Draw an axis below a chart, at height y. */
function axisBelow(parent, scale, y, count) {
  const axis = svg("g", { class: "axis" }, parent);
  svg("line", { x1: scale.from, x2: scale.to, y1: y, y2: y }, axis);
  for (const x of ticks(scale.low, scale.high, count)) {
    svg("line", { x1: scale(x), x2: scale(x), y1: y, y2: y + 4 }, axis);
    svg("text", { x: scale(x), y: y + 16, "text-anchor": "middle", text: format(x) }, axis);
  }
}

/** Draw an axis to the left of a chart, at x. */
function axisLeft(parent, scale, x, count = 4, shown = format) {
  const axis = svg("g", { class: "axis" }, parent);
  for (const y of ticks(scale.low, scale.high, count)) {
    svg("line", { x1: x - 4, x2: x, y1: scale(y), y2: scale(y) }, axis);
    svg("text", { x: x - 7, y: scale(y) + 4, "text-anchor": "end", text: shown(y) }, axis);
  }
}

/** A format for the numbers of an axis with as many digits as tell its ticks apart. */
function telling(low, high) {
  const digits = Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / (high - low))) + 2;
  return v => format(v, Math.min(Math.max(digits, 4), 12));
}
