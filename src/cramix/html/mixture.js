// Gaussian mixtures {weights, means, scales}; a scale of 0 is an atom. The formulas are those of docs/math.md.

/** erfc(a) exp(a^2) of a >= 2.4 to about 1e-15, by its continued fraction: the larger a, the fewer terms. */
function scaledErfc(a) {
  let fraction = 0;
  for (let n = 10 + Math.ceil((19.5 / a) ** 2); n > 0; n--) fraction = n / 2 / (a + fraction);
  return 1 / Math.sqrt(Math.PI) / (a + fraction);
}

/** The error function to about 1e-15: a series near 0, erfc in the tails. */
function erf(x) {
  const a = Math.abs(x);
  if (a > 6) return Math.sign(x);
  if (a < 2.5) {
    let term = a, sum = a;
    for (let n = 1; term > 1e-17 * sum; n++) { term *= 2 * a * a / (2 * n + 1); sum += term; }
    return Math.sign(x) * 2 / Math.sqrt(Math.PI) * Math.exp(-a * a) * sum;
  }
  return Math.sign(x) * (1 - Math.exp(-a * a) * scaledErfc(a));
}

function normalPdf(z) { return Math.exp(-z * z / 2) / Math.sqrt(2 * Math.PI); }

/** P(X <= z) of a standard normal; in the lower tail by erfc, so that it keeps its digits. */
function normalCdf(z) {
  if (z > -3.5) return (1 + erf(z / Math.SQRT2)) / 2;
  return Math.exp(-z * z / 2) * scaledErfc(-z / Math.SQRT2) / 2;
}

function sumOver(p, term) {
  let sum = 0;
  for (let i = 0; i < p.weights.length; i++) sum += p.weights[i] * term(p.means[i], p.scales[i]);
  return sum;
}

function pdf(p, x) { return sumOver(p, (m, s) => s > 0 ? normalPdf((x - m) / s) / s : 0); }

function cdf(p, x) { return sumOver(p, (m, s) => s > 0 ? normalCdf((x - m) / s) : Number(x >= m)); }

function mean(p) { return sumOver(p, m => m); }

function deviation(p) {
  const centre = mean(p);
  return Math.sqrt(sumOver(p, (m, s) => s * s + (m - centre) ** 2));
}

/** Where a condition that is true on the left of (low, high) becomes false, by Newton's method from x, with bisection
 * where its steps leave the bracket or do not shrink, as at a jump. `at(x)` is [root is above x, Newton's next x]. */
function root(low, high, x, at) {
  const tolerance = 1e-13 * (high - low);
  let step = Infinity;
  for (let i = 0; i < 400; i++) {
    if (!(x > low && x < high)) x = low + (high - low) / 2;
    if (x <= low || x >= high) break;
    const [above, next] = at(x);
    if (above) low = x; else high = x;
    const newton = Math.abs(next - x) <= step / 2;
    if (newton && Math.abs(next - x) <= tolerance) return next;
    step = newton ? Math.abs(next - x) : high - low;
    x = newton ? next : NaN;
  }
  return high;
}

/** Limits that all of a mixture lies within, in double precision. */
function limits(p) {
  let low = Infinity, high = -Infinity;
  p.means.forEach((m, i) => {
    if (p.weights[i] <= 0) return;
    low = Math.min(low, m - 40 * p.scales[i]);
    high = Math.max(high, m + 40 * p.scales[i]);
  });
  return [low, high];
}

/** The smallest x with cdf(x) >= u. */
function quantile(p, u) {
  const [low, high] = limits(p);
  u *= 1 - (2 + p.weights.length) * Number.EPSILON; // sums are rounded: j / n is the level of the j-th of n atoms
  if (cdf(p, low) >= u) return low;
  const guess = mean(p) + deviation(p) * Math.log(u / (1 - u)) / 1.7; // of a logistic distribution
  return root(low, high, guess, x => {
    const below = cdf(p, x);
    return [below < u, x + (u - below) / pdf(p, x)];
  });
}

