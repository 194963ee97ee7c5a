// Gaussian mixtures {weights, means, scales}; a scale of 0 is an atom. The formulas are those of docs/math.md.

/** The error function to about 1e-15: a series near 0, a continued fraction of erfc in the tails. */
function erf(x) {
  const a = Math.abs(x);
  if (a > 6) return Math.sign(x);
  if (a < 2.5) {
    let term = a, sum = a;
    for (let n = 1; term > 1e-17 * sum; n++) { term *= 2 * a * a / (2 * n + 1); sum += term; }
    return Math.sign(x) * 2 / Math.sqrt(Math.PI) * Math.exp(-a * a) * sum;
  }
  let fraction = 0;
  for (let n = 60; n > 0; n--) fraction = n / 2 / (a + fraction);
  return Math.sign(x) * (1 - Math.exp(-a * a) / Math.sqrt(Math.PI) / (a + fraction));
}

function normalPdf(z) { return Math.exp(-z * z / 2) / Math.sqrt(2 * Math.PI); }

/** P(X <= z) of a standard normal; in the lower tail by erfc, so that it keeps its digits. */
function normalCdf(z) {
  if (z > -3.5) return (1 + erf(z / Math.SQRT2)) / 2;
  const a = -z / Math.SQRT2;
  let fraction = 0;
  for (let n = 60; n > 0; n--) fraction = n / 2 / (a + fraction);
  return Math.exp(-a * a) / Math.sqrt(Math.PI) / (a + fraction) / 2;
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

/** The smallest x with cdf(x) >= u, by bisection. */
function quantile(p, u) {
  let low = Infinity, high = -Infinity;
  p.means.forEach((m, i) => {
    if (p.weights[i] <= 0) return;
    low = Math.min(low, m - 40 * p.scales[i]);
    high = Math.max(high, m + 40 * p.scales[i]);
  });
  if (cdf(p, low) >= u) return low;
  for (let i = 0; i < 200; i++) {
    const middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    if (cdf(p, middle) < u) low = middle; else high = middle;
  }
  return high;
}

/** The mean of the lowest fraction `alpha`. */
function cvar(p, alpha) {
  const q = quantile(p, alpha);
  const below = sumOver(p, (m, s) => s > 0 ? m * normalCdf((q - m) / s) - s * normalPdf((q - m) / s) : m < q ? m : 0);
  const share = sumOver(p, (m, s) => s > 0 ? normalCdf((q - m) / s) : Number(m < q));
  return (below + (alpha - share) * q) / alpha;
}

/** The point e with tau E(X - e)+ = (1 - tau) E(e - X)+, by bisection. */
function expectile(p, tau) {
  const excess = e => sumOver(p, (m, s) => {
    const z = s > 0 ? (m - e) / s : 0;
    const above = s > 0 ? (m - e) * normalCdf(z) + s * normalPdf(z) : Math.max(m - e, 0);
    return tau * above - (1 - tau) * (above - (m - e));
  });
  let low = Math.min(...p.means.map((m, i) => m - 40 * p.scales[i]));
  let high = Math.max(...p.means.map((m, i) => m + 40 * p.scales[i]));
  for (let i = 0; i < 200; i++) {
    const middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    if (excess(middle) > 0) low = middle; else high = middle;
  }
  return low;
}
