'use strict';

const kMostPoints = 5000;  // of a curve that grows; the server sends at most 4000

// The points of the selected runs: the whole run, and the zoomed range in finer steps.
class SeriesStore {
  constructor(source, changed) {
    this.source = source;
    this.changed = changed;  // called when points arrived
    this.runs =
        new Map();  // id -> {axis, full: {key: curve}, zoomed: {range, keys} or null, reloading}
    this.requests = new Map();
  }
  forgetAllBut(ids) {
    for (const id of [...this.runs.keys()])
      if (!ids.includes(id)) this.drop(id);
  }
  drop(id) {
    this.runs.delete(id);
    this.cancel(id + ' full');
    this.cancel(id + ' zoomed');
  }
  cancel(name) {
    const request = this.requests.get(name);
    if (request) request.abort();
    this.requests.delete(name);
  }

  // The curve to draw; null while nothing is known.
  curve(id, key, zoom) {
    const run = this.runs.get(id);
    if (!run) return null;
    const finer =
        zoom && run.zoomed && run.zoomed.range[0] === zoom[0] && run.zoomed.range[1] === zoom[1];
    return (finer && run.zoomed.keys[key]) || run.full[key] || null;
  }

  // demands: [{keys, points}]: panels of different width want different numbers of points.
  async load(id, axis, demands) {
    const keys = await this.fetch(id + ' full', id, axis, demands, null);
    if (!keys) return;
    const before = this.runs.get(id);
    const same = before && before.axis === axis;
    if (same) addNewer(keys, before.full);
    this.runs.set(id, {axis, full: keys, zoomed: same ? before.zoomed : null, reloading: false});
    this.changed();
  }
  async zoom(id, axis, demands, range) {
    const run = this.runs.get(id);
    if (!run || !this.source.live) return;  // a report has only the points of the whole run
    const keys = await this.fetch(id + ' zoomed', id, axis, demands, range);
    if (!keys || this.runs.get(id) !== run) return;
    run.zoomed = {range, keys};
    this.changed();
  }
  // A newer request for the same thing replaces this one; then the answer is null.
  async fetch(name, id, axis, demands, range) {
    this.cancel(name);
    const control = new AbortController();
    this.requests.set(name, control);
    const bounds = range ? {from: range[0], to: range[1]} : {};
    const parts = demands.flatMap(
        ({keys, points}) =>
            chunks(keys, 40).map((some) => ({keys: some, points, axis, ...bounds})));
    try {
      const replies =
          await Promise.all(parts.map((part) => this.source.series(id, part, control.signal)));
      return control.signal.aborted ? null : copied(replies);
    } catch (error) {
      if (control.signal.aborted) return null;
      throw error;
    }
  }

  // New rows of a live run. Returns true when the whole run should be asked for again, because the
  // appended points have become too many.
  append(event) {
    const run = this.runs.get(event.id);
    if (!run) return false;
    const place = placesOf(event, run.axis);
    let longest = 0;
    for (const [key, given] of Object.entries(event.keys)) {
      const {x, y} = placed(given, place);
      const curve = run.full[key] || (run.full[key] = {x: [], y: []});
      Curve.append(curve, x, y);
      if (run.zoomed && run.zoomed.keys[key])
        appendWithin(run.zoomed.keys[key], x, y, run.zoomed.range);
      longest = Math.max(longest, curve.x.length);
    }
    this.changed();
    if (longest <= kMostPoints || run.reloading) return false;
    run.reloading = true;
    return true;
  }
}

function chunks(list, size) {
  const parts = [];
  for (let at = 0; at < list.length; at += size) parts.push(list.slice(at, at + size));
  return parts;
}
// Copies, because appended points must not change the JSON inside a report.
function copied(replies) {
  const keys = {};
  for (const reply of replies)
    for (const [key, curve] of Object.entries(reply.keys || {}))
      keys[key] = {
        x: [...curve.x],
        y: [...curve.y],
        low: curve.low ? [...curve.low] : null,
        high: curve.high ? [...curve.high] : null,
      };
  return keys;
}
// Rows that arrived while the answer was on its way.
function addNewer(keys, earlier) {
  for (const [key, old] of Object.entries(earlier)) {
    const curve = keys[key];
    if (!curve || !curve.x.length) continue;
    const from = Curve.lowerBound(old.x, curve.x[curve.x.length - 1] * (1 + 1e-12));
    Curve.append(curve, old.x.slice(from), old.y.slice(from));
  }
}
// From the step of a new row to its place on the x axis; undefined if that is not known.
function placesOf(event, axis) {
  if (axis === 'step') return (step) => step;
  const places = new Map((event.steps || []).map((step, i) => [step, (event[axis] || [])[i]]));
  return (step) => places.get(step);
}
function placed(points, place) {
  const x = points.x.map(place);
  return {x: x.filter(Format.known), y: points.y.filter((value, i) => Format.known(x[i]))};
}
function appendWithin(curve, x, y, range) {
  const inside = x.map((value) => value >= range[0] && value <= range[1]);
  Curve.append(curve, x.filter((value, i) => inside[i]), y.filter((value, i) => inside[i]));
}
