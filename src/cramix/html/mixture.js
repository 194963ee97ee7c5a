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
