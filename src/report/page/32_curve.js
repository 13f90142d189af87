'use strict';

// The arithmetic of curves.
const Curve = (() => {
  // Exponential smoothing without the bias towards zero of its start: each result is the weighted
  // mean of the values so far, with weights 1, w, w², … back in time. Missing values stay missing.
  function smooth(values, weight) {
    if (!(weight > 0)) return values;
    const result = new Array(values.length);
    let sum = 0, weights = 0;
    for (let i = 0; i < values.length; ++i) {
      if (values[i] === null) {
        result[i] = null;
        continue;
      }
      sum = weight * sum + (1 - weight) * values[i];
      weights = weight * weights + (1 - weight);
      result[i] = sum / weights;
    }
    return result;
  }
  // Index of the first element that is not below `value`; x ascends.
  function lowerBound(x, value) {
    let low = 0, high = x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle] < value)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
  // Index of the point nearest to `value`; -1 if there is none.
  function nearest(x, value) {
    const at = lowerBound(x, value);
    if (at === 0) return x.length ? 0 : -1;
    if (at === x.length || value - x[at - 1] <= x[at] - value) return at - 1;
    return at;
  }
  // Whether a point has no neighbour that a line could lead to.
  const alone = (y, i) => y[i] !== null && (i === 0 || y[i - 1] === null) &&
      (i + 1 === y.length || y[i + 1] === null);
  // The points of [from, to] and one neighbour on each side, as [begin, end).
  function within(x, from, to) {
    return [Math.max(0, lowerBound(x, from) - 1), Math.min(x.length, lowerBound(x, to) + 1)];
  }
  // The neighbours of a range without points; none if the curve ends before it or begins after it.
  function around(x, from, to) {
    const [begin, end] = within(x, from, to);
    return end - begin === 2 && x[begin] < from && x[begin + 1] > to ? [begin, begin + 1] : [];
  }
  // Adds points behind the last one. A point at or before it replaces what follows: the run was
  // rewound.
  function append(curve, x, y) {
    for (let i = 0; i < x.length; ++i) {
      const keep = lowerBound(curve.x, x[i]);
      for (const list of [curve.x, curve.y, curve.low, curve.high])
        if (list && list.length > keep) list.length = keep;
      curve.x.push(x[i]);
      curve.y.push(y[i]);
      if (curve.low) {
        curve.low.push(y[i]);
        curve.high.push(y[i]);
      }
    }
  }
  return {alone, append, around, lowerBound, nearest, smooth, within};
})();
