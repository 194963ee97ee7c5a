const data = pageData(), names = data.names, end = data.steps.length - 1;
const $ = id => document.getElementById(id);
const measures = { mean: p => mean(p), cvar, quantile, expectile };
// The level of the CVaR in the table: that of the agent's risk measure, or 0.1.
const tail = data.risk?.startsWith("cvar:") ? Number(data.risk.slice(5)) : 0.1;
const state = { now: 0, playing: false, measure: data.risk === "mean" ? "cvar" : "mean", level: 0.25, due: 0, scan: 0 };

// The return distributions: typed arrays of all moments, or of one where it is the same at all.
const parts = ["weights", "means", "scales"].map(name =>
  new Float32Array(Uint8Array.from(atob(data.returns[name]), c => c.charCodeAt(0)).buffer));
const components = data.returns.components, hasAtoms = parts[2].includes(0);

/** Call compute(moment, action) once for each pair of arguments. */
function remember(compute) {
  const known = new Map();
  return (moment, action) => {
    const key = moment * names.length + action;
    if (!known.has(key)) known.set(key, compute(moment, action));
    return known.get(key);
  };
}

const mixture = remember((moment, action) => {
  const [weights, means, scales] = parts.map(part => {
    const first = ((part.length === names.length * components ? 0 : moment * names.length) + action) * components;
    return Array.from(part.subarray(first, first + components));
  });
  const total = weights.reduce((sum, w) => sum + w); // 1 in float32
  return { weights: weights.map(w => w / total), means, scales };
});
const summary = remember((moment, action) => {
  const p = mixture(moment, action);
  const [low, median, high] = [0.1, 0.5, 0.9].map(u => quantile(p, u));
  return { mean: mean(p), low, median, high, cvar: cvar(p, tail) };
});
let values = null; // of all actions by the measure that was picked
function pick(measure, level) {
  Object.assign(state, { measure, level });
  values = remember((moment, action) => measures[measure](mixture(moment, action), level));
}

function spec() { return state.measure === "mean" ? "mean" : `${state.measure}:${format(state.level, 3)}`; }

function isAllowed(moment, action) { return moment === end || (data.allowed[moment]?.[action] ?? true); }

/** The best action by the measure that was picked. Agents compute in float32: they are right about what is so close. */
function bestAction(moment) {
  const each = names.map((_, i) => isAllowed(moment, i) ? values(moment, i) : -Infinity), best = Math.max(...each);
  const chosen = data.actions[moment];
  return each[chosen] >= best - 1e-6 * (height[1] - height[0]) ? chosen : each.indexOf(best);
}

function sorted(x) { return Float64Array.from(x).sort(); }

/** Limits that contain nearly all of the values in `lows` and `highs`. */
function limitsOf(lows, highs) {
  const low = sorted(lows)[Math.floor(0.02 * lows.length)], high = sorted(highs)[Math.ceil(0.98 * highs.length) - 1];
  const pad = 0.04 * (high - low) || 0.5 * (Math.abs(low) || 1);
  return [low - pad, high + pad];
}

const moments = Array.from({ length: end }, (_, i) => i);
const known = data.realised.slice(0, end).filter(x => x !== null);
// What the rows of each moment need to show; the axis moves along, and is wider than usual only where it must be.
const extent = moments.map(t => {
  const each = names.map((_, a) => [mean(mixture(t, a)), 2.8 * deviation(mixture(t, a))]);
  const realised = data.realised[t] ?? each[0][0];
  return [Math.min(realised, ...each.map(([m, s]) => m - s)), Math.max(realised, ...each.map(([m, s]) => m + s))];
});
const usual = sorted(extent.map(([low, high]) => high - low))[Math.floor(0.75 * end)] || 1;
function viewOf(moment) {
  const [low, high] = extent[Math.min(moment, end - 1)], half = 0.53 * Math.max(usual, high - low);
  return [(low + high) / 2 - half, (low + high) / 2 + half];
}
const band = moments.map(t => summary(t, data.actions[t]));
const height = limitsOf([...band.map(x => x.low), ...known], [...band.map(x => x.high), ...known]);
const inside = moments.filter(t => {
  const realised = data.realised[t];
  return realised !== null && band[t].low <= realised && realised <= band[t].high;
});
const coverage = known.length ? `${Math.round(100 * inside.length / known.length)} % of the moments` : null;
const decimals = Math.min(6, Math.max(0, 3 - Math.floor(Math.log10(usual))));

