'use strict';

// Axes: from values to pixels and back, and where the marks are.
const Scale = (() => {
  // low < high; for a logarithmic axis low > 0. `begin` and `end` in pixels.
  function make(low, high, begin, end, logarithmic) {
    const to = logarithmic ? Math.log10 : (value) => value;
    const first = to(low), factor = (end - begin) / (to(high) - first);
    const back = logarithmic ? (value) => 10 ** value : (value) => value;
    return {
      low,
      high,
      logarithmic,
      pixel: (value) => begin + (to(value) - first) * factor,
      value: (pixel) => back(first + (pixel - begin) / factor),
    };
  }

  // A step of 1, 2 or 5 times a power of ten, for about `wanted` marks.
  function niceStep(span, wanted) {
    const rough = span / Math.max(1, wanted);
    const power = 10 ** Math.floor(Math.log10(rough));
    const factor = [1, 2, 5, 10].find((candidate) => candidate * power >= rough * 0.999);
    return factor * power;
  }
  // A power of two, for sizes in bytes.
  const binaryStep = (span, wanted) => 2 ** Math.round(Math.log2(span / Math.max(1, wanted)));
  function linearMarks(low, high, wanted, binary) {
    const step = binary ? binaryStep(high - low, wanted) : niceStep(high - low, wanted);
    const marks = [];
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    for (let i = 0; i <= Math.min(last - first, 1000); ++i) marks.push((first + i) * step);
    return marks;
  }
  // Powers of ten; with few of them also 2 and 5 times; within one decade as on a linear axis.
  function logMarks(low, high, wanted) {
    const decades = Math.log10(high / low);
    if (decades < 0.7) return linearMarks(low, high, wanted).filter((mark) => mark > 0);
    const factors = decades < wanted / 2 ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil(decades / wanted));
    const marks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power) {
      if (power % every !== 0) continue;
      for (const factor of factors) {
        const mark = factor * 10 ** power;
        if (mark >= low * 0.999 && mark <= high * 1.001) marks.push(mark);
      }
    }
    return marks;
  }
  // Powers of two; within two octaves as on a linear axis.
  function binaryLogMarks(low, high, wanted) {
    const first = Math.log2(low), last = Math.log2(high);
    if (last - first < 2) return linearMarks(low, high, wanted, true).filter((mark) => mark > 0);
    const every = Math.max(1, Math.ceil((last - first) / wanted));
    const marks = [];
    for (let power = Math.ceil(first / every) * every; power <= last; power += every)
      marks.push(2 ** power);
    return marks;
  }
  // binary: powers of two in place of round decimal numbers.
  function marks(scale, wanted, binary = false) {
    const {low, high, logarithmic} = scale;
    if (!logarithmic) return linearMarks(low, high, wanted, binary);
    return binary ? binaryLogMarks(low, high, wanted) : logMarks(low, high, wanted);
  }

  // The texts of marks, with as many digits as it takes to write all of them exactly.
  const kMostDigits = 9;
  function labels(values, format) {
    const exact = values.map((value) => format(value, kMostDigits));
    for (let digits = 3; digits < kMostDigits; ++digits) {
      const texts = values.map((value) => format(value, digits));
      if (texts.every((text, i) => text === exact[i])) return texts;
    }
    return exact;
  }

  // A range that is never empty, with a margin; null without values. Values that differ only by
  // rounding count as one.
  function padded(low, high, logarithmic, margin = 0.04) {
    if (!(low <= high)) return null;
    const same = high - low <= 1e-6 * Math.max(Math.abs(low), Math.abs(high));
    if (logarithmic) {
      const grow = same ? 1.5 : (high / low) ** margin;
      return [low / grow, high * grow];
    }
    const grow = same ? Math.abs(high) * 0.1 || 1 : (high - low) * margin;
    return [low - grow, high + grow];
  }
  return {labels, make, marks, padded};
})();

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
  const alone = (y, i) =>
      y[i] !== null && (i === 0 || y[i - 1] === null) && (i + 1 === y.length || y[i + 1] === null);
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

// Draws what changed, once per frame of the screen.
const Frames = (() => {
  const waiting = new Set();
  const counts = {framesDrawn: 0, lastFrameMs: 0, longestFrameMs: 0};
  let requested = false;

  function request(draw) {
    waiting.add(draw);
    if (requested) return;
    requested = true;
    requestAnimationFrame(flush);
  }
  function flush() {
    requested = false;
    const begin = performance.now();
    const now = [...waiting];
    waiting.clear();
    for (const draw of now) {
      try {
        draw();
      } catch (error) {
        console.error(error);
      }  // the other panels are still drawn
    }
    counts.framesDrawn += 1;
    counts.lastFrameMs = performance.now() - begin;
    counts.longestFrameMs = Math.max(counts.longestFrameMs, counts.lastFrameMs);
  }
  // A canvas with the pixels of the screen. Returns its context, scaled to CSS pixels, and its
  // size; null while it is not laid out.
  function prepare(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    if (!width || !height) return null;
    const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== pixels[0]) canvas.width = pixels[0];
    if (canvas.height !== pixels[1]) canvas.height = pixels[1];
    const context = canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }
  return {counts, flush, prepare, request};
})();