/** The mean of the lowest fraction `alpha`. */
function cvar(p, alpha) {
  const q = quantile(p, alpha);
  const below = sumOver(p, (m, s) => s > 0 ? m * normalCdf((q - m) / s) - s * normalPdf((q - m) / s) : m < q ? m : 0);
  const share = sumOver(p, (m, s) => s > 0 ? normalCdf((q - m) / s) : Number(m < q));
  return (below + (alpha - share) * q) / alpha;
}

/** The point e with tau E(X - e)+ = (1 - tau) E(e - X)+. */
function expectile(p, tau) {
  const centre = mean(p), [low, high] = limits(p);
  return root(low, high, centre, e => {
    const above = sumOver(p, (m, s) => {
      const z = (m - e) / s;
      return s > 0 ? (m - e) * normalCdf(z) + s * normalPdf(z) : Math.max(m - e, 0);
    });
    const excess = tau * above - (1 - tau) * (above - (centre - e));
    const share = cdf(p, e);
    return [excess > 0, e + excess / (tau * (1 - share) + (1 - tau) * share)];
  });
}

/** E|Z| of Z ~ N(m, s^2) with its derivatives by m and s; equation (5) and (6). */
function meanAbsolute(m, s) {
  if (s === 0) return { value: Math.abs(m), byMean: Math.sign(m), byScale: 0 };
  const z = m / (s * Math.SQRT2), byMean = erf(z), byScale = Math.sqrt(2 / Math.PI) * Math.exp(-z * z);
  return { value: m * byMean + s * byScale, byMean, byScale };
}

/** The integral of (F - G)^2 with its derivatives by the weights, means and scales of p; equation (4) and (8). */
function cramer(p, q) {
  const none = () => p.weights.map(() => 0);
  const within = none(), across = none(), means = none(), scales = none();
  const add = (r, sign, sums) => p.means.forEach((m, i) => r.means.forEach((centre, j) => {
    const t = Math.hypot(p.scales[i], r.scales[j]), term = meanAbsolute(m - centre, t);
    sums[i] += r.weights[j] * term.value;
    means[i] += sign * p.weights[i] * r.weights[j] * term.byMean;
    scales[i] += t > 0 ? sign * p.weights[i] * r.weights[j] * term.byScale * p.scales[i] / t : 0;
  }));
  add(p, -1, within);
  add(q, 1, across);
  const bars = across.map((x, i) => x - within[i]);
  const level = bars.reduce((sum, x, i) => sum + p.weights[i] * x, 0);
  return { value: cramerValue(p, q), weights: bars.map(x => x - level), means, scales };
}

/** The integral of (F - G)^2: in closed form, or as a sum of squares where the terms of that would cancel. */
function cramerValue(p, q) {
  const energy = (a, b) => sumOver(a, (m, s) => sumOver(b, (n, t) => meanAbsolute(m - n, Math.hypot(s, t)).value));
  const cross = energy(p, q), value = cross - (energy(p, p) + energy(q, q)) / 2;
  if (value > 1e-3 * cross) return value;
  return integrate(x => [(cdf(p, x) - cdf(q, x)) ** 2], supportOf(p, q), 0)[0];
}

/**
 * The cross entropy -E log p(Y), Y ~ q, with its derivatives by the weights, means and scales of p, those of the
 * weights after normalisation; null if p has an atom, and hence no density.
 */
