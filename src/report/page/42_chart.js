'use strict';

const kNearPixels = 8;  // from the crosshair

// A panel with curves over a shared x axis. `shared` (Curves) has the view and is told of zooms and
// of the pointer.
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
      onclick: () => this.shared.setLog(id, !this.logarithmic),
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
    ChartDrawing.drawAxes(context, this.scale, this.shared);
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

// The pointer and the keys of a chart: crosshair, zoom by dragging, reset.
const ChartPointer = (() => {
  const {make, named} = Elements;
  const kLeastDrag = 6;  // pixels; less is a click

  function attach(chart) {
    const {plot} = chart;
    plot.addEventListener('pointerdown', (event) => begin(chart, event));
    plot.addEventListener('pointermove', (event) => move(chart, event));
    plot.addEventListener('pointerup', (event) => end(chart, event));
    plot.addEventListener('pointercancel', () => {
      chart.dragging = null;
    });
    plot.addEventListener('pointerleave', () => leave(chart));
    plot.addEventListener('dblclick', () => reset(chart));
    plot.addEventListener('keydown', (event) => key(chart, event));
    plot.addEventListener('blur', () => leave(chart));
  }
  function position(chart, event) {
    const box = chart.plot.getBoundingClientRect();
    const {area} = chart.scale;
    const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
    return {
      x: clamp(event.clientX - box.left, area.left, area.right),
      y: clamp(event.clientY - box.top, area.top, area.bottom)
    };
  }
  function begin(chart, event) {
    if (!chart.scale || event.button !== 0) return;
    chart.plot.setPointerCapture(event.pointerId);
    const at = position(chart, event);
    chart.dragging = {from: at, to: at, box: event.shiftKey};
  }
  function move(chart, event) {
    if (!chart.scale) return;
    const at = position(chart, event);
    if (chart.dragging) chart.dragging.to = at;
    const x = chart.snapped(chart.scale.x.value(at.x));
    chart.shared.setHover(x);
    Tooltip.show(event.clientX, event.clientY, content(chart, x));
  }
  function end(chart) {
    const dragged = chart.dragging;
    chart.dragging = null;
    if (!dragged || !chart.scale || Math.abs(dragged.to.x - dragged.from.x) < kLeastDrag) {
      Frames.request(chart.drawOverlay);
      return;
    }
    const {x, y} = chart.scale;
    const sorted = (a, b) => (a < b ? [a, b] : [b, a]);
    chart.rangeY = dragged.box ? sorted(y.value(dragged.from.y), y.value(dragged.to.y)) : null;
    chart.shared.setZoom(sorted(x.value(dragged.from.x), x.value(dragged.to.x)));
  }
  function leave(chart) {
    if (chart.dragging) return;
    chart.shared.setHover(null);
    Tooltip.hide();
  }
  function reset(chart) {
    chart.rangeY = null;
    chart.shared.setZoom(null);
  }

  function key(chart, event) {
    if (!chart.scale || event.ctrlKey || event.metaKey || event.altKey) return;
    const {x} = chart.scale;
    const middle = chart.shared.hover !== null ?
        chart.shared.hover :
        x.value((chart.scale.area.left + chart.scale.area.right) / 2);
    if (event.key === 'ArrowLeft' || event.key === 'ArrowRight')
      step(chart, middle, event.key === 'ArrowRight' ? 1 : -1, event.shiftKey);
    else if (event.key === '+' || event.key === '=')
      zoom(chart, middle, 0.5);
    else if (event.key === '-')
      zoom(chart, middle, 2);
    else if (event.key === '0' || event.key === 'Escape')
      reset(chart);
    else
      return;
    event.preventDefault();
  }
  // To the next point of the first curve.
  function step(chart, from, direction, far) {
    const [curve] = chart.visibleCurves();
    if (!curve || !curve.x.length) return;
    const index = Curve.nearest(curve.x, from) + direction * (far ? 10 : 1);
    const x = curve.x[Math.min(curve.x.length - 1, Math.max(0, index))];
    chart.shared.setHover(x);
    const box = chart.plot.getBoundingClientRect();
    Tooltip.show(box.left + chart.scale.x.pixel(x), box.top + 20, content(chart, x));
  }
  function zoom(chart, middle, factor) {
    const {x, area} = chart.scale;
    const center = x.pixel(middle), width = (area.right - area.left) * factor / 2;
    const full = chart.shared.fullRange(chart.shared.view.logX);
    const range =
        [Math.max(full[0], x.value(center - width)), Math.min(full[1], x.value(center + width))];
    if (range[0] <= full[0] && range[1] >= full[1])
      reset(chart);
    else if (range[0] < range[1])
      chart.shared.setZoom(range);
  }

  function content(chart, x) {
    const rows = chart.valuesAt(x).map(
        ({curve, index}) => make(
            'tr', {}, make('td', {}, named(curve.colour, curve.label)), make('td', {
              class: 'number',
              text: chart.textOf(curve, index) + chart.placeOf(curve, index, x)
            }),
            make('td', {class: 'number soft', text: spread(chart, curve, index)})));
    const near =
        chart.events
            .filter((event) => Math.abs(chart.scale.x.pixel(event.x) - chart.scale.x.pixel(x)) < 5)
            .slice(0, 3)
            .map((event) => make('div', {class: event.bad ? 'worse' : 'soft', text: event.text}));
    return make(
        'div', {}, make('div', {class: 'title', text: chart.shared.describeX(x)}),
        make('table', {}, ...rows), ...near);
  }
  function spread(chart, curve, index) {
    const {low, high} = curve;
    if (!low || !Format.known(low[index]) || low[index] === high[index]) return '';
    return chart.definition.format(low[index]) + ' … ' + chart.definition.format(high[index]);
  }
  return {attach};
})();
