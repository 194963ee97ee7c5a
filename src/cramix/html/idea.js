const VIEW = { low: -9, high: 9 }, LARGEST_SCALE = 4, MOST_STEPS = 500, LOSSES = ["cramer", "likelihood"];
const KINDS = { mean: "means", scale: "scales", weight: "weights" };
// Pixels of an arrow for a gradient of 1, and the most it is drawn with.
const ARROW = { mean: [80, 110], scale: [80, 110], weight: [14, 56] };

const { presets } = pageData();
const byId = id => document.getElementById(id);
const copy = p => ({ weights: [...p.weights], means: [...p.means], scales: [...p.scales] });
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const state = { model: copy(presets[0].model), target: copy(presets[0].target), cramer: null, likelihood: null };

/** A number in few characters. */
function compact(x, digits = 4) {
  return x && Math.abs(x) < 1e-2 ? x.toExponential(Math.max(digits - 2, 0)) : format(x, digits);
}

/** Both losses of a model, with gradients; the second is null if the model has an atom. */
function losses(model, target) { return { cramer: cramer(model, target), likelihood: crossEntropy(model, target) }; }

/** Set a weight, and share what is left among the other components in proportion. */
function setWeight(p, i, weight) {
  const rest = 1 - p.weights[i];
  p.weights = p.weights.map((w, j) => j === i ? weight : rest > 0 ? w * (1 - weight) / rest : (1 - weight) / (p.weights.length - 1));
}

function setParameter(side, kind, i, value) {
  const p = state[side];
  if (kind === "mean") p.means[i] = clamp(value, VIEW.low, VIEW.high);
  if (kind === "scale") p.scales[i] = clamp(value, 0, LARGEST_SCALE);
  if (kind === "weight") setWeight(p, i, clamp(value, 0, 1));
  choosePreset(null);
  changed();
}

// The handles: made once, so that they keep the focus, and moved by draw().

const handles = [];
const picture = { root: byId("densities") };
for (const name of ["curves", "rods", "arrows", "handles", "labels"]) picture[name] = svg("g", {}, picture.root);

for (const side of ["model", "target"]) {
  for (let i = 0; i < state[side].weights.length; i++) {
    for (const kind of Object.keys(KINDS)) handles.push(makeHandle(side, kind, i));
  }
}

function makeHandle(side, kind, i) {
  const vertical = kind === "weight", limits = { mean: VIEW, scale: { low: 0, high: LARGEST_SCALE }, weight: { low: 0, high: 1 } }[kind];
  const element = svg("g", {
    class: `handle ${side}`, tabindex: 0, role: "slider", "aria-label": `${kind} of component ${i + 1} of the ${side}`,
    "aria-orientation": vertical ? "vertical" : "horizontal", "aria-valuemin": limits.low, "aria-valuemax": limits.high,
    "data-handle": `${side}-${kind}-${i}`,
  }, picture.handles);
  svg("circle", { class: "hit", r: 18 }, element);
  svg("circle", { class: "ring", r: 12 }, element);
  if (kind === "mean") svg("circle", { class: "mark", r: 7 }, element);
  if (kind === "scale") svg("rect", { class: "mark", x: -6, y: -6, width: 12, height: 12, rx: 1.5 }, element);
  if (kind === "weight") svg("path", { class: "mark", d: "M0-8.5L8.5 0L0 8.5L-8.5 0Z" }, element);
  const handle = { side, kind, i, element };
  const read = () => state[side][KINDS[kind]][i];
  element.addEventListener("keydown", event => {
    const sign = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    const jump = { PageUp: 10, PageDown: -10 }[event.key];
    const unit = vertical ? 0.01 : 0.05;
    let value = null;
    if (sign) value = read() + sign * unit * (event.shiftKey ? 10 : 1);
    if (jump) value = read() + jump * unit;
    if (event.key === "Home") value = limits.low;
    if (event.key === "End") value = limits.high;
    if (value === null) return;
    event.preventDefault();
    setParameter(side, kind, i, Number(value.toFixed(6)));
  });
  element.addEventListener("pointerdown", event => {
    event.preventDefault();
    element.focus({ focusVisible: false });
    element.setPointerCapture(event.pointerId);
    element.classList.add("held");
    const start = { x: event.clientX, y: event.clientY, value: read() };
    const move = moved => {
      const across = picture.x.inverse(moved.clientX - start.x) - picture.x.inverse(0);
      const up = (side === "model" ? 1 : -1) * (start.y - moved.clientY) / picture.reach;
      setParameter(side, kind, i, Number((start.value + (vertical ? up : across)).toFixed(3)));
    };
    const end = () => {
      element.classList.remove("held");
      element.removeEventListener("pointermove", move);
    };
    element.addEventListener("pointermove", move);
    element.addEventListener("lostpointercapture", end, { once: true });
  });
  return handle;
}

