const page = pageData();
const byId = id => document.getElementById(id);
const k = page.components.weights.length, d = page.names.length;
const ownColour = i => `var(--c${i % 8})`, dashes = i => i < 8 ? "" : i < 16 ? "7 4" : "2 3";
let picked = null, pointed = null;

function make(name, attributes = {}, parent = null) {
  const element = document.createElement(name);
  set(element, attributes);
  if (parent) parent.append(element);
  return element;
}

function covariance(i, a, b) { return page.components.covariances[i][Math.max(a, b) * (Math.max(a, b) + 1) / 2 + Math.min(a, b)]; }

/** One coordinate of the mixture. */
function marginal(j) {
  const { weights, means } = page.components;
  return { weights, means: means.map(m => m[j]), scales: means.map((_, i) => Math.sqrt(covariance(i, j, j))) };
}

/** Highlight a component in the table and in the picture; null for none. */
function pick(i) {
  picked = i;
  document.querySelectorAll("[data-component]").forEach(element => element.classList.toggle("on", Number(element.dataset.component) === i));
  byId("fit").classList.toggle("picked", i !== null);
}

/** Call show(number) while an element is pointed at or has the focus, and then show(null); the pointer comes first. */
function attends(element, number, show) {
  const now = show.now ??= { pointed: null, focused: null };
  const on = (event, how, value) => element.addEventListener(event, () => {
    now[how] = value;
    show(now.pointed ?? now.focused);
  });
  on("pointerenter", "pointed", number);
  on("pointerleave", "pointed", null);
  on("focus", "focused", number);
  on("blur", "focused", null);
  set(element, { tabindex: 0 });
}

/** Let an element highlight its component. */
function picks(element, i) {
  set(element, { "data-component": i });
  element.style.setProperty("--own", ownColour(i));
  attends(element, i, pick);
}

// Data and fit.

function drawFit() {
  const across = Number(byId("across").value), up = Number(byId("up").value), line = d === 1 || across === up;
  const root = byId("fit").querySelector("svg"), canvas = byId("fit").querySelector("canvas");
  byId("fit").classList.toggle("line", line);
  measure(root);
  root.replaceChildren();
  const drawing = prepare(canvas);
  if (line) drawLine(root, across, drawing);
  else drawPlane(root, across, up, drawing);
  pick(picked);
  drawPointed();
  const { count } = page.rows, outside = Math.max(page.views[across].outside, page.views[up].outside);
  const some = count < page.n_rows ? `${count.toLocaleString("en")} of ${page.n_rows.toLocaleString("en")} rows, drawn at random to keep the file small` : `all ${count.toLocaleString("en")} rows`;
  byId("shown").textContent = line ? "" : some;
  const bars = "Bars are the data, the line over them is the mixture.";
  byId("legend").textContent = (line ? bars : `Ellipses are 1 and 2 standard deviations from the means. ${bars}`)
    + (outside ? ` ${format(100 * outside, 2)} % of the rows lie beyond an axis.` : "");
}

/** Bars and density of a coordinate; `point` maps a value and a height to pixels. */
function drawMarginal(parent, j, point, bar) {
  const { low, high, bars } = page.views[j], step = (high - low) / bars.length;
  bars.forEach((height, i) => { if (height > 0) svg("rect", { class: "bar", ...bar(low + i * step, low + (i + 1) * step, height) }, parent); });
  svg("path", { class: "density", d: path(abscissae(j).map(x => point(x, pdf(marginal(j), x)))) }, parent);
}

/** Values of a coordinate, closer together around narrow components. */
function abscissae(j) {
  const { low, high } = page.views[j], p = marginal(j), xs = [];
  for (let i = 0; i <= 200; i++) xs.push(low + (high - low) * i / 200);
  p.means.forEach((m, i) => { for (let z = -3; z <= 3; z += 0.25) xs.push(m + z * p.scales[i]); });
  return xs.filter(x => x >= low && x <= high).sort((a, b) => a - b);
}

