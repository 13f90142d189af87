'use strict';

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
    this.shared = this.sharedState();
  }
  sharedState() {
    const curves = this;
    return {
      get view() {
        return curves.view;
      },
      get hover() {
        return curves.hover;
      },
      fullRange: (logarithmic) => curves.fullRange(logarithmic),
      formatX: (value, digits) => curves.formatX(value, digits),
      nameX: () => (curves.view.axis === 'step' ? 'step' : ''),
      describeX: (value) => curves.describeX(value),
      onHover: (chart, x) => curves.setHover(x),
      onZoom: (range) => curves.setZoom(range),
      onLog: (id, on) => curves.setLog(id, on),
    };
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
        chart = new Chart(panel, this.shared);
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