// Pictures.

/** A grid over the view that is finer around narrow components and steps at atoms. */
function grid(...mixtures) {
  const xs = [];
  for (let i = 0; i <= 240; i++) xs.push(VIEW.low + (VIEW.high - VIEW.low) * i / 240);
  for (const p of mixtures) {
    p.means.forEach((m, i) => {
      const s = p.scales[i];
      if (s === 0) xs.push(m - 1e-9, m);
      else if (s < 0.5) for (let z = -4; z <= 4; z += 0.25) xs.push(m + z * s);
    });
  }
  return xs.filter(x => x >= VIEW.low && x <= VIEW.high).sort((a, b) => a - b);
}

/** Draw the density of a mixture upwards or downwards from an axis, at most `room` pixels high; atoms as bars. */
function drawDensity(parent, p, side, x, axis, up, room, tallest) {
  const height = y => axis - up * room * Math.min(y / tallest, 1);
  const curve = grid(p).map(at => [x(at), height(pdf(p, at))]);
  svg("path", { class: `fill ${side}`, d: `${path(curve)}L${x(VIEW.high)} ${axis}L${x(VIEW.low)} ${axis}Z` }, parent);
  svg("path", { class: `curve ${side}`, d: path(curve) }, parent);
  p.means.forEach((m, i) => {
    if (p.scales[i] === 0 && m >= VIEW.low && m <= VIEW.high) {
      svg("line", { class: `rod ${side}`, "stroke-width": 3, x1: x(m), x2: x(m), y1: axis, y2: axis - up * room * p.weights[i] }, parent);
    }
  });
}

/** The highest density of mixtures, so far as it is drawn. */
function tallest(...mixtures) {
  const most = Math.max(...mixtures.flatMap(p => grid(p).map(x => pdf(p, x))));
  return clamp(most * 1.08, 0.3, 1.2);
}

function draw() {
  const { width, height } = measure(picture.root), axis = height / 2, room = axis - 14;
  picture.x = linear(VIEW.low, VIEW.high, 16, width - 16);
  picture.reach = room - 76; // pixels of a weight of 1
  const { x } = picture, top = tallest(state.model, state.target);
  for (const name of ["curves", "rods", "arrows", "labels"]) picture[name].replaceChildren();
  drawDensity(picture.curves, state.model, "model", x, axis, 1, room, top);
  drawDensity(picture.curves, state.target, "target", x, axis, -1, room, top);
  svg("line", { class: "rod", stroke: colour("--line"), x1: 0, x2: width, y1: axis, y2: axis }, picture.curves);
  svg("text", { class: "model", x: 4, y: 16, text: "model, density f" }, picture.labels);
  svg("text", { class: "target", x: 4, y: height - 6, text: "target, density g" }, picture.labels);
  for (const handle of handles) place(handle, axis);
  drawDistributions();
  showNumbers();
}

/** Move a handle to where its parameter is, with its rod and arrows. */
function place({ side, kind, i, element }, axis) {
  const p = state[side], up = side === "model" ? 1 : -1, { x, rods } = picture;
  const lane = axis - up * (40 + 22 * i), head = axis - up * (78 + picture.reach * p.weights[i]);
  const foot = axis - up * 12, centre = x(p.means[i]), edge = x(p.means[i] + p.scales[i]);
  const [left, top] = { mean: [centre, foot], scale: [edge, lane], weight: [centre, head] }[kind];
  set(element, { transform: `translate(${left} ${top})` });
  const value = p[KINDS[kind]][i];
  set(element, { "aria-valuenow": value, "aria-valuetext": spoken(side, kind, i, value) });
  if (kind === "weight") svg("line", { class: `rod ${side}`, x1: centre, x2: centre, y1: foot, y2: head }, rods);
  if (kind === "scale") svg("line", { class: `rod ${side}`, x1: 2 * centre - edge, x2: edge, y1: lane, y2: lane }, rods);
  if (side === "model") LOSSES.forEach((loss, j) => drawArrow(loss, kind, left, top, j ? 4 : -4, gradient(loss, kind, i)));
}

