'use strict';

// Draws curves on a canvas. A curve is {x, y, smooth, low, high, colour, dash, marks, visible}.
const ChartDrawing = (() => {
  const kMargin = {left: 30, right: 10, top: 8, bottom: 20};
  const kDot = 2.4;  // radius of a marked point
  const kFont = '11px system-ui, sans-serif';

  // The area of the curves. The labels of the y axis need their width at its left.
  function areaOf(width, height, widestLabel) {
    return {
      left: Math.min(width / 2, Math.max(kMargin.left, Math.ceil(widestLabel) + 10)),
      right: width - kMargin.right,
      ...rowsOf(height),
    };
  }
  const rowsOf = (height) => ({top: kMargin.top, bottom: height - kMargin.bottom});

  // The marks of the y axis with their texts, and the widest of these in pixels.
  function axisY(context, scaleY, height, definition) {
    const rows = rowsOf(height);
    const marks =
        Scale.marks(scaleY, Math.max(2, (rows.bottom - rows.top) / 38), definition.binary);
    const labels = Scale.labels(marks, definition.mark);
    context.font = kFont;
    const widest =
        labels.reduce((most, label) => Math.max(most, context.measureText(label).width), 0);
    return {marks, labels, widest};
  }

  // [low, high] of the curves' x; `above`: only greater values (for a logarithmic axis).
  function rangeOfX(curves, above) {
    let low = Infinity, high = -Infinity;
    for (const {x} of curves) {
      if (!x.length) continue;
      const first = above === undefined ? 0 : Curve.lowerBound(x, above);
      if (first === x.length) continue;
      low = Math.min(low, x[first]);
      high = Math.max(high, x[x.length - 1]);
    }
    return low <= high ? [low, high] : null;
  }
  // The lines fit. The band of least and greatest values fits too, unless that would flatten the
  // lines: then it is clipped.
  function rangeOfY(curves, from, to, logarithmic) {
    const lines = new Extent(logarithmic), bands = new Extent(logarithmic);
    for (const curve of curves) {
      for (let i = Curve.lowerBound(curve.x, from); i < curve.x.length && curve.x[i] <= to; ++i) {
        lines.add(curve.smooth[i]);
        if (curve.low) {
          bands.add(curve.low[i]);
          bands.add(curve.high[i]);
        }
      }
    }
    // A line may cross a narrow range without a point in it, until finer points arrive.
    if (lines.empty())
      for (const curve of curves)
        for (const i of Curve.around(curve.x, from, to)) lines.add(curve.smooth[i]);
    if (lines.empty()) return null;
    const both = [Math.min(lines.low, bands.low), Math.max(lines.high, bands.high)];
    return lines.span(...both) <= 2.5 * lines.span(lines.low, lines.high) ? both :
                                                                            [lines.low, lines.high];
  }
  class Extent {
    constructor(logarithmic) {
      this.logarithmic = logarithmic;
      this.low = Infinity;
      this.high = -Infinity;
    }
    add(value) {
      if (!Format.known(value) || (this.logarithmic && value <= 0)) return;
      if (value < this.low) this.low = value;
      if (value > this.high) this.high = value;
    }
    empty() {
      return !(this.low <= this.high);
    }
    span(low, high) {
      return this.logarithmic ? Math.log(high / low) : high - low;
    }
  }

  // There is no half step.
  function marksX(scaleX, width, whole) {
    const marks = Scale.marks(scaleX, Math.max(2, width / 84));
    const kept = whole ? marks.filter((mark) => Math.abs(mark - Math.round(mark)) < 1e-6) : marks;
    return kept.length ? kept : marks;
  }
  // formatX: the texts of the x axis; nameX: what it shows, if the texts do not say it.
  function drawAxes(context, {area, x: scaleX, y: scaleY, axisY}, shared) {
    const nameX = shared.nameX();
    context.font = kFont;
    context.fillStyle = Theme.colour('soft');
    context.strokeStyle = Theme.colour('grid');
    context.lineWidth = 1;
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    axisY.marks.forEach((mark, i) => {
      const y = Math.round(scaleY.pixel(mark)) + 0.5;
      line(context, area.left, y, area.right, y);
      context.fillText(axisY.labels[i], area.left - 6, y);
    });
    context.textBaseline = 'top';
    if (nameX) context.fillText(nameX, area.left - 6, area.bottom + 8);
    context.textAlign = 'center';
    let free = -Infinity;  // labels must not overlap
    const marks = marksX(scaleX, area.right - area.left, nameX === 'step');
    const labels = Scale.labels(marks, (value, digits) => shared.formatX(value, digits));
    marks.forEach((mark, i) => {
      const x = Math.round(scaleX.pixel(mark)) + 0.5;
      line(context, x, area.top, x, area.bottom);
      const half = context.measureText(labels[i]).width / 2;
      // At the ends a label is moved inwards.
      const center = Math.min(Math.max(x, area.left - 2 + half), area.right + kMargin.right - half);
      if (center - half < free) return;
      context.fillText(labels[i], center, area.bottom + 8);
      free = center + half + 8;
    });
  }
  function line(context, x0, y0, x1, y1) {
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
  }

  function strokeCurve(context, curve, values, begin, end, scaleX, scaleY) {
    context.beginPath();
    let pen = false;
    for (let i = begin; i < end; ++i) {
      const value = values[i];
      if (value === null || (scaleY.logarithmic && value <= 0) ||
          (scaleX.logarithmic && curve.x[i] <= 0)) {
        pen = false;
        continue;
      }
      const x = scaleX.pixel(curve.x[i]), y = scaleY.pixel(value);
      if (pen)
        context.lineTo(x, y);
      else
        context.moveTo(x, y);
      pen = true;
    }
    context.stroke();
  }
  function fillBand(context, curve, begin, end, scaleX, scaleY) {
    if (!curve.low || !curve.high) return;
    const floor = scaleY.low;
    const at = (value) => scaleY.pixel(scaleY.logarithmic ? Math.max(value, floor) : value);
    context.globalAlpha = 0.16;
    context.fillStyle = curve.colour;
    context.beginPath();
    let points = [];
    const close = () => {
      for (let i = points.length - 1; i >= 0; --i)
        context.lineTo(scaleX.pixel(curve.x[points[i]]), at(curve.low[points[i]]));
      points = [];
    };
    for (let i = begin; i < end; ++i) {
      const known = Format.known(curve.low[i]) && Format.known(curve.high[i]) &&
          !(scaleX.logarithmic && curve.x[i] <= 0);
      if (!known) {
        close();
        continue;
      }
      const x = scaleX.pixel(curve.x[i]), y = at(curve.high[i]);
      if (points.length)
        context.lineTo(x, y);
      else
        context.moveTo(x, y);
      points.push(i);
    }
    close();
    context.fill();
    context.globalAlpha = 1;
  }
  // Few points (validations, evaluations) and single ones are marked; values that are no numbers
  // get a tick at the bottom.
  function drawMarks(context, curve, begin, end, scaleX, scaleY, area) {
    context.fillStyle = curve.colour;
    for (let i = begin; i < end; ++i) {
      if (scaleX.logarithmic && curve.x[i] <= 0) continue;
      const x = scaleX.pixel(curve.x[i]);
      if (curve.y[i] === null) {
        context.fillStyle = Theme.colour('bad');
        context.fillRect(x - 1, area.bottom - 7, 2, 7);
        context.fillStyle = curve.colour;
      } else if ((curve.marks && end - begin < 400) || Curve.alone(curve.smooth, i)) {
        context.beginPath();
        context.arc(x, scaleY.pixel(curve.smooth[i]), kDot, 0, 2 * Math.PI);
        context.fill();
      }
    }
  }

  function drawCurves(context, area, curves, scaleX, scaleY) {
    context.save();
    context.beginPath();
    // A point at the edge is a whole one.
    context.rect(
        area.left - kDot, area.top - kDot, area.right - area.left + 2 * kDot,
        area.bottom - area.top + 2 * kDot);
    context.clip();
    context.lineJoin = 'round';
    // The main run is the first one: drawn last, on top.
    for (const curve of [...curves].reverse()) {
      const [begin, end] = Curve.within(curve.x, scaleX.low, scaleX.high);
      fillBand(context, curve, begin, end, scaleX, scaleY);
      context.strokeStyle = curve.colour;
      if (curve.smooth !== curve.y) {
        context.globalAlpha = 0.28;
        context.lineWidth = 1;
        strokeCurve(context, curve, curve.y, begin, end, scaleX, scaleY);
        context.globalAlpha = 1;
      }
      context.lineWidth = 1.6;
      context.setLineDash(curve.dash || []);
      strokeCurve(context, curve, curve.smooth, begin, end, scaleX, scaleY);
      context.setLineDash([]);
      drawMarks(context, curve, begin, end, scaleX, scaleY, area);
    }
    context.restore();
  }

  // Events of the main run as small triangles on the lower edge.
  function drawEvents(context, area, events, scaleX) {
    for (const event of events) {
      const x = scaleX.pixel(event.x);
      if (!(x >= area.left && x <= area.right)) continue;
      context.fillStyle = Theme.colour(event.bad ? 'bad' : 'gold');
      context.beginPath();
      context.moveTo(x, area.bottom - 6);
      context.lineTo(x - 3.5, area.bottom);
      context.lineTo(x + 3.5, area.bottom);
      context.fill();
    }
  }
  return {areaOf, axisY, drawAxes, drawCurves, drawEvents, line, rangeOfX, rangeOfY, rowsOf};
})();