/** The top of a marginal's axis: bars and density fit in, unless a component is very narrow. */
function ceiling(j) {
  const bars = Math.max(...page.views[j].bars), p = marginal(j);
  return Math.min(Math.max(bars, ...abscissae(j).map(x => pdf(p, x))), 2.5 * bars) * 1.05;
}

function drawPlane(root, across, up, { context, width, height }) {
  const side = width < 560 ? 56 : 84, left = width < 560 ? 44 : 60;
  const x = linear(page.views[across].low, page.views[across].high, left, width - side - 6);
  const y = linear(page.views[up].low, page.views[up].high, height - 40, side + 6);
  drawPoints(context, across, up, x, y);
  const above = linear(0, ceiling(across), side, 4), beside = linear(0, ceiling(up), width - side, width - 4);
  drawMarginal(svg("g", {}, root), across, (v, h) => [x(v), Math.max(above(h), 0)],
    (a, b, h) => ({ x: x(a) + 0.5, width: Math.max(x(b) - x(a) - 1, 0.5), y: above(h), height: above(0) - above(h) }));
  drawMarginal(svg("g", {}, root), up, (v, h) => [Math.min(beside(h), width), y(v)],
    (a, b, h) => ({ y: y(b) + 0.5, height: Math.max(y(a) - y(b) - 1, 0.5), x: beside(0), width: beside(h) - beside(0) }));
  axisBelow(root, x, height - 38, width < 560 ? 4 : 7);
  axisLeft(root, y, left, 6);
  svg("text", { class: "name", x: (x.from + x.to) / 2, y: height - 4, "text-anchor": "middle", text: clipped(page.names[across], x.to - x.from) }, root);
  svg("text", { class: "name", transform: `translate(12 ${(y.from + y.to) / 2}) rotate(-90)`, "text-anchor": "middle", text: clipped(page.names[up], y.from - y.to) }, root);
  svg("rect", { x: x.from, y: y.to, width: x.to - x.from, height: y.from - y.to }, svg("clipPath", { id: "frame" }, root));
  const inside = svg("g", { "clip-path": "url(#frame)" }, root);
  for (let i = k - 1; i >= 0; i--) drawEllipses(inside, i, across, up, x, y);
  const held = (scale, v) => Math.min(Math.max(scale(v), Math.min(scale.from, scale.to)), Math.max(scale.from, scale.to));
  byId("fit").point = ({ values }) => [held(x, values[across]), held(y, values[up])];
}

function shortened(name, length) { return name.length > length ? `${name.slice(0, length - 1)}…` : name; }

function clipped(name, room) { return shortened(name, Math.max(4, Math.floor(room / 7.5))); }

function drawPoints(context, across, up, x, y) {
  const { columns, labels, count } = page.rows, size = Math.min(Math.max(40 / Math.sqrt(count), 1.4), 3);
  const colours = Array.from({ length: 8 }, (_, i) => colour(`--c${i}`));
  context.globalAlpha = Math.min(Math.max(20 / Math.sqrt(count), 0.3), 0.8);
  for (let n = 0; n < count; n++) {
    const left = x(columns[across][n]), above = y(columns[up][n]);
    if (left < x.from || left > x.to || above > y.from || above < y.to) continue;
    context.fillStyle = colours[labels ? labels[n] % 8 : 7];
    context.beginPath();
    context.arc(left, above, size, 0, 2 * Math.PI);
    context.fill();
  }
}