function gradient(loss, kind, i) { return state[loss] ? state[loss][KINDS[kind]][i] : null; }

/** What a screen reader says of a handle: its value, and both gradients for the model. */
function spoken(side, kind, i, value) {
  if (side === "target") return format(value);
  const [first, second] = LOSSES.map(loss => state[loss] ? format(gradient(loss, kind, i), 3) : "not defined");
  return `${format(value)}; gradient of the Cramér distance ${first}, of the likelihood ${second}`;
}

/** Draw the step against a gradient: across for means and scales, upwards for weights. */
function drawArrow(loss, kind, left, top, offset, slope) {
  if (slope === null || !Number.isFinite(slope)) return;
  const [unit, longest] = ARROW[kind], most = Math.min(longest, picture.x.to / 5), length = Math.min(Math.abs(slope) * unit, most), cut = Math.abs(slope) * unit > most;
  if (length < 1.5) return;
  const turn = kind === "weight" ? (slope < 0 ? -90 : 90) : slope < 0 ? 0 : 180;
  const shift = kind === "weight" ? `${left + offset * 1.2} ${top}` : `${left} ${top + offset}`;
  const tip = 9 + length, wing = Math.min(5, length);
  const end = cut ? `M${tip + 4} -5V5` : "";
  const arrow = `M9 0H${tip}M${tip - wing} ${-wing * 0.8}L${tip} 0L${tip - wing} ${wing * 0.8}${end}`;
  svg("path", { class: `arrow ${loss}`, d: arrow, transform: `translate(${shift}) rotate(${turn})` }, picture.arrows);
  if (!cut) return;
  const side = slope < 0 ? 1 : -1, anchor = kind === "weight" ? "middle" : slope < 0 ? "start" : "end";
  const x = kind === "weight" ? left + offset * 1.2 : left + side * (tip + 9);
  const room = x > 44 && x < picture.x.to - 28; // else the number stands above the arrow
  const y = kind === "weight" ? top - side * (tip + 12) + 4 : top + offset + (room ? 4 : -8);
  const placed = room || kind === "weight" ? { x, "text-anchor": anchor } : { x: x - side * 10, "text-anchor": slope < 0 ? "end" : "start" };
  svg("text", { class: `arrow ${loss}`, y, ...placed, text: format(Math.abs(slope), 3) }, picture.labels);
}

function drawDistributions() {
  const root = byId("distributions"), { width, height } = measure(root);
  root.replaceChildren();
  const x = linear(VIEW.low, VIEW.high, 16, width - 16), y = linear(0, 1, height - 24, 6);
  const at = grid(state.model, state.target), curves = ["model", "target"].map(side => at.map(u => [x(u), y(cdf(state[side], u))]));
  svg("path", { class: "between", d: `${path(curves[0])}L${path([...curves[1]].reverse()).slice(1)}Z` }, root);
  ["model", "target"].forEach((side, i) => svg("path", { class: `curve ${side}`, d: path(curves[i]) }, root));
  axisBelow(root, x, height - 20, width < 500 ? 6 : 9);
  const [first, second] = mean(state.model) <= mean(state.target) ? ["model", "target"] : ["target", "model"];
  const named = { model: "F, model", target: "G, target" };
  svg("text", { class: first, x: x(clamp(quantile(state[first], 0.6), VIEW.low, VIEW.high)) - 10, y: y(0.6), "text-anchor": "end", text: named[first] }, root);
  svg("text", { class: second, x: x(clamp(quantile(state[second], 0.4), VIEW.low, VIEW.high)) + 10, y: y(0.4) + 8, text: named[second] }, root);
}

