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

// The panels with curves: their data, the shared x axis, and the runs' colours.
class Curves {
  constructor(source, view, host, callbacks) {
    this.source = source;
    this.view = view;  // of ViewState
    this.host = host;
    this.callbacks = callbacks;  // {changed(): the view changed, failed(error)}
    this.runs = [];              // {id, name, keys, events}; the first is the main run
    this.panels = [];
    this.charts = new Map();
    this.hover = null;
    this.store = new SeriesStore(source, () => Frames.request(this.rebuild));
    this.rebuild = () => this.rebuildNow();
  }

  // Shows these runs; keeps what is loaded of those that were shown before.
  show(runs) {
    this.runs = runs;
    this.store.forgetAllBut(runs.map((run) => run.id));
    this.panels = ChartList.forKeys(new Set(runs.flatMap((run) => run.keys)));
    this.placeCharts();
    for (const run of runs)
      if (!this.store.runs.has(run.id)) this.load(run.id);
    Frames.request(this.rebuild);
  }
  placeCharts() {
    const wanted = new Set(this.panels.map((panel) => panel.id));
    for (const [id, chart] of this.charts)
      if (!wanted.has(id)) {
        chart.element.remove();
        this.charts.delete(id);
      }
    for (const panel of this.panels) {
      let chart = this.charts.get(panel.id);
      if (!chart) {
        chart = new Chart(panel, this);
        chart.setLogarithmic(this.view.log.includes(panel.id));
        this.charts.set(panel.id, chart);
      }
      chart.definition = panel;
      this.host.append(chart.element);  // in order; an element that is there already moves
    }
  }

  load(id) {
    this.report(this.store.load(id, this.view.axis, this.demands(id)).then(() => this.zoomOne(id)));
  }
  reload() {
    for (const run of this.runs) this.load(run.id);
  }
  zoomOne(id) {
    if (this.view.zoom)
      this.report(this.store.zoom(id, this.view.axis, this.demands(id), this.view.zoom));
  }
  report(promise) {
    promise.catch((error) => this.callbacks.failed(error));
  }

  // What to ask for: about as many points as a panel has pixels.
  demands(id) {
    const run = this.runs.find((candidate) => candidate.id === id);
    const has = new Set(run ? run.keys : []);
    const byWidth = {wide: {keys: [], points: 0}, small: {keys: [], points: 0}};
    for (const panel of this.panels) {
      const group = byWidth[panel.wide ? 'wide' : 'small'];
      group.keys.push(...panel.curves.map(({key}) => key).filter((key) => has.has(key)));
      group.points = Math.max(group.points, Math.min(4000, this.charts.get(panel.id).pixels()));
    }
    return Object.values(byWidth).filter((group) => group.keys.length);
  }

  append(event) {
    const run = this.runs.find((candidate) => candidate.id === event.id);
    if (!run) return;
    const added = Object.keys(event.keys).filter((key) => !run.keys.includes(key));
    if (added.length) {
      run.keys.push(...added);
      this.show(this.runs);
    }
    if (this.store.append(event)) this.load(event.id);
  }

  rebuildNow() {
    const several = this.runs.length > 1;
    this.ranges = null;
    for (const panel of this.panels) {
      const curves = [];
      this.runs.forEach((run, slot) => panel.curves.forEach(({key, label}, at) => {
        const points = this.store.curve(run.id, key, this.view.zoom);
        if (!points) return;
        curves.push({
          run: run.id,
          key,
          x: points.x,
          y: points.y,
          low: points.low,
          high: points.high,
          label: !several            ? label :
              at === 0 && panel.keys ? run.name :
                                       run.name + ' · ' + label,
          colour: Theme.series(several ? slot : at),
          dash: several && at > 0 ? [[6, 3], [2, 2], [8, 3, 2, 3]][(at - 1) % 3] : null,
          marks: /^(valid|eval)/.test(key),
          smooth: ChartList.isNoisy(panel, key) ? Curve.smooth(points.y, this.view.smoothing) :
                                                  points.y,
        });
      }));
      const chart = this.charts.get(panel.id);
      chart.element.hidden = ChartList.isLeftOut(panel, curves);
      chart.setCurves(curves, this.eventsOf(panel));
    }
  }
  eventsOf(panel) {
    const [main] = this.runs;
    if (!panel.wide || !main || this.view.axis !== 'step') return [];
    return main.events.filter((event) => Format.known(event.step))
        .map((event) => ({
               x: event.step,
               text: event.event + (event.message ? ': ' + event.message : ''),
               bad: ['failed', 'diverged', 'spike', 'stalled'].includes(event.event),
             }));
  }

  fullRange(logarithmic) {
    if (!this.ranges) this.ranges = {};
    const name = logarithmic ? 'log' : 'linear';
    if (this.ranges[name] === undefined) {
      const all = [...this.store.runs.values()].flatMap((run) => Object.values(run.full));
      this.ranges[name] = ChartDrawing.rangeOfX(all, logarithmic ? Number.MIN_VALUE : undefined);
    }
    return this.ranges[name];
  }
  nameX() {
    return this.view.axis === 'step' ? 'step' : '';
  }
  formatX(value, digits) {
    if (this.view.axis === 'hours') return Format.number(value, digits) + ' h';
    return this.view.axis === 'tokens' ? Format.tokens(value, digits) :
                                         Format.si(value, '', digits);
  }
  describeX(value) {
    if (this.view.axis === 'hours') return Format.seconds(value * 3600);
    return this.view.axis === 'tokens' ? Format.tokens(value) + ' tokens' :
                                         'step ' + Format.count(value);
  }

  redrawAll() {
    for (const chart of this.charts.values()) chart.redraw();
  }
  setHover(x) {
    this.hover = x;
    for (const chart of this.charts.values()) Frames.request(chart.drawOverlay);
  }
  setZoom(range) {
    if (range && range[1] - range[0] < 1e-9 * Math.abs(range[1]))
      return;  // nothing is that close together
    this.view.zoom = range;
    if (!range)
      for (const chart of this.charts.values()) chart.rangeY = null;
    this.callbacks.changed();
    Frames.request(this.rebuild);
    if (range)
      for (const run of this.runs) this.zoomOne(run.id);
  }
  setAxis(axis) {
    this.view.axis = axis;
    this.view.zoom = null;
    this.callbacks.changed();
    this.reload();
  }
  setSmoothing(weight) {
    this.view.smoothing = weight;
    this.callbacks.changed();
    Frames.request(this.rebuild);
  }
  setLogX(on) {
    this.view.logX = on;
    this.callbacks.changed();
    this.redrawAll();
  }
  setLog(id, on) {
    this.view.log = this.view.log.filter((other) => other !== id).concat(on ? [id] : []);
    const chart = this.charts.get(id);
    if (chart) chart.setLogarithmic(on);
    this.callbacks.changed();
  }
}
