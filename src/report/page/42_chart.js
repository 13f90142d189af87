'use strict';

const kNearPixels = 8;  // from the crosshair

// A panel with curves over a shared x axis. `shared` has the view and is told of zooms and of the
// pointer: {view: {axis, logX, zoom}, hover: x or null, onHover(chart, x), onZoom(range or null),
// onLog(id, on)}.
class Chart {
  constructor(definition, shared) {
    this.definition = definition;
    this.shared = shared;
    this.curves = [];
    this.events = [];
    this.hidden = new Set();  // labels that the user switched off
    this.rangeY = null;       // chosen by dragging a box
    this.logarithmic = false;
    this.drawn = {points: 0};
    this.draw = () => this.drawNow();
    this.drawOverlay = () => this.drawOverlayNow();
    this.build();
    new ResizeObserver(() => this.redraw()).observe(this.plot);
  }

  build() {
    const {make} = Elements;
    const {id, title, unit} = this.definition;
    this.canvas = make('canvas', {'aria-hidden': 'true'});
    this.overlay = make('canvas', {'aria-hidden': 'true'});
    this.plot = make(
        'div', {
          class: 'plot',
          tabindex: '0',
          role: 'img',
          'data-plot': id,
          'aria-label': title + (unit ? ', ' + unit : '') +
              '. Arrow keys read values, + and - zoom, 0 shows everything.',
        },
        this.canvas, this.overlay);
    this.logButton = make('button', {
      class: 'quiet',
      type: 'button',
      text: 'log',
      title: 'Logarithmic y axis',
      'aria-pressed': 'false',
      onclick: () => this.shared.onLog(id, !this.logarithmic),
    });
    this.legend = make('div', {class: 'legend'});
    this.element = make(
        'div', {class: 'card chart' + (this.definition.wide ? ' wide' : ''), 'data-chart': id},
        make(
            'div', {class: 'head'}, make('h3', {text: title, title}),
            make('span', {class: 'unit', text: unit || ''}), this.logButton),
        this.plot, this.legend);
    ChartPointer.attach(this);
  }

  setCurves(curves, events) {
    this.curves = curves;
    this.events = events;
    this.buildLegend();
    this.redraw();
  }
  setLogarithmic(on) {
    this.logarithmic = on;
    this.rangeY = null;
    this.logButton.setAttribute('aria-pressed', String(on));
    this.redraw();
  }
  redraw() {
    Frames.request(this.draw);
    Frames.request(this.drawOverlay);
  }
  visibleCurves() {
    return this.curves.filter((curve) => !this.hidden.has(curve.label));
  }

  // Width in pixels of the area of the curves: how many points are worth asking for.
  pixels() {
    return Math.max(200, Math.round(this.plot.clientWidth) - 62);
  }

  scales(context, width, height) {
    const curves = this.visibleCurves();
    const logX = this.shared.view.logX;
    let rangeX = this.shared.view.zoom || this.shared.fullRange(logX);
    if (!rangeX) return null;
    if (logX && rangeX[0] <= 0) rangeX = [Math.min(1, rangeX[1] / 10), rangeX[1]];
    if (!(rangeX[0] < rangeX[1])) rangeX = Scale.padded(rangeX[0], rangeX[0], logX);
    const fitting = ChartDrawing.rangeOfY(curves, rangeX[0], rangeX[1], this.logarithmic);
    let rangeY = this.rangeY || (fitting && Scale.padded(fitting[0], fitting[1], this.logarithmic));
    if (!rangeY) return null;
    if (this.definition.fromZero && !this.logarithmic && !this.rangeY)
      rangeY = [Math.min(0, rangeY[0]), rangeY[1]];
    const rows = ChartDrawing.rowsOf(height);
    const y = Scale.make(rangeY[0], rangeY[1], rows.bottom, rows.top, this.logarithmic);
    const axisY = ChartDrawing.axisY(context, y, height, this.definition);
    const area = ChartDrawing.areaOf(width, height, axisY.widest);
    const x = Scale.make(rangeX[0], rangeX[1], area.left, area.right, logX);
    return {area, x, y, axisY};
  }

  drawNow() {
    const width = this.plot.clientWidth, height = this.plot.clientHeight;
    const context = Frames.prepare(this.canvas, width, height);
    if (!context) return;
    const curves = this.visibleCurves();
    this.scale = this.scales(context, width, height);
    this.drawn = {points: curves.reduce((sum, curve) => sum + curve.x.length, 0)};
    if (!this.scale) {
      context.fillStyle = Theme.colour('soft');
      context.fillText('no values in this range', 60, height / 2);
      return;
    }
    const {area, x, y} = this.scale;
    ChartDrawing.drawAxes(context, this.scale, this.shared.formatX, this.shared.nameX());
    ChartDrawing.drawCurves(context, area, curves, x, y);
    ChartDrawing.drawEvents(context, area, this.events, x);
  }