/** A number as text: with a minus sign that is as wide as a plus, and none before a zero. */
function signed(text) { return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−"); }

function number(x) { return x === null ? "–" : signed(x.toFixed(decimals)); }

function score(x) { return signed(String(Number(x.toFixed(2)))); }

function ticks([low, high], count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(x => x * power >= rough) * power, found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) found.push(i * step);
  return found;
}

function font(size, weight = 400) { return `${weight} ${size}px system-ui, sans-serif`; }

/** Heights of all rows at points x, relative to the highest; peaks are cut at 2.5 times the median peak. */
function curves(moment, x) {
  const half = (x[1] - x[0]) / 2; // so wide at least, so that no peak hides between two points
  const rows = names.map((_, a) => {
    const p = mixture(moment, a);
    if (hasAtoms) return x.map(t => cdf(p, t));
    const seen = { ...p, scales: p.scales.map(s => Math.hypot(s, half)) };
    return x.map(t => pdf(seen, t));
  });
  if (hasAtoms) return rows;
  const peaks = rows.map(row => Math.max(...row)), ordered = sorted(peaks);
  const top = Math.min(ordered.at(-1), 2.5 * ordered[(ordered.length - 1) >> 1]) || 1;
  return rows.map(row => row.map(y => Math.min(1, y / top)));
}

function drawReturns() {
  const canvas = $("returns"), row = names.length <= 4 ? 64 : names.length <= 8 ? 48 : 36;
  const moment = state.now, view = viewOf(moment);
  canvas.style.height = `${names.length * row + 36}px`;
  const { context: c, width } = prepare(canvas), bottom = names.length * row + 4;
  c.font = font(13, 600);
  const left = Math.min(0.4 * width, 12 + Math.max(60, ...names.map(name => c.measureText(name).width)));
  const place = x => left + (x - view[0]) / (view[1] - view[0]) * (width - left - 4);
  const bins = Math.max(40, Math.min(300, Math.round((width - left) / 2)));
  const x = Array.from({ length: bins + 1 }, (_, i) => view[0] + (view[1] - view[0]) * i / bins);
  const over = moment === end, rows = over ? [] : curves(moment, x);
  const chosen = data.actions[moment], best = over ? null : bestAction(moment);
  c.strokeStyle = c.fillStyle = colour("--quiet");
  c.font = font(11);
  c.textAlign = "center";
  for (const tick of ticks(view, Math.max(2, (width - left) / 80))) {
    c.globalAlpha = 0.25;
    line(c, place(tick), 4, place(tick), bottom, 1);
    c.globalAlpha = 1;
    c.fillText(signed(format(tick, 6)), Math.min(width - 14, place(tick)), bottom + 14);
  }
  c.textAlign = "right";
  c.fillText("discounted return from here", width - 4, bottom + 29);
  names.forEach((name, a) => {
    const base = (a + 1) * row, tall = row - 10, barred = !isAllowed(moment, a), ours = a === chosen;
    const own = colour(ours ? "--c0" : "--c7"), labels = barred ? [["not allowed", "--quiet"]] : [];
    if (ours) labels.push(["chosen", "--c0"]);
    if (a === best && !ours) labels.push([spec(), "--other"]);
    c.textAlign = "right";
    c.font = font(13, ours ? 600 : 400);
    c.fillStyle = colour(over || barred ? "--quiet" : ours ? "--c0" : "--text");
    c.fillText(name, left - 10, base - (labels.length ? 14 : 4), left - 10);
    c.font = font(11);
    labels.forEach(([text, tone]) => { c.fillStyle = colour(tone); c.fillText(text, left - 10, base - 1, left - 10); });
    c.fillStyle = colour("--line");
    c.fillRect(left, base, width - left - 4, 1);
    if (over) return;
    c.globalAlpha = barred ? 0.35 : 1;
    const { low, high, mean: centre } = summary(moment, a), y = rows[a].map(h => base - h * tall);
    area(c, x.map(place), y, base, own, ours ? 0.22 : 0.14);
    c.save();
    c.beginPath();
    c.rect(place(low), base - row, Math.max(1, place(high) - place(low)), row);
    c.clip();
    area(c, x.map(place), y, base, own, ours ? 0.38 : 0.24);
    c.restore();
    path(c, x.map(place), y, own, ours ? 2 : 1.3);
    c.strokeStyle = colour("--text");
    line(c, place(centre), base, place(centre), base - tall, 1.5);
    c.strokeStyle = colour("--c2");
    c.setLineDash([2, 2]);
    line(c, place(values(moment, a)), base, place(values(moment, a)), base - tall * 0.75, 2);
    c.setLineDash([]);
    c.globalAlpha = 1;
  });
  if (!over && data.realised[moment] !== null) drawRealised(c, place(data.realised[moment]), chosen, row, left, width);
  canvas.setAttribute("aria-label", over ? "The episode is over." : names.map((name, a) => {
    const [centre, low, high] = ["mean", "low", "high"].map(key => number(summary(moment, a)[key]));
    return `${name}: mean ${centre}, 80 % between ${low} and ${high}`;
  }).join("; "));
}