function drawEllipses(parent, i, across, up, x, y) {
  const [mx, my] = [page.components.means[i][across], page.components.means[i][up]];
  const sx = Math.sqrt(covariance(i, across, across)), sy = Math.sqrt(covariance(i, up, up));
  const rho = sx * sy > 0 ? Math.min(Math.max(covariance(i, across, up) / sx / sy, -1), 1) : 0;
  const group = svg("g", { class: "component", role: "img", "aria-label": described(i, [across, up]) }, parent);
  const ellipse = r => `${path(Array.from({ length: 73 }, (_, n) => {
    const c = r * Math.cos(n * Math.PI / 36), s = r * Math.sin(n * Math.PI / 36);
    return [x(mx + sx * c), y(my + sy * (rho * c + Math.sqrt(1 - rho * rho) * s))];
  }))}Z`;
  svg("path", { class: "hit", d: ellipse(1) }, group);
  svg("path", { class: "outer", d: ellipse(2), "stroke-dasharray": dashes(i) }, group);
  svg("path", { class: "inner", d: ellipse(1), "stroke-dasharray": dashes(i) }, group);
  svg("text", { x: x(mx), y: y(my) + 5, "text-anchor": "middle", text: i }, group);
  picks(group, i);
}

function drawLine(root, j, { width, height }) {
  const x = linear(page.views[j].low, page.views[j].high, 52, width - 12), y = linear(0, ceiling(j), height - 40, 8);
  drawMarginal(svg("g", {}, root), j, (v, h) => [x(v), Math.max(y(h), 0)],
    (a, b, h) => ({ x: x(a) + 0.5, width: Math.max(x(b) - x(a) - 1, 0.5), y: y(h), height: y(0) - y(h) }));
  axisBelow(root, x, height - 38, width < 560 ? 4 : 8);
  axisLeft(root, y, 52, 4);
  svg("text", { class: "name", x: (x.from + x.to) / 2, y: height - 4, "text-anchor": "middle", text: clipped(page.names[j], width - 70) }, root);
  const p = marginal(j), xs = abscissae(j);
  for (let i = k - 1; i >= 0; i--) {
    const one = { weights: [p.weights[i]], means: [p.means[i]], scales: [p.scales[i]] };
    const group = svg("g", { class: "component", role: "img", "aria-label": described(i, [j]) }, root);
    const curve = path(xs.map(v => [x(v), Math.max(y(pdf(one, v)), 0)]));
    const shape = p.scales[i] > 0 ? curve : `M${x(p.means[i])} ${y.from}V${y.to}`;
    svg("path", { class: "hit", d: shape }, group);
    svg("path", { class: "inner", d: shape, "stroke-dasharray": dashes(i) }, group);
    svg("text", { x: x(p.means[i]), y: Math.max(y(pdf(one, p.means[i])) - 6, 14), "text-anchor": "middle", text: i }, group);
    picks(group, i);
  }
  byId("fit").point = ({ values }) => [Math.min(Math.max(x(values[j]), x.from), x.to), y.from];
}

function described(i, columns) {
  const { weights, means } = page.components;
  const parts = columns.map(j => `${page.names[j]} ${format(means[i][j])} ± ${format(Math.sqrt(covariance(i, j, j)), 3)}`);
  return `component ${i}, weight ${format(weights[i])}: ${parts.join(", ")}`;
}

/** Mark one of the worst rows in the picture; null for none. */
function point(n) {
  pointed = n;
  drawPointed();
}

function drawPointed() {
  byId("fit").querySelectorAll(".mark").forEach(element => element.remove());
  document.querySelectorAll("#worst tbody tr").forEach((row, n) => row.classList.toggle("on", n === pointed));
  if (pointed === null) return;
  const root = byId("fit").querySelector("svg"), [x, y] = byId("fit").point(page.worst[pointed]);
  svg("circle", { class: "mark", r: 9, cx: x, cy: y }, root);
}

// Tables.

function heads(table, names) {
  const row = make("tr", {}, byId(table).tHead);
  for (const name of names) make("th", { scope: "col", title: name, text: shortened(name, 24) }, row);
}

