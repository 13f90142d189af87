'use strict';

// The pointer and the keys of a chart: crosshair, zoom by dragging, reset.
const ChartPointer = (() => {
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
    chart.shared.onHover(chart, x);
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
    chart.shared.onZoom(sorted(x.value(dragged.from.x), x.value(dragged.to.x)));
  }
  function leave(chart) {
    if (chart.dragging) return;
    chart.shared.onHover(chart, null);
    Tooltip.hide();
  }
  function reset(chart) {
    chart.rangeY = null;
    chart.shared.onZoom(null);
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
    chart.shared.onHover(chart, x);
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
      chart.shared.onZoom(range);
  }

  function content(chart, x) {
    const {make, named} = Elements;
    const rows = chart.valuesAt(x).map(
        ({curve, index}) => make(
            'tr', {}, make('td', {}, named(curve.colour, curve.label)),
            make('td', {
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