function drawRealised(c, x, chosen, row, left, width) {
  const base = (chosen + 1) * row, shown = Math.min(width - 5, Math.max(left, x));
  c.strokeStyle = c.fillStyle = colour("--c1");
  line(c, shown, base + 3, shown, base - row + 8, 2.5);
  c.beginPath();
  c.moveTo(shown, base + 1);
  c.lineTo(shown - 5, base + 8);
  c.lineTo(shown + 5, base + 8);
  c.fill();
}

function line(c, x0, y0, x1, y1, thick) {
  c.lineWidth = thick;
  c.beginPath();
  c.moveTo(x0, y0);
  c.lineTo(x1, y1);
  c.stroke();
}

function trace(c, x, y) { x.forEach((each, i) => i ? c.lineTo(each, y[i]) : c.moveTo(each, y[i])); }

function path(c, x, y, own, thick) {
  c.strokeStyle = own;
  c.lineWidth = thick;
  c.lineJoin = "round";
  c.beginPath();
  trace(c, x, y);
  c.stroke();
}

function area(c, x, y, base, own, alpha) {
  const before = c.globalAlpha;
  c.globalAlpha = before * alpha;
  c.fillStyle = own;
  c.beginPath();
  trace(c, [x[0], ...x, x.at(-1)], [base, ...y, base]);
  c.fill();
  c.globalAlpha = before;
}

const margin = 8; // half the thumb of the slider below
function drawPlot() {
  const { context: c, width, height: tall } = prepare($("plot")), top = 4, bottom = tall - 10;
  const across = i => margin + i / end * (width - 2 * margin);
  const [low, high] = height, clamped = y => Math.min(high, Math.max(low, y));
  const place = y => bottom - (clamped(y) - low) / (high - low) * (bottom - top);
  c.font = font(11);
  for (const tick of ticks(height, 4)) {
    c.strokeStyle = colour("--line");
    line(c, margin, place(tick), width - margin, place(tick), 1);
    c.fillStyle = colour("--quiet");
    c.fillText(signed(format(tick, 6)), margin, place(tick) - 3);
  }
  const x = moments.map(across), own = colour("--c0");
  c.fillStyle = own;
  c.globalAlpha = 0.2;
  c.beginPath();
  trace(c, [...x, ...x.toReversed()], [...band.map(b => place(b.low)), ...band.toReversed().map(b => place(b.high))]);
  c.fill();
  c.globalAlpha = 1;
  path(c, x, band.map(b => place(b.mean)), own, 2);
  const seen = [...moments, end].filter(t => data.realised[t] !== null);
  path(c, seen.map(across), seen.map(t => place(data.realised[t])), colour("--c1"), 2);
  c.fillStyle = colour("--c2");
  state.differs.forEach((differs, t) => { if (differs) c.fillRect(across(t) - 1, tall - 7, 2, 7); });
  c.strokeStyle = colour("--text");
  line(c, across(state.now), 0, across(state.now), tall, 1);
  for (const [y, tone] of [[band[state.now]?.mean, "--c0"], [data.realised[state.now], "--c1"]]) {
    if (y === undefined || y === null) continue;
    c.fillStyle = colour(tone);
    c.beginPath();
    c.arc(across(state.now), place(y), 4, 0, 2 * Math.PI);
    c.fill();
  }
}