function showNumbers() {
  for (const loss of LOSSES) {
    const found = state[loss];
    const largest = found ? Math.max(...Object.values(KINDS).flatMap(name => found[name].map(Math.abs))) : null;
    set(byId(`${loss}-value`), { text: found ? compact(found.value) : "not defined", "data-value": found ? found.value : "" });
    set(byId(`${loss}-largest`), { text: compact(largest, 3), "data-value": largest ?? "" });
  }
  const rows = [];
  for (const [kind, name] of Object.entries(KINDS)) {
    state.model[name].forEach((value, i) => {
      const row = document.createElement("tr"), head = document.createElement("th");
      set(head, { scope: "row", text: `${kind} ${i + 1}` });
      row.append(head);
      for (const [group, number] of [["", value], ...LOSSES.map(loss => [loss, gradient(loss, kind, i)])]) {
        const cell = document.createElement("td");
        set(cell, { class: group, "data-value": number ?? "", text: compact(number) });
        row.append(cell);
      }
      rows.push(row);
    });
  }
  byId("gradients").tBodies[0].replaceChildren(...rows);
}

// Descent with both losses.

let runs = null, frame = null;

function begin() {
  runs = LOSSES.map(loss => ({ loss, model: copy(state.model), history: [], failed: null }));
  runs.forEach(record);
}

function record(run) {
  const both = losses(run.model, state.target);
  run.gradient = both[run.loss];
  run.history.push({ cramer: both.cramer.value, likelihood: both.likelihood ? both.likelihood.value : null });
  if (!run.gradient) run.failed = "not defined, the model has an atom";
}

/** One step of gradient descent on means, scales and logits of the weights. A scale and its negative are the same. */
function step(run, rate) {
  if (run.failed) { run.history.push({ cramer: null, likelihood: null }); return; }
  const { model, gradient: slope } = run;
  const logits = model.weights.map((w, i) => Math.log(w) - rate * w * slope.weights[i]), most = Math.max(...logits);
  const shares = logits.map(x => Math.exp(x - most)), total = shares.reduce((a, b) => a + b);
  run.model = {
    weights: shares.map(x => x / total),
    means: model.means.map((m, i) => m - rate * slope.means[i]),
    scales: model.scales.map((s, i) => Math.abs(s - rate * slope.scales[i])),
  };
  if (Object.values(run.model).flat().some(x => !(Math.abs(x) < 1e9))) {
    run.failed = `diverged at step ${run.history.length}`;
    run.history.push({ cramer: null, likelihood: null });
  } else record(run);
}

function advance(count) {
  const rate = stepSize();
  for (let i = 0; i < count && runs[0].history.length <= MOST_STEPS; i++) runs.forEach(run => step(run, rate));
  drawRuns();
}

function stepSize() { return 10 ** Number(byId("rate").value); }

function drawRuns() {
  const taken = runs[0].history.length - 1;
  byId("steps").textContent = `step ${taken}`;
  const names = { cramer: "By the Cramér distance", likelihood: "By the likelihood" };
  for (const run of runs) {
    const root = byId(`by-${run.loss}`), { width, height } = measure(root), x = linear(VIEW.low, VIEW.high, 8, width - 8);
    root.replaceChildren();
    const axis = height - 22, top = tallest(run.model, state.target);
    drawDensity(root, state.target, "target", x, axis, 1, axis - 4, top);
    if (!run.failed?.startsWith("diverged")) drawDensity(root, run.model, "model", x, axis, 1, axis - 4, top);
    axisBelow(root, x, axis, width < 400 ? 6 : 9);
    set(byId(`by-${run.loss}-title`), { text: `${names[run.loss]}: ${outcome(run)}` });
  }
  for (const loss of LOSSES) drawHistory(byId(`${loss}-chart`), loss);
}

/** A run in words. */
function outcome(run) {
  if (run.failed) return run.failed;
  const { means, scales } = run.model, listed = values => values.map(x => format(x, 3)).join(", ");
  return `means ${listed(means)}; scales ${listed(scales)}`;
}