function crossEntropy(p, q) {
  const k = p.weights.length, atoms = q.scales.map(s => s === 0);
  if (p.scales.some((s, i) => s === 0 && p.weights[i] > 0)) return null;
  const at = x => {
    const logs = p.means.map((m, i) => -(((x - m) / p.scales[i]) ** 2) / 2 - Math.log(p.scales[i] * Math.sqrt(2 * Math.PI)));
    const most = Math.max(...logs.filter((_, i) => p.weights[i] > 0));
    const logDensity = most + Math.log(sumOver({ ...p, means: logs }, log => Math.exp(log - most)));
    const found = [-logDensity];
    for (let i = 0; i < k; i++) {
      const ratio = Math.exp(logs[i] - logDensity), z = (x - p.means[i]) / p.scales[i];
      const share = p.weights[i] > 0 ? p.weights[i] * ratio / p.scales[i] : 0;
      found.push(1 - ratio, -share * z, share * (1 - z * z));
    }
    return found;
  };
  const smooth = { weights: q.weights.map((w, i) => atoms[i] ? 0 : w), means: q.means, scales: q.scales };
  const total = Array(1 + 3 * k).fill(0);
  q.weights.forEach((w, i) => { if (atoms[i] && w > 0) at(q.means[i]).forEach((x, j) => { total[j] += w * x; }); });
  if (smooth.weights.some(w => w > 0)) {
    const ends = supportOf(smooth), within = supportOf(smooth, p).filter(x => x >= ends[0] && x <= ends.at(-1));
    integrate(x => at(x).map(y => y * pdf(smooth, x)), within, 30).forEach((x, j) => { total[j] += x; });
  }
  const every = first => p.weights.map((_, i) => total[first + 3 * i]);
  return { value: total[0], weights: every(1), means: every(2), scales: every(3) };
}

/** The entropy -E log q(Y), Y ~ q; null if q has an atom. */
function entropy(q) { return crossEntropy(q, q)?.value ?? null; }

/** Points in order that cover mixtures so closely that their densities are smooth between neighbours. */
function supportOf(...mixtures) {
  const points = new Set();
  for (const p of mixtures) {
    p.means.forEach((m, i) => {
      if (p.weights[i] <= 0) return;
      for (let z = -10; z <= 10; z += 2) points.add(m + z * p.scales[i]);
    });
  }
  return [...points].sort((a, b) => a - b);
}

const GAUSS = (() => { // nodes and weights of the Gauss-Legendre rule with 16 nodes on [-1, 1], by Newton's method
  const n = 16;
  return Array.from({ length: n }, (_, i) => {
    let x = Math.cos(Math.PI * (i + 0.75) / (n + 0.5)), slope = 1;
    for (let step = 0; step < 8; step++) {
      let before = 1, now = x;
      for (let j = 2; j <= n; j++) [before, now] = [now, ((2 * j - 1) * x * now - (j - 1) * before) / j];
      slope = n * (x * now - before) / (x * x - 1);
      x -= now / slope;
    }
    return { node: x, weight: 2 / ((1 - x * x) * slope * slope) };
  });
})();

/** Integrate a function with several values over intervals, which are halved at most `depth` times where need be. */
function integrate(f, points, depth) {
  const panel = (a, b) => {
    const half = (b - a) / 2, middle = a + half;
    let sums = null;
    for (const { node, weight } of GAUSS) {
      const values = f(middle + half * node);
      sums ??= values.map(() => 0);
      values.forEach((y, i) => { sums[i] += weight * half * y; });
    }
    return sums;
  };
  const added = (a, b) => a.map((x, i) => x + b[i]);
  const panels = points.slice(1).map((b, i) => [points[i], b, panel(points[i], b)]);
  if (!panels.length) return f(points[0]).map(() => 0);
  const size = panels.map(([, , sums]) => sums.map(Math.abs)).reduce(added);
  const refined = (a, b, whole, depth) => {
    if (depth === 0) return whole;
    const c = a + (b - a) / 2, left = panel(a, c), right = panel(c, b), both = added(left, right);
    if (both.every((x, i) => !(Math.abs(x - whole[i]) > 1e-13 * size[i]))) return both;
    return added(refined(a, c, left, depth - 1), refined(c, b, right, depth - 1));
  };
  return panels.map(([a, b, sums]) => refined(a, b, sums, depth)).reduce(added);
}