function element(tag, text, className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

function showChoice() {
  const moment = state.now, chosen = data.actions[moment];
  if (moment === end) {
    const held = coverage ? ` The 80 % band held the realised return at ${coverage}.` : "";
    const result = `The episode is over: ${data.steps[end]} steps, score ${score(data.scores[end])}.`;
    return $("choice").replaceChildren(result + held);
  }
  const best = bestAction(moment), same = best === chosen;
  const ours = element("b", names[chosen], "agent"), theirs = element("b", names[best], same ? "agent" : "other");
  const between = `; by ${spec()} it would ${same ? "also " : ""}choose `;
  $("choice").replaceChildren("The agent chose ", ours, between, theirs, ".");
}

function showNumbers() {
  const moment = state.now, best = moment === end ? null : bestAction(moment);
  $("numbers").tBodies[0].replaceChildren(...names.map((name, a) => {
    const row = document.createElement("tr"), head = element("th", name);
    head.scope = "row";
    row.append(head);
    row.className = a === data.actions[moment] ? "chosen" : isAllowed(moment, a) ? "" : "barred";
    const s = moment === end ? null : summary(moment, a);
    for (const x of s ? [s.mean, s.low, s.median, s.high, s.cvar, values(moment, a)] : Array(6).fill(null)) {
      const cell = row.appendChild(element("td", number(x)));
      if (x !== null) cell.dataset.value = x;
    }
    if (a === best) row.lastChild.className = "best";
    return row;
  }));
}

function show() {
  const moment = state.now, realised = data.realised[moment], step = data.steps[moment];
  $("frame").src = "data:image/webp;base64," + data.frames[Math.floor(moment / data.share)];
  $("frame").alt = `${data.title} at step ${step}`;
  $("step").textContent = `${step} of ${data.steps[end]}`;
  $("score").textContent = score(data.scores[moment]);
  $("realised").textContent = number(realised);
  const share = moment === end || realised === null ? null : 100 * cdf(mixture(moment, data.actions[moment]), realised);
  $("percentile").textContent = share === null ? "" : `higher than ${Math.round(share)} % of the predicted returns`;
  const action = moment === end ? "end" : names[data.actions[moment]];
  $("time").value = moment;
  const position = `step ${step} of ${data.steps[end]}`;
  $("time").setAttribute("aria-valuetext", `${position}, score ${score(data.scores[moment])}, ${action}`);
  showChoice();
  showNumbers();
  drawReturns();
  drawPlot();
}

/** Find where the picked measure differs, a few milliseconds at a time. */
function scan() {
  const run = ++state.scan;
  state.differs = [];
  $("difference").textContent = "Comparing all moments …";
  $("next").disabled = true;
  (function some() {
    if (run !== state.scan) return;
    const until = performance.now() + 8;
    while (state.differs.length < end && performance.now() < until) {
      state.differs.push(bestAction(state.differs.length) !== data.actions[state.differs.length]);
    }
    if (state.differs.length < end) return void setTimeout(some);
    const count = state.differs.filter(Boolean).length;
    const where = count ? `differently at ${count} of ${end} moments` : `as the agent did at all ${end} moments`;
    $("difference").textContent = `In this episode, ${spec()} would choose ${where}.`;
    $("next").disabled = !count;
    drawPlot();
  })();
}

function repick() {
  pick($("measure").value, Number($("level").value));
  $("levels").hidden = state.measure === "mean";
  $("level-text").textContent = format(state.level, 3);
  for (const each of document.querySelectorAll(".spec")) each.textContent = spec();
  scan();
  show();
}

function go(moment) {
  state.now = Math.min(end, Math.max(0, moment));
  show();
}

function visit(moment) {
  play(false);
  go(moment);
}

function play(on) {
  if (on && state.now === end) go(0);
  if (on === state.playing) return;
  state.playing = on;
  $("play").textContent = on ? "Pause" : "Play";
  $("choice").setAttribute("aria-live", on ? "off" : "polite"); // a voice cannot follow a film
  if (!on) return;
  let before = performance.now();
  state.due = 0;
  requestAnimationFrame(function tick(time) {
    if (!state.playing) return;
    const rate = data.rate * Number($("speed").value);
    state.due += Math.max(0, time - before) / 1000 * (reducedMotion() ? Math.min(2, rate) : rate);
    before = time;
    const steps = Math.floor(state.due);
    state.due -= steps;
    if (steps) go(state.now + steps);
    if (state.now === end) return play(false);
    requestAnimationFrame(tick);
  });
}

function onKey(event) {
  const { target, key } = event, by = event.shiftKey ? 10 : 1;
  if (event.ctrlKey || event.altKey || event.metaKey || target.matches("select, #level")) return;
  const act = {
    " ": () => play(!state.playing),
    ArrowLeft: () => visit(state.now - by),
    ArrowRight: () => visit(state.now + by),
    Home: () => visit(0),
    End: () => visit(end),
  }[key];
  if (!act || (key === " " && target.matches("button"))) return;
  event.preventDefault();
  act();
}

function onPointer(event) {
  if (!(event.buttons & 1)) return;
  const { left, width } = $("plot").getBoundingClientRect();
  visit(Math.round((event.clientX - left - margin) / (width - 2 * margin) * end));
}

function describe() {
  $("title").textContent = data.title;
  $("about").textContent = [data.about, `score ${score(data.scores[end])} in ${data.steps[end]} steps`,
    `acts by ${data.risk ?? "a risk measure of its own"}`].filter(Boolean).join(" · ");
  $("cvar-head").textContent = `CVaR ${format(tail, 3)}`;
  $("frame").style.setProperty("--ratio", data.width / data.height);
  $("frame").classList.toggle("small", data.width < 300);
  $("plot").setAttribute("aria-label", "Predicted mean and 80 % band of the return from each moment on, and the " +
    `realised return${coverage ? `, which is inside the band at ${coverage}` : ""}`);
  const stride = data.steps[1] - data.steps[0], notes = [
    `Returns are discounted: each step of delay multiplies a reward by ${format(data.gamma)}.`,
    "The realised return is the discounted sum of the rewards that followed, and belongs to the chosen action.",
    "CVaR is the mean of the worst fraction of returns.",
  ];
  if (hasAtoms) notes.push("Curves are distribution functions, because these predictions have atoms.");
  if (names.length > 1) notes.push("Between actions that are equally good by a measure, the agent's choice stands.");
  if (stride > 1) notes.push(`The page shows one step in ${stride}.`);
  if (data.share > 1) notes.push(`To keep this file small, ${data.share} neighbouring moments share a picture.`);
  if (known.length < end) {
    notes.push("A time limit ended the episode. The realised return goes on with what the agent expects after it, " +
      "and is left out where that would be more than a tenth of it.");
  }
  $("notes").replaceChildren(element("p", notes.join(" ")));
}

describe();
$("time").max = end;
$("measure").value = state.measure;
$("level").value = state.level;
$("speed").value = [...$("speed").options].map(o => o.value).findLast(x => x <= 1 && x * data.rate <= 15) ?? "0.1";
$("time").addEventListener("input", () => visit(Number($("time").value)));
$("measure").addEventListener("change", repick);
$("level").addEventListener("input", repick);
$("play").addEventListener("click", () => play(!state.playing));
$("back").addEventListener("click", () => visit(state.now - 1));
$("forward").addEventListener("click", () => visit(state.now + 1));
$("next").addEventListener("click", () => {
  const after = state.differs.indexOf(true, state.now + 1);
  visit(after < 0 ? state.differs.indexOf(true) : after);
});
$("plot").addEventListener("pointerdown", onPointer);
$("plot").addEventListener("pointermove", onPointer);
addEventListener("keydown", onKey);
onAppearance(show);
repick();
if (!reducedMotion()) play(true);