  // The crosshair and the dragged range, on their own canvas: moving the pointer redraws no curve.
  drawOverlayNow() {
    const context = Frames.prepare(this.overlay, this.plot.clientWidth, this.plot.clientHeight);
    if (!context || !this.scale) return;
    const {area, x, y} = this.scale;
    if (this.dragging) this.drawDragged(context, area);
    const hover = this.shared.hover;
    this.updateLegend(hover);
    if (hover === null || !(hover >= x.low && hover <= x.high)) return;
    context.strokeStyle = Theme.colour('soft');
    context.lineWidth = 1;
    const pixel = Math.round(x.pixel(hover)) + 0.5;
    ChartDrawing.line(context, pixel, area.top, pixel, area.bottom);
    for (const {curve, index} of this.valuesAt(hover)) {
      if (curve.smooth[index] === null || curve.x[index] < x.low || curve.x[index] > x.high)
        continue;
      context.fillStyle = curve.colour;
      context.beginPath();
      context.arc(x.pixel(curve.x[index]), y.pixel(curve.smooth[index]), 3, 0, 2 * Math.PI);
      context.fill();
    }
  }
  drawDragged(context, area) {
    const {from, to, box} = this.dragging;
    context.fillStyle = Theme.colour('gold');
    context.globalAlpha = 0.18;
    const top = box ? Math.min(from.y, to.y) : area.top;
    const height = box ? Math.abs(to.y - from.y) : area.bottom - area.top;
    context.fillRect(Math.min(from.x, to.x), top, Math.abs(to.x - from.x), height);
    context.globalAlpha = 1;
  }

  // The points of the visible curves at x, or so near that one cannot point between them. Curves
  // with few points, or that ended earlier, may have none there.
  valuesAt(x) {
    return this.visibleCurves()
        .map((curve) => ({curve, index: this.indexAt(curve, x)}))
        .filter(({index}) => index >= 0);
  }
  indexAt(curve, x) {
    const index = Curve.nearest(curve.x, x);
    return index >= 0 && this.distance(curve.x[index], x) <= kNearPixels ? index : -1;
  }
  distance(a, b) {
    return Math.abs(this.scale.x.pixel(a) - this.scale.x.pixel(b));
  }
  // The place of the nearest point; x itself where no curve is.
  snapped(x) {
    let best = x, least = Infinity;
    for (const curve of this.visibleCurves()) {
      const index = Curve.nearest(curve.x, x);
      if (index < 0) continue;
      const distance = this.distance(curve.x[index], x);
      const outside = x < curve.x[0] || x > curve.x[curve.x.length - 1];
      if (distance >= least || (outside && distance > kNearPixels)) continue;
      best = curve.x[index];
      least = distance;
    }
    return best;
  }

  // A null is a value that is not finite.
  textOf(curve, index) {
    const value = curve.smooth[index];
    return value === null ? 'nan' : this.definition.format(value);
  }

  // Where a value is, if not at x.
  placeOf(curve, index, x) {
    const place = this.shared.describeX(curve.x[index]);
    return place === this.shared.describeX(x) ? '' : ` (${place})`;
  }

  buildLegend() {
    const {make} = Elements;
    this.legendValues = this.curves.map((curve) => {
      const swatch = make('span', {class: 'line'});
      swatch.style.color = curve.colour;
      swatch.style.borderTopStyle = curve.dash ? 'dashed' : 'solid';
      const value = make('span', {class: 'value'});
      const entry = make(
          'button', {
            type: 'button',
            title: `Show or hide ${curve.label} (${curve.key})`,
            'aria-pressed': String(!this.hidden.has(curve.label)),
            onclick: () => this.toggle(curve.label),
          },
          swatch, make('span', {class: 'label', text: curve.label}), value);
      return {curve, value, entry};
    });
    this.legend.replaceChildren(...this.legendValues.map(({entry}) => entry));
  }
  updateLegend(hover) {
    for (const {curve, value} of this.legendValues || []) {
      const index = hover === null ? curve.x.length - 1 : this.indexAt(curve, hover);
      const text = index < 0 ? '' :
          hover === null     ? this.textOf(curve, index) :
                               this.textOf(curve, index) + this.placeOf(curve, index, hover);
      if (value.textContent !== text) value.textContent = text;
    }
  }
  toggle(label) {
    if (!this.hidden.delete(label)) this.hidden.add(label);
    this.buildLegend();
    this.redraw();
  }
}