/** Draw a loss of both runs over the steps: the Cramér distance on a logarithmic scale. */
function drawHistory(root, loss) {
  const { width, height } = measure(root), scaled = loss === "cramer" ? v => v === null ? NaN : Math.log10(Math.max(v, 1e-30)) : v => v ?? NaN;
  const lines = runs.map(run => run.history.map(entry => scaled(entry[loss])));
  const all = lines.flat().filter(Number.isFinite);
  root.replaceChildren();
  if (!all.length || lines[0].length === 1) {
    const text = all.length ? "Press Descend to see the runs." : "Not defined: the model has an atom.";
    svg("text", { class: "label", x: 8, y: height / 2, text }, root);
    return;
  }
  const low = Math.min(...all), high = Math.max(...all), pad = 0.08 * (high - low) || 0.5;
  const x = linear(0, Math.max(20, lines[0].length - 1), 68, width - 12), y = linear(low - pad, high + pad, height - 24, 6);
  axisBelow(root, x, height - 20, width < 400 ? 4 : 8);
  axisLeft(root, y, 68, 3, loss === "cramer" ? v => compact(10 ** v, 1) : telling(y.low, y.high));
  lines.forEach((values, j) => {
    const name = LOSSES[j], points = values.map((v, i) => [x(i), y(v)]);
    svg("path", { class: `line ${name}`, d: path(points) }, root);
  });
  ends(lines, x, y).forEach(({ j, left, top }) => {
    svg("text", { class: `line ${LOSSES[j]}`, x: left, y: top, "text-anchor": "end", text: ["by Cramér", "by likelihood"][j] }, root);
  });
}

/** Where the names of two lines stand: above their last points, and apart from each other. */
function ends(lines, x, y) {
  const found = lines.map((values, j) => {
    const last = values.findLastIndex(Number.isFinite);
    return last < 0 || (last === 0 && values.length > 1) ? null : { j, left: Math.max(x(last), x.from + 84), top: Math.max(y(values[last]) - 6, 14) };
  }).filter(Boolean).sort((a, b) => a.top - b.top);
  if (found.length === 2 && Math.abs(found[0].left - found[1].left) < 90 && found[1].top - found[0].top < 14) {
    found[1].top = found[0].top + 14;
    if (found[1].top > y.from - 2) { found[1].top = y.from - 2; found[0].top = y.from - 16; }
  }
  return found;
}

function stop() {
  cancelAnimationFrame(frame);
  frame = null;
  byId("steps").setAttribute("aria-live", "polite");
  const button = byId("descend"), rest = runs[0].history.length <= MOST_STEPS;
  button.textContent = runs[0].history.length > 1 ? rest ? "Go on" : "Done" : "Descend";
  button.disabled = !rest;
}

function play() {
  const began = performance.now();
  do advance(1); while (performance.now() - began < 4 && runs[0].history.length <= MOST_STEPS);
  frame = runs[0].history.length <= MOST_STEPS ? requestAnimationFrame(play) : null;
  if (frame === null) stop();
}

byId("descend").addEventListener("click", () => {
  if (frame !== null) { stop(); return; }
  if (reducedMotion()) { advance(50); stop(); return; }
  byId("descend").textContent = "Pause";
  byId("steps").setAttribute("aria-live", "off"); // it changes at every frame
  play();
});
byId("reset").addEventListener("click", restart);

/** Runs start from the mixtures as they are now. */
function restart() {
  begin();
  stop();
  drawRuns();
}

function changed() {
  Object.assign(state, losses(state.model, state.target));
  draw();
  restart();
}

function choosePreset(chosen) {
  [...byId("presets").children].forEach((button, i) => button.setAttribute("aria-pressed", i === chosen));
  if (chosen === null) return;
  const { model, target, lesson } = presets[chosen];
  Object.assign(state, { model: copy(model), target: copy(target) });
  byId("lesson").textContent = lesson;
  changed();
}

presets.forEach(({ name }, i) => {
  const button = document.createElement("button");
  set(button, { type: "button", text: name });
  button.addEventListener("click", () => choosePreset(i));
  byId("presets").append(button);
});
byId("rate").addEventListener("input", () => { showRate(); restart(); });
function showRate() {
  byId("rate-value").textContent = format(stepSize(), 2);
  byId("rate").setAttribute("aria-valuetext", format(stepSize(), 2));
}
showRate();
choosePreset(0);
onAppearance(() => { draw(); drawRuns(); });

// In a frame, the page tells the page around it how high it is.
if (parent !== window) {
  new ResizeObserver(() => parent.postMessage({ cramixHeight: document.documentElement.scrollHeight }, "*")).observe(document.body);
}