function fillComponents() {
  heads("components", ["component", "weight", ...page.names]);
  page.components.weights.forEach((weight, i) => {
    const row = make("tr", {}, byId("components").tBodies[0]), head = make("th", { scope: "row" }, row);
    picks(row, i);
    make("span", { class: "swatch" }, head);
    head.append(String(i));
    make("td", { text: weight.toFixed(4), "data-value": weight }, row);
    page.names.forEach((_, j) => {
      const m = page.components.means[i][j], s = Math.sqrt(covariance(i, j, j));
      const cell = make("td", { text: format(m), "data-value": m, "data-scale": s }, row);
      make("span", { class: "spread", text: ` ± ${format(s, 3)}` }, cell);
    });
  });
  const { columns, components } = page.omitted, left = [];
  if (components) left.push(`${components} lighter components are not shown.`);
  if (columns) left.push(`${columns} of ${columns + d} columns are not shown, those in which the means differ least.`);
  byId("omitted").textContent = left.join(" ");
}

function fillWorst() {
  byId("worst-section").hidden = !page.worst.length;
  heads("worst", ["row", "log density", "what stands out", ...page.names]);
  byId("counted").textContent = `Rows are counted from ${page.counted_from}${page.worst.some(({ place }) => place) ? ", over all files" : ""}.`;
  byId("worst").tHead.rows[0].cells[2].style.textAlign = "left";
  page.worst.forEach((entry, n) => {
    const row = make("tr", {}, byId("worst").tBodies[0]);
    const head = make("th", { scope: "row", text: entry.number }, row);
    if (entry.place) make("span", { class: "place", text: ` ${entry.place}` }, head);
    make("td", { text: format(entry.log_density), "data-value": entry.log_density }, row);
    make("td", { class: "words", text: entry.why }, row);
    for (const value of entry.values) make("td", { text: format(value), "data-value": value }, row);
    attends(row, n, point);
  });
}

function fillConsidered() {
  byId("choice").hidden = page.considered.length < 2;
  heads("considered", ["k", "mean log likelihood", "BIC", "difference", ""]);
  const best = page.considered.find(({ chosen }) => chosen);
  for (const { k: number, log_likelihood: height, bic, collapsed, chosen, warnings } of page.considered) {
    if (best && bic < best.bic) warnings.forEach(text => make("li", { text: `k = ${number} was not chosen in spite of a lower BIC. ${text}` }, byId("passed-over")));
    const row = make("tr", { class: chosen ? "chosen" : "" }, byId("considered").tBodies[0]);
    make("th", { scope: "row", text: number }, row);
    make("td", { text: height.toFixed(4), "data-value": height }, row);
    make("td", { text: bic.toFixed(1), "data-value": bic }, row);
    make("td", { text: best ? `${bic >= best.bic ? "+" : "−"}${Math.abs(bic - best.bic).toFixed(1)}` : "" }, row);
    make("td", { text: [chosen ? "chosen" : "", collapsed ? `${collapsed} collapsed` : ""].filter(Boolean).join(", ") }, row);
  }
}

// Charts.

function drawBic() {
  const root = byId("bic"), entries = page.considered;
  if (entries.length < 2) return;
  const { width, height } = measure(root), values = entries.map(({ bic }) => bic), numbers = entries.map(entry => entry.k);
  root.replaceChildren();
  const low = Math.min(...values), high = Math.max(...values), pad = 0.2 * (high - low) || 1;
  const x = linear(Math.min(...numbers), Math.max(...numbers), 72, width - 24), y = linear(low - pad, high + pad, height - 40, 6);
  axisBelow(root, x, height - 38, Math.min(numbers.length - 1, 9));
  axisLeft(root, y, 62, 4, v => format(v, 6));
  svg("text", { class: "name", x: (x.from + x.to) / 2, y: height - 4, "text-anchor": "middle", text: "number of components" }, root);
  svg("path", { class: "loss last", d: path(entries.map(entry => [x(entry.k), y(entry.bic)])) }, root);
  for (const { k: number, bic, collapsed, chosen } of entries) {
    svg("circle", { class: `dot${collapsed ? " collapsed" : ""}${chosen ? " chosen" : ""}`, r: chosen ? 6 : 4, cx: x(number), cy: y(bic) }, root);
    if (chosen) svg("text", { class: "note", x: x(number), y: y(bic) + 22, "text-anchor": "middle", text: `${number}, chosen` }, root);
  }
}

function drawHistory() {
  const shown = page.history.filter(({ lines }) => lines.some(({ losses }) => losses.filter(Number.isFinite).length > 1));
  byId("history-section").hidden = !shown.length;
  byId("history").replaceChildren();
  const charts = shown.map(({ name, axis, variants, lines }) => {
    const figure = make("figure", {}, byId("history"));
    make("figcaption", { text: `${name[0].toUpperCase()}${name.slice(1)}${variants > 1 ? `, ${variants} variants` : ""}` }, figure);
    const over = axis === "step" ? "the steps" : "the number of components";
    return [svg("svg", { role: "img", "aria-label": `Loss over ${over}: ${name}` }, figure), axis, variants, lines];
  });
  for (const chart of charts) drawStage(...chart); // measured once all figures share the width
}

function drawStage(root, axis, variants, lines) {
  const { width, height } = measure(root), at = lines.flatMap(line => line.at);
  const values = lines.flatMap(({ losses }) => losses).filter(Number.isFinite);
  const low = Math.min(...values), high = Math.max(...values);
  const pad = Math.max(0.08 * (high - low), 2e-5 * Math.max(Math.abs(low), Math.abs(high))) || 0.5;
  const ends = [Math.min(...at), Math.max(...at)], [first, last] = axis === "step" ? ends : ends.reverse();
  const x = linear(first, last, 88, width - 14), y = linear(low - pad, high + pad, height - 40, 6);
  const forward = linear(Math.min(first, last), Math.max(first, last), x(Math.min(first, last)), x(Math.max(first, last)));
  axisBelow(root, forward, height - 38, Math.min(Math.abs(last - first) || 1, 6));
  axisLeft(root, y, 78, 3, telling(y.low, y.high));
  svg("text", { class: "name", x: (x.from + x.to) / 2, y: height - 4, "text-anchor": "middle", text: axis }, root);
  const own = variants > 1 ? null : lines.filter(({ k: number }) => number === null || number === page.n_components).at(-1);
  lines.forEach(line => {
    const points = line.at.map((v, i) => [x(v), line.losses[i] === null ? NaN : y(line.losses[i])]);
    svg("path", { class: `loss${line === own ? " last" : ""}`, d: path(points) }, root);
    if (points.length === 1) svg("circle", { class: "dot", r: 2.5, cx: points[0][0], cy: points[0][1] }, root);
    const at = axis === "step" ? line.at.length - 1 : line.at.indexOf(page.n_components);
    if (line !== own || at < 0) return;
    const [left, above] = points[at], room = above < y.to + 24 ? 18 : -8;
    svg("circle", { class: "dot", r: 3.5, cx: left, cy: above }, root);
    svg("text", { class: "note", x: Math.min(left, x.to), y: above + room, "text-anchor": left > (x.from + x.to) / 2 ? "end" : "start", text: format(line.losses[at], 6) }, root);
  });
}

// The page.

function fill() {
  byId("title").textContent = page.title;
  for (const [name, value] of page.facts) {
    const fact = make("div", {}, byId("facts"));
    make("dt", { text: name }, fact);
    make("dd", { text: value }, fact);
  }
  const messages = [...page.warnings, ...page.notes];
  byId("warnings").classList.toggle("fine", !page.warnings.length);
  byId("warnings-title").textContent = page.warnings.length ? "Warnings, and what to do" : page.notes.length ? "Notes" : "No warnings";
  for (const message of messages) make("li", { text: message }, byId("warnings").querySelector("ul"));
  for (const [id, start] of [["across", 0], ["up", Math.min(1, d - 1)]]) {
    page.names.forEach((name, j) => make("option", { value: j, text: name }, byId(id)));
    byId(id).value = start;
    byId(id).addEventListener("change", drawFit);
  }
  document.querySelector("#fit-title + .controls").hidden = d === 1;
  fillComponents();
  fillWorst();
  fillConsidered();
}

function drawAll() {
  drawFit();
  drawBic();
  drawHistory();
}

fill();
drawAll();
onAppearance(drawAll);
